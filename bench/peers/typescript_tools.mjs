// The tools of the benchmark, for both TypeScript SDKs.

import { z } from "zod";

const said = (text) => ({ content: [{ type: "text", text }] });

// `notify` sends a notification for a call; `token` returns the progress token of the call.
export function register(server, number, { schema, notify, token }) {
  const echo = ({ text }) => said(text);
  const text = schema({ text: z.string() });
  for (let tool = 0; tool < number; tool += 1) {
    server.registerTool(`many.tool_${tool}`, { description: "Say TEXT again.", inputSchema: text }, echo);
  }
  if (number > 0) return;

  const report = async (call, progress, message) => {
    const progressToken = token(call);
    if (progressToken === undefined) return;
    await notify(call, { method: "notifications/progress", params: { progressToken, progress, message } });
  };
  server.registerTool("bench.echo", { description: "Say TEXT again.", inputSchema: text }, echo);
  server.registerTool(
    "bench.count",
    { description: "Count from 1 up to TO.", inputSchema: schema({ to: z.number().int() }) },
    async ({ to }, call) => {
      const parts = [];
      for (let i = 1; i <= to; i += 1) {
        parts.push(`${i} `);
        await report(call, i, parts.at(-1));
      }
      return said(parts.join(""));
    },
  );
  server.registerTool(
    "bench.ticks",
    { description: "Report the time, every millisecond.", inputSchema: schema({ times: z.number().int() }) },
    async ({ times }, call) => {
      for (let i = 1; i <= times; i += 1) {
        await new Promise((resolve) => setTimeout(resolve, 1));
        await report(call, i, `${process.hrtime.bigint()} `);
      }
      return said("");
    },
  );
  server.registerTool(
    "bench.hold",
    { description: "Say one thing and then nothing until cancelled.", inputSchema: schema({}) },
    async (_, call) => {
      await report(call, 1, "held ");
      return new Promise(() => {});
    },
  );
}
