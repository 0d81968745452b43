// The official TypeScript SDK 2.x: node typescript_2.mjs (stdio | json | sse) TOOLS

import { McpServer } from "@modelcontextprotocol/server";
import { StdioServerTransport } from "@modelcontextprotocol/server/stdio";
import { z } from "zod";

import { register } from "./typescript_tools.mjs";

const [kind, tools] = process.argv.slice(2);

async function connect(transport) {
  const server = new McpServer({ name: "bench", version: "1" });
  register(server, Number(tools), {
    schema: z.object,
    notify: (call, notification) => call.mcpReq.notify(notification),
    token: (call) => call.mcpReq._meta?.progressToken,
  });
  await server.connect(transport);
  return transport;
}

if (kind === "stdio") {
  await connect(new StdioServerTransport());
} else {
  const { NodeStreamableHTTPServerTransport } = await import("@modelcontextprotocol/node");
  const { serve } = await import("./typescript_http.mjs");
  serve((options) => connect(new NodeStreamableHTTPServerTransport(options)), kind === "json");
}
