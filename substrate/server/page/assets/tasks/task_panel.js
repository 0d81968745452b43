// Everything about one task: text, criteria, links, runs, notes and history, and what to do with it.

import { call } from "../core/connection.js";
import { html, useEffect, useState } from "../core/html.js";
import { link } from "../core/router.js";
import { Ago, Notice, RunLink } from "../ui/run_parts.js";
import { attempt } from "../ui/toast.js";
import { columnOf } from "./board.js";
import { Facts } from "./column.js";

/** @typedef {import("./board.js").Task} Task */
/** @typedef {import("./board.js").ColumnName} ColumnName */

/** The links of a task in words, from its own side and from that of the other. */
const SIDES = { blocks: ["Blocks", "Blocked by"], parent: ["Whole of", "Part of"], discovered_from: ["Found in", "Led to"], related: ["Related to", "Related to"] };

/** @param {{id: string, live: Task | undefined, onMove: (id: string, column: ColumnName) => void}} props */
export function TaskPanel({ id, live, onMove }) {
  const [task, setTask] = useState(/** @type {any} */ (null));
  const [error, setError] = useState("");
  const read = async () => {
    try {
      setTask(await call("tasks.get", { task_id: id }));
      setError("");
    } catch (failure) {
      setError(/** @type {Error} */ (failure).message);
    }
  };
  useEffect(() => {
    read();
  }, [id, live]); // the live task is a new object after every change
  if (error) return html`<${Notice} title="This task cannot be shown"><p>${error}</p><a class="button" href=${link("tasks")}>Show all tasks</a><//>`;
  if (task === null) return html`<p class="dim" role="status">Loading the task …</p>`;
  const change = (/** @type {object} */ fields) => attempt(() => call("tasks.update_task", { task_id: id, ...fields }).then(read));
  const check = (/** @type {number} */ at, /** @type {boolean} */ isMet) => {
    const acceptance = task.acceptance.map((/** @type {any} */ each, /** @type {number} */ index) => (index === at ? { ...each, met: isMet } : each));
    setTask({ ...task, acceptance }); // at once: the box must not flicker until the server answers
    change({ met: acceptance.flatMap((/** @type {any} */ each, /** @type {number} */ index) => (each.met ? [index + 1] : [])) });
  };
  return html`<header class="bar"><a class="button small back" href=${link("tasks")}>← Board</a><code class="grow">${task.id}</code><a class="button small close" href=${link("tasks")} aria-label="Close the task">✕</a></header>
    <p class="task-text">${task.description}</p>
    <p class="facts"><${Facts} task=${task} /></p>
    ${task.reason ? html`<p>Closed: ${task.reason}</p>` : null}
    <${Moves} task=${task} onMove=${onMove} />
    <label class="bar">Priority <select aria-label="Priority of the task" value=${String(task.priority ?? 2)} onChange=${(/** @type {any} */ event) => change({ priority: Number(event.target.value) })}>
      ${[0, 1, 2, 3, 4].map((each) => html`<option value=${String(each)}>P${each}${{ 0: " (urgent)", 2: " (normal)" }[each] || ""}</option>`)}</select></label>
    ${task.acceptance ? html`<h3>Acceptance criteria</h3><ul class="plain">${task.acceptance.map((/** @type {any} */ each, /** @type {number} */ at) => html`<li><label class="check"><input type="checkbox" checked=${each.met}
      onChange=${(/** @type {any} */ event) => check(at, event.target.checked)} /> ${each.text}</label></li>`)}</ul>` : null}
    ${task.links ? html`<h3>Links</h3><ul class="plain">${task.links.map((/** @type {any} */ each) => html`<${Link} id=${id} each=${each} />`)}</ul>` : null}
    ${task.refs ? html`<h3>Runs and diffs</h3><ul class="plain">${task.refs.map((/** @type {any} */ each) => html`<li><${Reference} uri=${each.uri} /></li>`)}</ul>` : null}
    <h3>Notes</h3>
    <ul class="plain notes">${(task.notes || []).map((/** @type {any} */ each) => html`<li><p>${each.text}</p><small>${each.author} · <${Ago} at=${each.at_ms} /></small></li>`)}</ul>
    <${NoteForm} key=${id} onAdd=${(/** @type {string} */ note) => change({ note })} />
    <${History} key=${`history ${id}`} id=${id} seq=${task.seq} />`;
}

/** @param {{task: any, onMove: (id: string, column: ColumnName) => void}} props */
function Moves({ task, onMove }) {
  const column = columnOf(task);
  const cancel = () => attempt(() => call("tasks.close_task", { task_id: task.id, outcome: "cancelled", force: true }));
  const button = (/** @type {string} */ text, /** @type {ColumnName} */ to, kind = "") => html`<button type="button" class=${kind} onClick=${() => onMove(task.id, to)}>${text}</button>`;
  return html`<div class="bar" role="group" aria-label="Move the task">
    ${column === "ready" ? button("Start", "in_progress", "primary") : null}
    ${column === "closed" ? button("Reopen", "ready") : button("Done", "closed", column === "in_progress" ? "primary" : "")}
    ${column === "in_progress" ? button("Release", "ready") : null}
    ${task.stuck ? button("Offer again", "ready") : null}
    ${column === "closed" ? null : html`<button type="button" class="danger" onClick=${cancel}>Cancel task</button>`}</div>`;
}

/** @param {{id: string, each: {kind: keyof typeof SIDES, source: string, target: string}}} props */
function Link({ id, each }) {
  const isSource = each.source === id;
  const other = isSource ? each.target : each.source;
  return html`<li>${SIDES[each.kind][isSource ? 0 : 1]} <a href=${link("tasks", other)}><code>${other}</code></a></li>`;
}

/** A run, an address on the web, or the text of any other URI. @param {{uri: string}} props */
function Reference({ uri }) {
  const run = /^run:\/\/(\d+)$/.exec(uri);
  if (run) return html`<${RunLink} run=${Number(run[1])} />`;
  return /^https?:\/\//.test(uri) ? html`<a href=${uri} rel="noreferrer noopener" target="_blank">${uri}</a>` : html`<code>${uri}</code>`;
}

/** @param {{onAdd: (note: string) => unknown}} props */
function NoteForm({ onAdd }) {
  const [text, setText] = useState("");
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    onAdd(text);
    setText("");
  };
  return html`<form class="note-form" onSubmit=${submit}><textarea aria-label="New note" rows="2" value=${text} onInput=${(/** @type {any} */ event) => setText(event.target.value)}></textarea>
    <button type="submit" disabled=${!text.trim()}>Add note</button></form>`;
}

/** @param {{id: string, seq: number}} props */
function History({ id, seq }) {
  const [isOpen, setOpen] = useState(false);
  const [changes, setChanges] = useState(/** @type {any[]} */ ([]));
  useEffect(() => {
    if (isOpen) attempt(async () => setChanges((await call("tasks.history", { task_id: id, limit: 500 })).changes));
  }, [id, seq, isOpen]);
  return html`<details class="history" onToggle=${(/** @type {any} */ event) => setOpen(event.target.open)}><summary>History</summary>
    <ol class="plain">${changes.map((each) => html`<li>${each.change.replace("_", " ")}${each.details?.why ? `: ${each.details.why}` : ""} <small>${each.actor} · <${Ago} at=${each.at_ms} /></small></li>`)}</ol></details>`;
}
