// The view of one run: header, tabs, and what is known about it beside them.

import { ACTIVE, outcomeOf, shortId } from "../core/format.js";
import { html, useEffect, useState } from "../core/html.js";
import { isKnown } from "../core/live.js";
import { link, setQuery } from "../core/router.js";
import { Children } from "../run/children.js";
import { Events } from "../run/events.js";
import { Feed } from "../run/feed.js";
import { Header } from "../run/header.js";
import { RunLog } from "../run/log.js";
import { Output } from "../run/output.js";
import { useChildren, useRunInfo } from "../run/run_info.js";
import { OpenQuestions, SidePanel } from "../run/side_panel.js";
import { RunTail } from "../run/tail.js";
import { JsonTree } from "../ui/json_tree.js";
import { Notice, titleOf } from "../ui/run_parts.js";
import { title } from "../ui/title.js";

const TABS = [["output", "Output"], ["events", "Events"], ["arguments", "Arguments"], ["children", "Children"]];

/** One run. @param {{run: number, query: URLSearchParams}} props */
export function RunView({ run, query }) {
  const [{ log, feed }] = useState(() => {
    const made = new RunLog(run);
    return { log: made, feed: new Feed(run, made) };
  });
  useEffect(() => () => feed.stop(), []);
  const { info, refresh } = useRunInfo(run, log, feed.state.value);
  const isActive = info !== null && ACTIVE.has(info.state);
  const children = useChildren(run, isActive);
  useTitle(info);
  if (feed.state.value === "missing" && log.last === 0) return html`<${Missing} run=${run} error=${feed.error} />`;
  if (info === null) return html`<p class="dim" role="status">${isKnown.value ? "Loading the run…" : "Connecting…"}</p>`;
  const chosen = query.get("tab") || "output";
  const tab = TABS.some(([name]) => name === chosen) ? chosen : "output";
  const line = Number(query.get("line")) || 0;
  const opensAtEnd = isActive || ["failed", "lost"].includes(outcomeOf(info).kind); // where the reason is
  return html`<div class="run-view">
    <${Header} info=${info} refresh=${refresh} />
    <${OpenQuestions} info=${info} log=${log} />
    <section class="run-main" aria-label="Run">
      <${Tabs} tab=${tab} childCount=${children.length} />
      <div class="panel" role="tabpanel" id="run-panel" aria-labelledby=${`tab-${tab}`}>
        ${tab === "output" ? html`<${Output} log=${log} feed=${feed} isActive=${isActive} opensAtEnd=${opensAtEnd} line=${line} />`
        : tab === "events" ? html`<${Events} log=${log} isActive=${isActive} seq=${line} />`
        : tab === "arguments" ? html`<div class="arguments"><${Arguments} given=${info.arguments} recorded=${info.recorded} /></div>`
        : html`<${Children} info=${info} childRuns=${children} />`}
      </div>
    </section>
    <${SidePanel} info=${info} log=${log} childRuns=${children} />
  </div>`;
}

/** A small box with the last lines of a run. @param {{run: number, compact?: boolean}} props */
export function RunOutput({ run }) {
  return html`<${RunTail} key=${run} run=${run} />`;
}

/** Keep the title of the tab: the outcome and what the run does. @param {import("../run/run_info.js").RunDetails | null} info */
function useTitle(info) {
  const text = info ? `${outcomeOf(info).symbol} ${info.exit_code ? `${outcomeOf(info).text}: ` : ""}${titleOf(info)}` : "";
  useEffect(() => { title.value = text; }, [text]);
  useEffect(() => () => { title.value = ""; }, []);
}

/** @param {{tab: string, childCount: number}} props */
function Tabs({ tab, childCount }) {
  const choose = (/** @type {string} */ name) => setQuery({ tab: name === "output" ? null : name, line: null });
  const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const next = TABS[(TABS.findIndex(([name]) => name === tab) + step + TABS.length) % TABS.length][0];
    choose(next);
    document.getElementById(`tab-${next}`)?.focus();
  };
  return html`<div class="tabs" role="tablist" aria-label="Run" onKeyDown=${onKeyDown}>${TABS.map(([name, label]) => html`
    <button key=${name} type="button" role="tab" id=${`tab-${name}`} aria-controls="run-panel" aria-selected=${name === tab ? "true" : "false"} tabindex=${name === tab ? 0 : -1} onClick=${() => choose(name)}>${label}${name === "children" && childCount ? ` ${childCount}` : ""}</button>`)}</div>`;
}

/** @param {{given: any, recorded?: string}} props */
function Arguments({ given, recorded }) {
  if (given === undefined || given === null) return html`<p class="none">${recorded ? "This run has no recorded arguments." : "The arguments are not recorded yet."}</p>`;
  if (typeof given === "object" && Object.keys(given).length === 0) return html`<p class="none">This run was called without arguments.</p>`;
  return html`<${JsonTree} value=${given} open=${3} label="Arguments" /><p class="dim">Recorded without secrets.</p>`;
}

/** @param {{run: number, error: string}} props */
function Missing({ run, error }) {
  return html`<${Notice} title=${`Run ${shortId(run)} is not available`}><p>${error || `Unknown run ${run}.`}</p>
    <p>Its retention may have ended, or it belongs to another user or server. Pin a run to keep it.</p>
    <p><a class="button" href=${link("runs")}>Show all runs</a></p><//>`;
}
