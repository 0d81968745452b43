// The official client 1.x: node sdk_1.mjs (http|sse|websocket URL | stdio COMMAND ARGUMENT...)

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { SSEClientTransport } from "@modelcontextprotocol/sdk/client/sse.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { WebSocketClientTransport } from "@modelcontextprotocol/sdk/client/websocket.js";
import { ElicitRequestSchema } from "@modelcontextprotocol/sdk/types.js";

import { NAME, session } from "./session.mjs";

const [kind, target, ...args] = process.argv.slice(2);
const transports = {
  http: () => new StreamableHTTPClientTransport(new URL(target)),
  sse: () => new SSEClientTransport(new URL(target)),
  stdio: () => new StdioClientTransport({ command: target, args }),
  websocket: () => new WebSocketClientTransport(new URL(target)),
};

const client = new Client(
  { name: "sdk-1-test", version: "1.0.0" },
  { capabilities: { elicitation: {} } },
);
const asked = [];
client.setRequestHandler(ElicitRequestSchema, ({ params }) => {
  asked.push(params.message);
  return { action: "accept", content: { name: NAME } };
});

// The client does not expose the version; it sets it on its transport, which sends it.
const transport = transports[kind]();
let version;
const tell = transport.setProtocolVersion?.bind(transport);
transport.setProtocolVersion = (agreed) => {
  version = agreed;
  tell?.(agreed);
};
await client.connect(transport);
await session(client, {
  revision: () => version,
  call: (name, options) => client.callTool({ name, arguments: {} }, undefined, options),
  asked,
});
