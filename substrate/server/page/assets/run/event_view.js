// One event that is not output of a terminal: text, pictures, sounds, JSON, tables, progress, and how
// a run ended.

import { html, useState } from "../core/html.js";
import { duration, readable } from "../core/format.js";
import { link } from "../core/router.js";
import { JsonTree } from "../ui/json_tree.js";
import { Markdown, safeLink } from "../ui/markdown.js";
import { exitText, gapText, namesCode } from "./rows.js";

/** Rows of a table that are shown at first, and the columns that a table may have. */
const TABLE_ROWS = 50;
const MAX_COLUMNS = 12;
const LONG_TEXT = 20_000;

/** An event of a run. @param {{event: any}} props */
export function EventView({ event }) {
  const Look = LOOKS[event.type] || Data;
  return html`<${Look} event=${event} />`;
}

/** @param {{event: any}} props */
function Progress({ event: { done, total, message } }) {
  const isKnown = typeof total === "number" && total > 0;
  return html`<p class="e-progress"><progress max=${isKnown ? total : null} value=${isKnown ? Math.min(done, total) : null} aria-label=${message || "Progress"}></progress>
    <span title=${isKnown ? `${done} of ${total}` : null}>${isKnown ? `${Math.round((100 * done) / total)} %` : done} ${message || ""}</span></p>`;
}

/** @param {{event: any}} props */
function Picture({ event: { data, mime_type: type } }) {
  if (!/^image\/[\w.+-]+$/.test(type || "")) return html`<p class="e-note">[${type}]</p>`;
  return html`<a class="picture" href=${`data:${type};base64,${data}`} download="picture" title="Download"><img src=${`data:${type};base64,${data}`} alt=${`Picture (${type})`} /></a>`;
}

/** @param {{event: any}} props */
function Sound({ event: { data, mime_type: type } }) {
  if (!/^audio\/[\w.+-]+$/.test(type || "")) return html`<p class="e-note">[${type}]</p>`;
  return html`<audio controls src=${`data:${type};base64,${data}`} aria-label=${`Sound (${type})`}></audio>`;
}

/** A value in a rich form. HTML is shown in a frame without scripts and without access to the page.
    @param {{event: any}} props */
function Display({ event: { mime_type: type, data, text } }) {
  if (type === "text/html") return html`<iframe class="e-frame" sandbox="" title=${text || "HTML"} src=${`data:text/html;charset=utf-8,${encodeURIComponent(data)}`}></iframe>`;
  if (type === "image/svg+xml") return html`<img class="e-svg" src=${`data:image/svg+xml;charset=utf-8,${encodeURIComponent(data)}`} alt=${text || "Drawing"} />`;
  if (type === "text/markdown") return html`<${Markdown} text=${data} />`;
  if (type === "application/json") return html`<${JsonTree} value=${parsed(data)} open=${2} />`;
  return html`<${Text} text=${data} label=${type} />`;
}

/** @param {string} text */
function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/** @param {{event: any}} props */
function Resource({ event: { uri, name, content, mime_type: type, blob } }) {
  const address = safeLink(uri);
  return html`<div><span class="tag">resource</span> ${address ? html`<a href=${address} target="_blank" rel="noopener noreferrer">${name || uri}</a>` : html`<code>${name ? `${name} ${uri}` : uri}</code>`}
    ${blob && /^image\//.test(type || "") ? html`<${Picture} event=${{ data: blob, mime_type: type }} />` : null}
    ${content ? html`<${Text} text=${content} label=${name || uri} />` : null}</div>`;
}

/** A text in a box; of a long one the beginning. @param {{text: string, label: string}} props */
function Text({ text, label }) {
  const [isWhole, setWhole] = useState(false);
  const isCut = text.length > LONG_TEXT && !isWhole;
  return html`<pre class="e-text" tabindex="0" role="region" aria-label=${label}>${isCut ? text.slice(0, LONG_TEXT) : text}</pre>
    ${isCut ? html`<button type="button" class="small" onClick=${() => setWhole(true)}>Show all</button>` : null}`;
}

/** @param {{event: any}} props */
function ToolUse({ event: { tool_name: name, input } }) {
  return html`<div><span class="tag">tool</span> <code>${name}</code> <${JsonTree} value=${input} open=${1} /></div>`;
}

