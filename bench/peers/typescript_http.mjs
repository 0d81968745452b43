// Serves the sessions of a TypeScript SDK over HTTP on a free port, and prints the port.

import { randomUUID } from "node:crypto";
import { createServer } from "node:http";

// `open` returns a new transport that is connected to a new server, for the options of the SDK.
export function serve(open, isJson) {
  const sessions = new Map();
  const http = createServer(async (request, response) => {
    let transport = sessions.get(request.headers["mcp-session-id"]);
    transport ??= await open({
      sessionIdGenerator: randomUUID,
      enableJsonResponse: isJson,
      onsessioninitialized: (session) => sessions.set(session, transport),
    });
    await transport.handleRequest(request, response);
  });
  http.listen(0, "127.0.0.1", () => console.error(`on http://127.0.0.1:${http.address().port}`));
}
