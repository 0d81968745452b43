// The view of everything that can be called: a list of tools, and the chosen one.

import { html, useState } from "../core/html.js";
import { link } from "../core/router.js";
import { schema } from "../core/schema.js";
import { load } from "../core/storage.js";
import { Notice } from "../ui/run_parts.js";
import { groups, nearest, toolTitle, tools } from "../tools/catalogue.js";
import { Tool } from "../tools/tool.js";
import { ToolList } from "../tools/tool_list.js";

/** The tools view: `#/tools`, `#/tools/METHOD`. @param {{parts: string[]}} props */
export function View({ parts: [name] }) {
  const [toFocus, setToFocus] = useState(0);
  if (schema.value === null) return html`<p class="dim" role="status">Loading tools…</p>`;
  if (groups.value.every((group) => group.isSystem) && !name) return html`<${NoTools} />`;
  const tool = name ? tools.value.get(name) : undefined;
  return html`<div class="tools" data-chosen=${name ? "true" : null}>
    <${ToolList} current=${name} onOpen=${() => setToFocus((count) => count + 1)} />
    <div class="tool-pane">${tool ? html`<${Tool} key=${name} tool=${tool} toFocus=${toFocus} />` : name ? html`<${UnknownTool} name=${name} />` : html`<${Welcome} />`}</div></div>`;
}

/** @param {{tool: import("../tools/catalogue.js").Method}} props */
function ToolLink({ tool }) {
  return html`<a class="card tool-link" href=${link("tools", tool.name)}><strong>${toolTitle(tool)}</strong><code>${tool.name}</code></a>`;
}

function Welcome() {
  const used = load("tools.used", /** @type {string[]} */ ([])).map((name) => tools.value.get(name)).filter((tool) => tool !== undefined);
  return html`<div class="notice"><h2>Choose a tool</h2>
    <p>Search with <kbd>/</kbd>, move with <kbd>↑</kbd> <kbd>↓</kbd>, open with <kbd>Enter</kbd>. Run the form with <kbd>Ctrl</kbd> <kbd>Enter</kbd>.</p>
    ${used.length ? html`<h3>Used recently</h3><div class="tool-links">${used.map((tool) => html`<${ToolLink} key=${tool.name} tool=${tool} />`)}</div>` : null}</div>`;
}

/** @param {{name: string}} props */
function UnknownTool({ name }) {
  const near = nearest(name);
  return html`<div class="notice"><h2>There is no tool ${name}</h2>
    <p>It may belong to a plugin that is not loaded, or your token may not allow it. <a href=${link("tools")}>Show all tools</a></p>
    ${near.length ? html`<h3>Similar names</h3><div class="tool-links">${near.map((tool) => html`<${ToolLink} key=${tool.name} tool=${tool} />`)}</div>` : null}</div>`;
}

function NoTools() {
  return html`<${Notice} title="No tools yet"><p>This server offers only its own methods. Add a plugin: create one with <code>substrate new NAME</code>, or load a Python file with <code>substrate --activation FILE</code>. Its tools appear here after a restart.</p>
    <p><a href=${link("tools", "health.check")}>Show the methods of the server</a></p><//>`;
}
