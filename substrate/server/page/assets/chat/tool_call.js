// A tool call of a model: its arguments, its run while it is in progress and afterwards, its result.

import { html, signal, useEffect, useState } from "../core/html.js";
import { questions } from "../core/live.js";
import { JsonTree } from "../ui/json_tree.js";
import { Outcome, RunLink } from "../ui/run_parts.js";

/** @typedef {import("./rows.js").Message} Message */

/** The component for the output of a run. It is loaded when a tool call is first opened. */
const output = signal(/** @type {any} */ (null));

/** The runs whose tool calls are unfolded: they stay so when the answer is stored. @type {Set<number>} */
const unfolded = new Set();

function loadOutput() {
  if (output.peek() === null) import("../views/run.js").then((module) => { output.value = module.RunOutput; }, () => {});
}

/** @param {string} text */
function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/** Return arguments in one line. @param {any} input */
function brief(input) {
  if (!input || typeof input !== "object") return String(input ?? "");
  return Object.entries(input).map(([name, value]) => `${name}=${JSON.stringify(value)}`).join(", ").slice(0, 200);
}

/** A tool call, folded. @param {{part: Message, isLive?: boolean}} props */
export function ToolCall({ part, isLive = false }) {
  const [isOpen, setOpen] = useState(() => part.run !== undefined && unfolded.has(part.run));
  const input = parsed(part.text || "{}");
  const isDone = part.output !== undefined || part.size !== undefined;
  const isAsked = isLive && questions.value.some((each) => each.run === part.run || each.details?.tool_use_id === part.tool_use_id);
  const state = isDone ? (part.is_error ? "error" : "complete") : isAsked ? "asking" : isLive ? "running" : "cancelled";
  useEffect(() => {
    if (!part.run) return;
    if (isOpen) {
      unfolded.add(part.run);
      loadOutput();
    } else unfolded.delete(part.run);
  }, [isOpen, part.run]);
  return html`<details class="tool-call" open=${isOpen} onToggle=${(/** @type {any} */ event) => setOpen(event.currentTarget.open)}>
    <summary><span class="tool-line"><${Outcome} run=${{ state }} /> <code>${part.tool_name}</code> <small class="cut">${brief(input)}</small></span></summary>
    ${isOpen ? html`<div class="tool-body">
      <h4>Arguments</h4><${JsonTree} value=${input} open=${1} />
      ${part.run ? html`<h4>Run</h4>${output.value ? html`<${output.value} run=${part.run} compact=${true} />` : html`<p><${RunLink} run=${part.run} /></p>`}` : null}
      ${part.output === undefined ? null : html`<details open=${!part.run}><summary>${part.is_error ? "Error that the model received" : "Result that the model received"}</summary>
        <pre class="tool-output" tabindex="0" role="region" aria-label=${`Result of ${part.tool_name}`}>${part.output || "(empty)"}</pre></details>`}</div>` : null}
  </details>`;
}
