// The official TypeScript SDK 1.x: node typescript_1.mjs (stdio | json | sse) TOOLS

import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StdioServerTransport } from "@modelcontextprotocol/sdk/server/stdio.js";

import { register } from "./typescript_tools.mjs";

const [kind, tools] = process.argv.slice(2);

async function connect(transport) {
  const server = new McpServer({ name: "bench", version: "1" });
  register(server, Number(tools), {
    schema: (shape) => shape,
    notify: (call, notification) => call.sendNotification(notification),
    token: (call) => call._meta?.progressToken,
  });
  await server.connect(transport);
  return transport;
}

if (kind === "stdio") {
  await connect(new StdioServerTransport());
} else {
  const { StreamableHTTPServerTransport } = await import(
    "@modelcontextprotocol/sdk/server/streamableHttp.js"
  );
  const { serve } = await import("./typescript_http.mjs");
  serve((options) => connect(new StreamableHTTPServerTransport(options)), kind === "json");
}
