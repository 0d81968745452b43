// The runs that a run has called, as a tree with bars on the time of the run.

import { ACTIVE } from "../core/format.js";
import { html, useState } from "../core/html.js";
import { link } from "../core/router.js";
import { Outcome, Took, titleOf } from "../ui/run_parts.js";
import { useChildren } from "./run_info.js";
import { TimelineBar, barOf, endOf } from "./timeline.js";

/** @typedef {import("../core/live.js").RunInfo} RunInfo */

/** @param {{info: RunInfo, childRuns: RunInfo[]}} props */
export function Children({ info, childRuns }) {
  if (childRuns.length === 0) return html`<p class="none">This run has called no other methods. Runs that it starts appear here.</p>`;
  return html`<div class="children"><${Level} runs=${childRuns} start=${info.started_ms} end=${Math.max(endOf(info), ...childRuns.map(endOf))} /></div>`;
}

/** @param {{runs: RunInfo[], start: number, end: number}} props */
function Level({ runs, start, end }) {
  return html`<ul class="plain">${runs.map((run) => html`<${Child} key=${run.run} run=${run} start=${start} end=${end} />`)}</ul>`;
}

/** @param {{run: RunInfo, start: number, end: number}} props */
function Child({ run, start, end }) {
  const [isOpen, setOpen] = useState(false);
  return html`<li><div class="child"><button type="button" class="plain" aria-expanded=${isOpen ? "true" : "false"} aria-label=${`Runs called by ${titleOf(run)}`} onClick=${() => setOpen(!isOpen)}>${isOpen ? "▾" : "▸"}</button>
      <${Outcome} run=${run} /><a class="cut" href=${link("runs", run.run)}><code>${titleOf(run)}</code></a><small class="cut">${run.method}</small><small class="took"><${Took} run=${run} /></small></div>
    <${TimelineBar} bar=${barOf(run)} start=${start} end=${end} />
    ${isOpen ? html`<${Inner} run=${run} start=${start} end=${end} />` : null}</li>`;
}

/** The runs of a child, read when it is opened. @param {{run: RunInfo, start: number, end: number}} props */
function Inner({ run, start, end }) {
  const found = useChildren(run.run, ACTIVE.has(run.state));
  return found.length ? html`<${Level} runs=${found} start=${start} end=${end} />` : html`<p class="none">No further runs.</p>`;
}
