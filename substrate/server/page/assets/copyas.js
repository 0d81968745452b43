// The same call in other words: for a shell, the command line, Python and an MCP client.

import { button, h, newId, toast } from "./dom.js";

const quoted = (text) => (/^[A-Za-z0-9_@%+=:,./-]+$/.test(text) ? text : `'${text.replace(/'/g, "'\\''")}'`);

function python(value) {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value).map(([key, each]) => `${JSON.stringify(key)}: ${python(each)}`).join(", ")}}`;
  return JSON.stringify(value);
}

function curl(method, params) {
  const body = JSON.stringify({ jsonrpc: "2.0", id: 1, method: method.name, params });
  return [
    `curl -N ${location.origin}/rpc \\`,
    `  -H "Authorization: Bearer $(substrate token)" \\`,
    "  -H 'Content-Type: application/json' \\",
    `  -H 'Accept: ${method.streaming ? "text/event-stream" : "application/json"}' \\`,
    `  -d ${quoted(body)}`,
  ].join("\n");
}

function commandLine(method, params) {
  const options = Object.entries(params).flatMap(([name, value]) => {
    const flag = `--${name.replace(/_/g, "-")}`;
    if (value === true) return [flag];
    if (value === false) return [`--no-${name.replace(/_/g, "-")}`];
    if (Array.isArray(value) && value.every((each) => typeof each === "string")) return value.map((each) => `${flag} ${quoted(each)}`);
    return [`${flag} ${quoted(typeof value === "string" ? value : JSON.stringify(value))}`];
  });
  return ["substrate call", method.name, ...options].join(" ");
}

function pythonClient(method, params) {
  const given = Object.entries(params).map(([name, value]) => `${name}=${python(value)}`).join(", ");
  const called = `plexus.${method.name}(${given})`;
  const use = method.streaming
    ? [`        async for event in ${called}:`, "            print(event)"]
    : [`        print(await ${called})`];
  return [
    "import asyncio", "import os", "", "from native_rpc.client import connect", "", "",
    "async def main() -> None:",
    `    async with connect(${JSON.stringify(location.origin)}, token=os.environ["SUBSTRATE_TOKEN"]) as plexus:`,
    ...use, "", "", "asyncio.run(main())",
  ].join("\n");
}

function mcp(method, params) {
  return JSON.stringify({ jsonrpc: "2.0", id: 1, method: "tools/call", params: { name: method.name, arguments: params } }, null, 2);
}

/** Every way to say it. */
const WAYS = { curl, CLI: commandLine, Python: pythonClient, MCP: mcp };

/** A panel with the call in the chosen way; `params` gives what is in the form now. */
export function copyPanel(method, params) {
  const text = h("pre", { class: "code copy-text", id: newId("copy"), tabindex: "0", "aria-label": "The call in other words" });
  let chosen = "curl";
  const show = () => { text.textContent = WAYS[chosen](method, params()); };
  const tabs = Object.keys(WAYS).map((way) => button(way, () => {
    chosen = way;
    mark();
    show();
  }, { class: "small" }));
  const mark = () => tabs.forEach((tab) => tab.setAttribute("aria-pressed", String(tab.textContent === chosen)));
  mark();
  const copy = button("Copy", async () => {
    show();
    try {
      await navigator.clipboard.writeText(text.textContent);
      toast(`Copied as ${chosen}.`);
    } catch {
      const range = document.createRange();
      range.selectNodeContents(text);
      window.getSelection().removeAllRanges();
      window.getSelection().addRange(range);
      toast("The text is selected: copy it with the keyboard.");
    }
  }, { class: "small" });
  const panel = h("details", { class: "copy" }, h("summary", {}, "Copy as…"),
    h("div", { class: "bar", role: "group", "aria-label": "Copy as" }, tabs, copy), text);
  panel.addEventListener("toggle", show);
  return { element: panel, refresh: () => panel.open && show() };
}
