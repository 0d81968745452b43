// When a run, its questions and the runs that it has called took place, as bars.

import { clock, duration, outcomeOf } from "../core/format.js";
import { html } from "../core/html.js";
import { link } from "../core/router.js";
import { now, titleOf } from "../ui/run_parts.js";

/** @typedef {import("../core/live.js").RunInfo} RunInfo */
/** @typedef {{key: string, label: string, from: number, to: number, kind: string, href?: string}} Bar */

/** Return when a run ended; now while it is in progress. @param {RunInfo} run */
export function endOf(run) {
  return run.duration_ms === undefined ? now.value : run.started_ms + run.duration_ms;
}

/** Return the bar of a run. @param {RunInfo} run @returns {Bar} */
export function barOf(run) {
  return { key: String(run.run), label: titleOf(run), from: run.started_ms, to: endOf(run), kind: outcomeOf(run).kind, href: link("runs", run.run) };
}

/** A bar in the span from `start` to `end`. @param {{bar: Bar, start: number, end: number}} props */
export function TimelineBar({ bar, start, end }) {
  const span = Math.max(1, end - start);
  const left = Math.max(0, Math.min(99, (100 * (bar.from - start)) / span));
  const width = Math.max(1, Math.min(100 - left, (100 * (bar.to - bar.from)) / span));
  return html`<div class="bar-track" title=${`${clock(bar.from)}, ${duration(bar.to - bar.from)}`}><div class="bar-fill" data-kind=${bar.kind} style=${{ marginLeft: `${left}%`, width: `${width}%` }}></div></div>`;
}

/** Bars below each other. The first is the whole. @param {{bars: Bar[]}} props */
export function Timeline({ bars }) {
  const start = Math.min(...bars.map((bar) => bar.from));
  const end = Math.max(...bars.map((bar) => bar.to));
  return html`<ul class="plain timeline">${bars.map((bar, index) => html`<li key=${bar.key}>
    <div class="cut">${index ? html`<span class="dim" aria-hidden="true">└ </span>` : null}${bar.href && index ? html`<a href=${bar.href} title=${bar.label}>${bar.label}</a>` : html`<span title=${bar.label}>${bar.label}</span>`}<span class="unseen">, ${duration(bar.to - bar.from)}</span></div>
    <${TimelineBar} bar=${bar} start=${start} end=${end} /></li>`)}</ul>`;
}
