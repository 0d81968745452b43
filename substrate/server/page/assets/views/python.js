// The view of Python sessions: the evaluations of agents and people as cells, and a field for more.

import { call, subscribe } from "../core/connection.js";
import { clientName, duration } from "../core/format.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "../core/html.js";
import { go, link } from "../core/router.js";
import { load, save } from "../core/storage.js";
import { cells, sessions, watchSessions } from "../notebook/sessions.js";
import { Variables } from "../notebook/variables.js";
import { RunTail } from "../run/tail.js";
import { Ago, Notice, Outcome } from "../ui/run_parts.js";
import { attempt, toast } from "../ui/toast.js";

/** @typedef {import("../notebook/sessions.js").Cell} Cell */

const DEFAULT = "default";
/** Cells that are shown at first, and the rows of output in each. */
const SHOWN = 30;
const LINES = 400;
/** The state of a run that a cell's state stands for. */
const STATES = { running: "running", succeeded: "complete", failed: "error", interrupted: "cancelled" };

/** `#/python`, `#/python/SESSION`. @param {{parts: string[]}} props */
export function View({ parts: [name = DEFAULT] }) {
  useEffect(watchSessions, []);
  const known = sessions.value.get(name);
  const shown = cells.value.get(name) || [];
  return html`<${Head} name=${name} />
    <div class="notebook"><div class="notebook-main">
      <${Cells} key=${name} cells=${shown} />
      <${Editor} key=${`editor ${name}`} session=${name} isBusy=${known?.state === "busy"} /></div>
      ${known ? html`<aside class="notebook-side"><${Facts} session=${known} /><${Variables} session=${name} version=${`${known.executions} ${known.state}`} /></aside>` : null}</div>`;
}

/** @param {{name: string}} props */
function Head({ name }) {
  const known = sessions.value.get(name);
  const names = [...new Set([...sessions.value.keys(), name])].sort();
  const act = (/** @type {string} */ method, /** @type {string} */ done) => attempt(async () => {
    await call(method, { session: name });
    toast(done);
  });
  const add = () => {
    const given = prompt("Name of the new session");
    if (given?.trim()) go("python", given.trim().slice(0, 64));
  };
  return html`<div class="bar"><h1>Python</h1>
    <label class="session-choice">Session <select aria-label="Session" value=${name} onChange=${(/** @type {any} */ event) => go("python", event.target.value)}>${names.map((each) => html`<option key=${each} value=${each}>${each}</option>`)}</select></label>
    <button type="button" class="small" onClick=${add}>New session</button><span class="grow"></span>
    ${known ? html`<button type="button" disabled=${known.state !== "busy"} onClick=${() => act("python.interrupt", "Interrupted")}>Interrupt</button>
      <button type="button" class="danger" title="Start a new process, without the variables" onClick=${() => act("python.restart", "Restarted")}>Restart</button>` : null}</div>`;
}

/** @param {{session: import("../notebook/sessions.js").Session}} props */
function Facts({ session }) {
  return html`<section class="card" aria-label="Session"><dl class="facts"><dt>State</dt><dd>${session.state}</dd><dt>Python</dt><dd>${session.python || "not started"}</dd>
    <dt>Program</dt><dd><code>${session.interpreter}</code></dd>${session.directory ? html`<dt>Folder</dt><dd><code>${session.directory}</code></dd>` : null}</dl></section>`;
}

/** @param {{cells: Cell[]}} props */
function Cells({ cells: all }) {
  const [count, setCount] = useState(SHOWN);
  const list = useRef(/** @type {HTMLDivElement | null} */ (null));
  const isAtEnd = useRef(true);
  useLayoutEffect(() => {
    const element = list.current;
    if (!element) return undefined;
    // Output arrives after the cells, so the end is followed as the content grows.
    const observer = new ResizeObserver(() => { if (isAtEnd.current) element.scrollTop = element.scrollHeight; });
    for (const child of element.children) observer.observe(child);
    return () => observer.disconnect();
  });
  const onScroll = (/** @type {any} */ { currentTarget: element }) => {
    isAtEnd.current = element.scrollHeight - element.scrollTop - element.clientHeight < 40;
  };
  if (!all.length) return html`<${Notice} title="No evaluations yet"><p>Type Python below and press <kbd>Ctrl</kbd> <kbd>Enter</kbd>. Agents that call <code>python.evaluate</code> with this session share its variables with you, and their evaluations appear here.</p><//>`;
  return html`<div class="cells" ref=${list} onScroll=${onScroll} tabindex="0" role="log" aria-label="Evaluations"><div class="cells-inner">
    ${all.length > count ? html`<button type="button" class="small" onClick=${() => setCount(count + SHOWN)}>Show earlier evaluations</button>` : null}
    ${all.slice(-count).map((cell) => html`<${CellView} key=${cell.run} cell=${cell} />`)}</div></div>`;
}

/** @param {{cell: Cell}} props */
function CellView({ cell }) {
  return html`<article class="card cell" data-state=${cell.state} aria-label=${`Evaluation ${cell.execution}`}>
    <header class="cell-head"><span class="dim">[${cell.execution}]</span> <${Outcome} run=${{ state: STATES[/** @type {keyof typeof STATES} */ (cell.state)] }} />
      <small class="grow">${cell.client ? clientName(cell.client) : "unnamed client"} · <${Ago} at=${cell.started_ms} />${cell.duration_ms === undefined ? "" : ` · ${duration(cell.duration_ms)}`}</small>
      <a href=${link("runs", cell.run)}><small>Run</small></a></header>
    <pre class="cell-code" tabindex="0" role="region" aria-label="Code">${cell.code}</pre>
    <${RunTail} run=${cell.run} lines=${LINES} isBare=${true} /></article>`;
}

/** @param {{session: string, isBusy: boolean}} props */
function Editor({ session, isBusy }) {
  const draft = `python.draft.${session}`;
  const [code, setCode] = useState(() => load(draft, ""));
  const change = (/** @type {string} */ text) => {
    setCode(text);
    save(draft, text);
  };
  const run = () => {
    if (!code.trim()) return;
    subscribe("python.evaluate", { expression: code, session, _on_disconnect: "keep" }, {
      onStart: () => change(""),
      onItem: () => {},
      onError: (error) => toast(error.message),
    });
  };
  const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey || event.shiftKey) && !event.isComposing) {
      event.preventDefault();
      run();
    }
  };
  return html`<form class="composer" aria-label="New evaluation" onSubmit=${(/** @type {Event} */ event) => { event.preventDefault(); run(); }}>
    <textarea class="code" rows=${Math.min(12, Math.max(3, code.split("\n").length))} aria-label="Python code" spellcheck=${false} autocapitalize="off" autocomplete="off" placeholder="1 + 1" value=${code}
      onInput=${(/** @type {any} */ event) => change(event.target.value)} onKeyDown=${onKeyDown}></textarea>
    <div class="bar"><small class="grow">${isBusy ? "Runs after the evaluation in progress." : "Ctrl+Enter evaluates."}</small>
      <button type="submit" class="primary" disabled=${!code.trim()}>Evaluate</button></div></form>`;
}