/** @param {{event: any}} props */
function ToolResult({ event: { is_error: failed, output } }) {
  return html`<div class=${failed ? "e-failed" : ""}><span class="tag">${failed ? "tool failed" : "tool result"}</span><${Text} text=${String(output ?? "")} label="Result of the tool" /></div>`;
}

/** @param {{event: any}} props */
function Ended({ event }) {
  const { type: _, ...rest } = event;
  if (Object.keys(rest).length === 0) return html`<p class="e-end">✓ Done</p>`;
  if (Array.isArray(rest.content)) return html`<${Blocks} result=${rest} />`;
  if ("exit_code" in rest) {
    const text = `${exitText({ ...rest, duration_ms: undefined })}${rest.duration_ms === undefined ? "" : ` after ${duration(rest.duration_ms)}`}`;
    return html`<p class=${rest.exit_code ? "e-end e-failed" : "e-end"} title=${exitText(rest)}>${rest.exit_code ? "✕" : "✓"} ${text}</p>`;
  }
  const value = Object.keys(rest).length === 1 && "result" in rest ? rest.result : rest;
  return html`<div class="e-end"><span class="tag">result</span> <${Value} value=${value} label="Result" /></div>`;
}

/** The content of another server: its blocks in their order, and its value. @param {{result: any}} props */
function Blocks({ result: { content, value, is_error: failed } }) {
  return html`<div class=${failed ? "e-end e-failed" : "e-end"}><span class="tag">${failed ? "tool failed" : "result"}</span>
    ${content.map((/** @type {any} */ block) => html`<${EventView} event=${eventOf(block)} />`)}
    ${value === undefined || value === null ? null : html`<${Value} value=${value} label="Value" />`}</div>`;
}

/** Return a content block, a resource or a message of a prompt as the event that looks like it.
    @param {any} block @returns {any} */
function eventOf(block) {
  if (block.type === "text") return { type: "content", text: String(block.text ?? "") };
  if (block.type === "image" || block.type === "audio") return { type: block.type, data: String(block.data ?? ""), mime_type: block.mimeType };
  if (block.role && block.content) return { type: "message", role: block.role, content: eventOf(block.content) };
  const { uri, name, mimeType, text, blob } = block.resource || block;
  return { type: "resource", uri: String(uri ?? ""), name, mime_type: mimeType, content: text, blob };
}

/** How a run failed: its message, the lines below it such as a traceback, and its data.
    @param {{event: any}} props */
function Failed({ event }) {
  const [first, ...rest] = String(event.message).split("\n");
  const details = rest.join("\n").trim();
  const hasData = event.data !== undefined && event.data !== null && !(details && event.data.traceback);
  return html`<div class="e-end e-failed"><strong>✕ ${first}</strong>${namesCode(event) ? null : html` <code>${event.code}</code>`}
    ${details ? html`<${Text} text=${details} label="Details of the error" />` : null}${hasData ? html`<${JsonTree} value=${event.data} open=${1} />` : null}</div>`;
}

/** Whether a value is an object with a few short fields, which are one line. @param {any} value */
function isShort(value) {
  if (value === null || typeof value !== "object" || Array.isArray(value)) return false;
  const fields = Object.values(value);
  return fields.length > 0 && fields.length <= 4 && fields.every((each) => each === null || (typeof each !== "object" && String(each).length < 80));
}

/** A value: a text, fields in a line, a table for a list of flat objects, or a tree. @param {{value: any, label: string}} props */
export function Value({ value, label }) {
  if (typeof value === "string") return html`<${Text} text=${value} label=${label} />`;
  if (isShort(value)) return html`<span class="pairs">${Object.entries(value).map(([name, each]) => html`<span><span class="dim">${name}:</span> ${String(each)}</span> `)}</span>`;
  if (value === null || typeof value !== "object") return html`<code>${String(value)}</code>`;
  const columns = columnsOf(value);
  return columns ? html`<${Table} rows=${value} columns=${columns} label=${label} />` : html`<${JsonTree} value=${value} open=${2} />`;
}

