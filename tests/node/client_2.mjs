// The official client 2.x: node client_2.mjs MODE (http URL | sse URL | stdio COMMAND ARGUMENT...)
// MODE is "legacy", "auto", or a required revision.

import { Client, SSEClientTransport, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";

import { NAME, session } from "./session.mjs";

const [mode, kind, target, ...args] = process.argv.slice(2);
const transports = {
  http: () => new StreamableHTTPClientTransport(new URL(target)),
  sse: () => new SSEClientTransport(new URL(target)),
  stdio: () => new StdioClientTransport({ command: target, args }),
};

const client = new Client(
  { name: "client-2-test", version: "1.0.0" },
  {
    capabilities: { elicitation: { form: {} } },
    versionNegotiation: { mode: ["legacy", "auto"].includes(mode) ? mode : { pin: mode } },
  },
);
const asked = [];
client.setRequestHandler("elicitation/create", ({ params }) => {
  asked.push(params.message);
  return { action: "accept", content: { name: NAME } };
});

await client.connect(transports[kind]());
await session(client, {
  revision: () => client.getNegotiatedProtocolVersion(),
  call: (name, options) => client.callTool({ name, arguments: {} }, options),
  asked,
});
