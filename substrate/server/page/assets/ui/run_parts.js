// The parts that show a run in the same way everywhere: lists, headers, chat, questions.

import { ACTIVE, ago, duration, moment, outcomeOf, readable, shortId, sourceOf } from "../core/format.js";
import { html, signal } from "../core/html.js";
import { host, liveRun } from "../core/live.js";
import { link } from "../core/router.js";

/** @typedef {import("../core/live.js").RunInfo} RunInfo */

/** The current time, once a second; relative times follow it. */
export const now = signal(Date.now());
setInterval(() => {
  if (!document.hidden) now.value = Date.now();
}, 1000);

/** The outcome of a run, as a symbol and words. @param {{run: Pick<RunInfo, "state"> & Partial<RunInfo>}} props */
export function Outcome({ run }) {
  const { kind, symbol, text } = outcomeOf(run);
  const { done = 0, total = 0 } = run.progress || {};
  const percent = kind === "running" && total > 0 ? ` ${Math.min(100, Math.floor((100 * done) / total))} %` : "";
  return html`<span class="outcome" data-kind=${kind}><span aria-hidden="true">${symbol}</span> ${text}${percent}</span>`;
}

/** A time relative to now, with the exact time on hover. @param {{at: number}} props */
export function Ago({ at }) {
  return html`<time datetime=${new Date(at).toISOString()} title=${moment(at)}>${ago(at, now.value)}</time>`;
}

/** How long a run took or has taken. @param {{run: RunInfo}} props */
export function Took({ run }) {
  const ms = run.duration_ms ?? (ACTIVE.has(run.state) ? now.value - run.started_ms : 0);
  return html`<span title=${`${Math.round(ms)} ms`}>${duration(ms)}</span>`;
}

/** Where a run comes from. @param {{run: Partial<RunInfo>}} props */
export function Source({ run }) {
  const { name, detail } = sourceOf(run, host.value);
  return html`<span class="source" title=${`${run.client || name}${detail ? ` · ${detail}` : ""}`}><span>${name}</span><small>${detail}</small></span>`;
}

/** What a run does, as its title: the command or the arguments. @param {Partial<RunInfo>} run */
export function titleOf(run) {
  return readable(run.summary || run.method || `Run ${shortId(run.run || 0)}`);
}

/** A run in one line that links to it; it follows the live state. @param {{run: number, known?: RunInfo}} props */
export function RunLink({ run, known }) {
  const info = liveRun(run) || known;
  if (!info) return html`<a class="run-link" href=${link("runs", run)}>Run ${shortId(run)}</a>`;
  return html`<a class="run-link" href=${link("runs", run)}>
    <${Outcome} run=${info} /> <code>${titleOf(info)}</code> <small>${info.method} · ${shortId(run)}</small></a>`;
}

/** An empty or failed state with the next step. @param {{title: string, children?: any}} props */
export function Notice({ title, children }) {
  return html`<div class="notice"><h2>${title}</h2>${children}</div>`;
}