/** Return the columns of a list of flat objects; null for other values. @param {any} value @returns {string[] | null} */
function columnsOf(value) {
  if (!Array.isArray(value) || value.length === 0) return null;
  /** @type {Set<string>} */
  const names = new Set();
  for (const each of value) {
    if (each === null || typeof each !== "object" || Array.isArray(each)) return null;
    for (const [name, field] of Object.entries(each)) {
      if (field !== null && typeof field === "object") return null;
      names.add(name);
    }
    if (names.size > MAX_COLUMNS) return null;
  }
  return names.size ? [...names] : null;
}

/** @param {{rows: any[], columns: string[], label: string}} props */
function Table({ rows, columns, label }) {
  const [shown, setShown] = useState(TABLE_ROWS);
  return html`<div class="e-table" tabindex="0" role="region" aria-label=${label}><table><thead><tr>${columns.map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
    <tbody>${rows.slice(0, shown).map((row) => html`<tr>${columns.map((name) => html`<td class=${typeof row[name] === "number" ? "number" : ""}>${row[name] === null || row[name] === undefined ? "" : String(row[name])}</td>`)}</tr>`)}</tbody></table>
    ${rows.length > shown ? html`<button type="button" class="small" onClick=${() => setShown(shown * 4)}>Show more of ${rows.length} rows</button>` : null}</div>`;
}

/** An event that has no look of its own. @param {{event: any}} props */
function Data({ event }) {
  const { type, ...rest } = event;
  const names = Object.keys(rest);
  const only = names.length === 1 ? rest[names[0]] : undefined;
  const value = only !== null && typeof only === "object" ? only : rest;
  return html`<div class="e-data"><span class="tag">${type}</span> ${names.length ? html`<${Value} value=${value} label=${type} />` : null}</div>`;
}

/** A generated file: its content, or the difference to the file that exists. @param {{event: any}} props */
function FileChange({ event }) {
  if (event.action === undefined || event.content === undefined) return html`<${Data} event=${event} />`;
  const { path, action, reason, diff, content } = event;
  return html`<div class="e-data"><span class="tag">${action}</span> <code>${path}</code>${reason ? html` <span class="dim">${reason}</span>` : null}<${Text} text=${diff ?? content} label=${diff === undefined ? path : `Difference of ${path}`} /></div>`;
}

/** @param {{event: any}} props */
function Message({ event: { role, content } }) {
  return html`<div><span class="tag">${role}</span> ${content.type === "content" ? html`<${Markdown} text=${content.text} />` : html`<${EventView} event=${content} />`}</div>`;
}

/** @type {Record<string, (props: {event: any}) => any>} */
const LOOKS = {
  content: ({ event }) => html`<${Markdown} text=${event.text} />`,
  thinking: ({ event }) => html`<div class="e-thinking"><span class="tag">thinking</span><${Markdown} text=${event.text} /></div>`,
  progress: Progress,
  image: Picture,
  display: Display,
  result: ({ event }) => html`<pre class="e-text e-value" tabindex="0" role="region" aria-label="Value" title=${event.kind}>${event.text}</pre>`,
  audio: Sound,
  resource: Resource,
  log: ({ event }) => html`<p class="e-log" data-level=${event.level}><span class="tag">${event.level}</span> ${event.message}</p>`,
  gap: ({ event }) => html`<p class="e-note">${gapText(event)}.</p>`,
  truncated: ({ event }) => html`<p class="e-failed">✕ The output was cut at ${event.limit_bytes} bytes, and the command was killed. Run it again with a larger max_output_bytes.</p>`,
  background: () => html`<p class="e-note">The run continues in the background.</p>`,
  restarted: ({ event }) => html`<p class="e-separator" role="separator"><span>Restarted · epoch ${event.epoch}. What follows may repeat lines above.</span></p>`,
  request: ({ event }) => html`<p class="e-asked"><span class="tag">? asked</span> ${readable(event.message)}</p>`,
  tool_use: ToolUse,
  tool_start: ({ event }) => html`<p class="e-note">The tool runs as <a href=${link("runs", event.run)}>run ${event.run}</a>.</p>`,
  tool_result: ToolResult,
  message: Message,
  file: FileChange,
  complete: Ended,
  error: Failed,
  cancelled: ({ event }) => html`<p class="e-end">■ Stopped${event.reason ? `: ${event.reason}` : ""}</p>`,
};
