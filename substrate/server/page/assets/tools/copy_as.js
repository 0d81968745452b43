// The same call for other programs: a shell, the command line, Python and an MCP client.

import { html, useState } from "../core/html.js";
import { secretNames } from "../ui/form_draft.js";
import { copy } from "../ui/toast.js";

/** @typedef {import("./catalogue.js").Method} Method */

const quoted = (text) => (/^[A-Za-z0-9_@%+=:,./-]+$/.test(text) ? text : `'${text.replace(/'/g, "'\\''")}'`);
/** Words that Python does not accept as the name of an argument. */
const KEYWORDS = new Set(("and as assert async await break class continue def del elif else except finally for from global if import in is lambda nonlocal not or pass raise return try while with yield").split(" "));

/** @param {any} value @returns {string} */
function python(value) {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value).map(([key, each]) => `${JSON.stringify(key)}: ${python(each)}`).join(", ")}}`;
  return JSON.stringify(value);
}

/** The port that commands use by default. */
const DEFAULT_PORT = "4444";

/** The command for the server of this page: another port than the default one is named. */
function program() {
  return location.port && location.port !== DEFAULT_PORT ? `substrate --port ${location.port}` : "substrate";
}

/** @param {Method} method @param {any} params */
function curl(method, params) {
  return [
    `curl -N ${location.origin}/rpc \\`,
    `  -H "Authorization: Bearer $(${program()} token)" \\`,
    "  -H 'Content-Type: application/json' \\",
    `  -H 'Accept: ${method.streaming ? "text/event-stream" : "application/json"}' \\`,
    `  -d ${quoted(JSON.stringify({ jsonrpc: "2.0", id: 1, method: method.name, params }))}`,
  ].join("\n");
}

/** @param {Method} method @param {any} params */
function commandLine(method, params) {
  const options = Object.entries(params).flatMap(([name, value]) => {
    const flag = `--${name.replace(/_/g, "-")}`;
    if (value === true) return [flag];
    if (value === false) return [`--no-${name.replace(/_/g, "-")}`];
    if (Array.isArray(value) && value.every((each) => typeof each === "string")) return value.map((each) => `${flag} ${quoted(each)}`);
    return [`${flag} ${quoted(typeof value === "string" ? value : JSON.stringify(value))}`];
  });
  return [`${program()} call`, method.name, ...options].join(" ");
}

/** @param {Method} method @param {any} params */
function pythonClient(method, params) {
  const isPlain = Object.keys(params).every((name) => /^[A-Za-z_]\w*$/.test(name) && !KEYWORDS.has(name));
  const given = isPlain ? Object.entries(params).map(([name, value]) => `${name}=${python(value)}`).join(", ") : `**${python(params)}`;
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

/** @param {Method} method @param {any} params */
function mcp(method, params) {
  return JSON.stringify({ jsonrpc: "2.0", id: 1, method: "tools/call", params: { name: method.name, arguments: params } }, null, 2);
}

const FORMS = { curl, "substrate call": commandLine, Python: pythonClient, "MCP tools/call": mcp };

/** The call with these arguments in other forms; secrets are left to be filled in. @param {{tool: Method, value: any}} props */
export function CopyAs({ tool, value }) {
  const [chosen, setChosen] = useState("curl");
  const secrets = secretNames(tool.params);
  const params = Object.fromEntries(Object.entries(value || {}).map(([name, each]) => [name, secrets.has(name) ? `<${name}>` : each]));
  const text = FORMS[chosen](tool, params);
  return html`<details class="card copy-as"><summary>Copy as…</summary>
    <div class="chips" role="group" aria-label="Copy as">${Object.keys(FORMS).map((name) => html`<button type="button" key=${name} aria-pressed=${name === chosen ? "true" : "false"} onClick=${() => setChosen(name)}>${name}</button>`)}
      <span class="grow"></span><button type="button" class="small" onClick=${() => copy(text, `Copied as ${chosen}`)}>Copy</button></div>
    <pre class="copy-text" tabindex="0" role="region" aria-label=${`The call as ${chosen}`}>${text}</pre></details>`;
}
