// One run in the list: outcome, command, source, times and size, with a button that stops it.

import { ACTIVE, count, duration, outcomeOf, readable, restartsOf, shortId, size, sourceOf } from "../core/format.js";
import { html } from "../core/html.js";
import { host, liveRun, questions } from "../core/live.js";
import { link } from "../core/router.js";
import { useFailure } from "./run_history.js";
import { useProgress } from "./run_progress.js";
import { Ago, Outcome, Source, Took, titleOf } from "./run_parts.js";

/** @typedef {import("../core/live.js").RunInfo} RunInfo */

/** A run as a link with a button beside it. `isCurrent` marks the row that has the keyboard.
    @param {{run: RunInfo, isCurrent: boolean, isTabStop: boolean, stop: (run: RunInfo) => void, onFocus: () => void}} props */
export function RunRow({ run: given, isCurrent, isTabStop, stop, onFocus }) {
  const progress = useProgress(given);
  const run = progress ? { ...given, progress } : given;
  const isActive = ACTIVE.has(run.state);
  return html`<div class="run-row" data-run=${run.run} data-current=${isCurrent ? "true" : null} onfocusin=${onFocus}>
    <a href=${link("runs", run.run)} tabindex=${isTabStop ? 0 : -1}>
      <${Outcome} run=${run} />
      <span class="what"><span class="mono cut" title=${titleOf(run)}>${titleOf(run)}</span><small class="cut"><${Subtitle} run=${run} /></small></span>
      <${Source} run=${run} />
      <span class="when"><${Ago} at=${run.started_ms} /></span>
      <span class="took"><${Took} run=${run} /></span>
      <span class="size" title=${run.bytes === undefined ? undefined : `${count(run.bytes)} bytes`}>${run.bytes === undefined ? "" : size(run.bytes)}</span>
    </a>
    ${isActive ? html`<button type="button" class="small danger" tabindex=${isTabStop ? 0 : -1} disabled=${run.state === "cancelling"} aria-label=${`Stop run ${shortId(run.run)}`} onClick=${() => stop(run)}>Stop</button>` : null}
  </div>`;
}

/** The second line: the method, the id, and what matters most about the run now. @param {{run: RunInfo}} props */
function Subtitle({ run }) {
  const more = outcomeOf(run).kind === "failed" ? html`<${Failure} run=${run} />` : moreOf(run);
  const { done = 0, total = 0, message = "" } = (ACTIVE.has(run.state) && run.progress) || {};
  const caller = run.parent ? liveRun(run.parent) : undefined;
  return html`${run.summary ? `${run.method} · ` : ""}<span title=${`Run ${run.run}`}>${shortId(run.run)}</span>${caller ? ` · called by ${caller.method}` : run.parent ? ` · called by ${shortId(run.parent)}` : ""}
    ${total > 0 ? html` · <span class="meter" role="img" aria-label=${`${done} of ${total}`}><span style=${{ width: `${Math.min(100, (100 * done) / total)}%` }}></span></span>` : null}
    ${message ? ` · ${message}` : ""}${typeof more === "string" && more ? ` · ${more}` : more}`;
}

/** Why a run has failed. @param {{run: RunInfo}} props */
function Failure({ run }) {
  const text = readable(useFailure(run) || run.code || "");
  return text ? ` · ${text}` : null;
}

/** @param {RunInfo & {reason?: string, epoch?: number}} run */
function moreOf(run) {
  const { kind } = outcomeOf(run);
  if (kind === "asking") return readable(questions.value.find((each) => each.run === run.run)?.message || "");
  if (kind === "stopped") return run.reason === "stopped in the browser" ? "by you" : run.reason || "";
  return restartsOf(run) ? `restarted (epoch ${run.epoch})` : "";
}

/** The header of a group: the session of an agent and the number of its runs.
    @param {{group: import("./run_history.js").Group, isOpen: boolean, toggle: () => void}} props */
export function GroupRow({ group, isOpen, toggle }) {
  const [newest] = group.runs;
  const { name, detail } = sourceOf(newest, host.value);
  const counts = [`${count(group.runs.length)} ${group.runs.length === 1 ? "run" : "runs"}`, group.running ? `${group.running} running` : "", group.failed ? `${group.failed} failed` : ""];
  const last = group.runs[group.runs.length - 1];
  return html`<button type="button" class="run-group" aria-expanded=${isOpen ? "true" : "false"} onClick=${toggle}>
    <span aria-hidden="true">${isOpen ? "▾" : "▸"}</span>
    <span class="what"><strong class="cut">${group.session ? `${name} · session ${group.session.slice(0, 8)}` : "Without an agent session"}</strong>
      <small class="cut">${group.session ? `${detail.split(" · ")[0]} · ` : ""}${counts.filter(Boolean).join(" · ")}</small></span>
    ${newest === last ? null : html`<small title="From the first to the last run shown">${duration(newest.started_ms - last.started_ms)}</small>`}</button>`;
}
