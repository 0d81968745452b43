// The list of all runs, live and recorded, with the open questions above it. A run number in the
// address shows that run instead; its module is loaded then.

import { attempt } from "../ui/toast.js";
import { call } from "../core/connection.js";
import { count } from "../core/format.js";
import { html, signal, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../core/html.js";
import { active, isKnown, questions, snapshots, version } from "../core/live.js";
import { go, link } from "../core/router.js";
import { FixedList } from "../ui/fixed_list.js";
import { QuestionCard } from "../ui/question_card.js";
import { useModule } from "../ui/question_controls.js";
import { FilterBar, SearchField, clearFilters, filtersOf, isFiltered, midnight, useCounts } from "../ui/run_filters.js";
import { RunHistory, groupBySession, rangeStart } from "../ui/run_history.js";
import { Notice } from "../ui/run_parts.js";
import { GroupRow, RunRow } from "../ui/run_row.js";

/** @typedef {import("../core/live.js").RunInfo} RunInfo */
/** @typedef {import("../ui/run_history.js").Group} Group */

const MAX_CARDS = 3;
/** Rows that are loaded at first, if filters leave few of a page. */
const FIRST_ROWS = 40;
const ROW_PX = 58;
const PHONE_ROW_PX = 66;

const phone = matchMedia("(max-width: 720px)");
const isPhone = signal(phone.matches);
phone.addEventListener("change", () => { isPhone.value = phone.matches; });

/** The list that was shown last; going back to it restores its rows and its position.
    @type {{key: string, history: RunHistory, top: number, current: number | null, isGrouped: boolean} | null} */
let last = null;

/** The Runs view. @param {{parts: string[], query: URLSearchParams}} props */
export function View({ parts, query }) {
  if (/^\d+$/.test(parts[0] || "")) return html`<${OneRun} key="run" parts=${parts} query=${query} />`;
  return html`<${RunList} key="list" query=${query} />`;
}

/** @param {{parts: string[], query: URLSearchParams}} props */
function OneRun({ parts, query }) {
  const module = useModule(() => import("./run.js"));
  return module ? html`<${module.RunView} key=${parts[0]} run=${Number(parts[0])} parts=${parts} query=${query} />` : null;
}

/** @param {{query: URLSearchParams}} props */
function RunList({ query }) {
  const filters = filtersOf(query);
  const isGrouped = query.get("group") === "session";
  const key = JSON.stringify(filters);
  const [round, setRound] = useState(0);
  const list = useMemo(() => {
    if (!last || last.key !== key || round > 0) last = { key, history: new RunHistory(filters), top: 0, current: null, isGrouped };
    return last;
  }, [key, round]);
  const { history } = list;
  if (list.isGrouped !== isGrouped) Object.assign(list, { isGrouped, top: 0 }); // the rows are elsewhere now
  const restart = () => setRound((number) => number + 1);
  const rows = useMemo(() => {
    history.sync();
    return history.rows();
  }, [history, version.value, history.changed.value, questions.value]);
  usePages(history, rows);
  useEffect(() => {
    if (history.isLarge) restart();
  }, [history.isLarge]);
  useEffect(() => (filters.system ? history.watchSystem() : undefined), [history]);
  const today = useCounts(midnight(), "today");
  const counts = useCounts(rangeStart(filters.range), filters.range || "24h");
  const view = useRef(/** @type {HTMLElement | null} */ (null));
  const toList = () => /** @type {HTMLElement | null} */ (view.current?.querySelector(".run-row a"))?.focus();
  return html`<div class="runs-view" ref=${view}>
    <div class="bar heading"><h1>Runs</h1><span class="dim" role="status">${count(active.value.length)} running${today.total === undefined ? "" : ` · ${count(today.total)} today`}</span>
      <span class="grow"></span><${SearchField} text=${filters.text} rows=${rows} toList=${toList} /></div>
    <${FilterBar} history=${history} counts=${counts} group=${isGrouped} />
    <${OpenQuestions} />
    ${rows.length ? html`<${Table} key=${`${key} ${round} ${isGrouped}`} list=${list} rows=${rows} isGrouped=${isGrouped} />` : html`<${Empty} history=${history} restart=${restart} />`}
    ${history.error && rows.length ? html`<p class="error" role="alert">Older runs could not be loaded: ${history.error} <button type="button" class="small" onClick=${() => history.load()}>Retry</button></p>` : null}
  </div>`;
}

/** Load the first page, more pages while filters leave few rows, and what was missed while the
    connection was lost. @param {RunHistory} history @param {RunInfo[]} rows */
function usePages(history, rows) {
  useEffect(() => {
    if (rows.length < FIRST_ROWS && !history.error) history.load();
  }, [history, rows.length, history.changed.value]);
  const first = useRef(snapshots.peek());
  useEffect(() => {
    if (snapshots.value > Math.max(1, first.current)) history.refresh();
    first.current = snapshots.value;
  }, [snapshots.value]);
}

function OpenQuestions() {
  const open = questions.value;
  if (!open.length) return null;
  return html`<section class="open-questions" aria-label="Open questions">
    ${open.slice(0, MAX_CARDS).map((question) => html`<${QuestionCard} key=${question.approval_id} question=${question} compact />`)}
    ${open.length > MAX_CARDS ? html`<a href=${link("questions")}>${open.length - MAX_CARDS} more ${open.length === MAX_CARDS + 1 ? "question" : "questions"}</a>` : null}</section>`;
}

/** @param {{history: RunHistory, restart: () => void}} props */
function Empty({ history, restart }) {
  if (history.error) {
    return html`<${Notice} title="The runs could not be loaded"><p role="alert">${history.error}</p><button type="button" onClick=${restart}>Retry</button><//>`;
  }
  if (!history.isEnd || !isKnown.value) return html`<p class="dim loading" role="status">Loading…</p>`;
  if (isFiltered(history.filters)) {
    return html`<${Notice} title="No run matches"><p>No run ${history.filters.range === "all" ? "" : "of this time "}matches the filters. Search finds whole words of the output, and parts of commands.</p><button type="button" onClick=${clearFilters}>Clear filters</button><//>`;
  }
  if (history.filters.range !== "all") {
    return html`<${Notice} title="No runs ${history.filters.range ? "in the last 7 days" : "in the last 24 hours"}"><p><a href=${link("tools")}>Run a tool</a>, or connect Claude Code with <code>substrate mcp install</code>. <a href="#/runs?range=all">Show all runs</a></p><//>`;
  }
  return html`<${Notice} title="No runs yet"><p><a href=${link("tools")}>Run a tool</a>, or connect Claude Code with <code>substrate mcp install</code>.</p><//>`;
}

/** @param {RunInfo} run */
const stop = (run) => attempt(() => call("plexus.cancel", { run: run.run, reason: "stopped in the browser" }));

/** The rows. One of them has the keyboard; it is known by its run, because rows move.
    @param {{list: NonNullable<typeof last>, rows: RunInfo[], isGrouped: boolean}} props */
function Table({ list, rows, isGrouped }) {
  const { history } = list;
  const element = useRef(/** @type {HTMLElement | null} */ (null));
  // The row is in `list` at once, and in the state for the next render: keys may come faster than renders.
  const [current, setState] = useState(list.current);
  const setCurrent = (/** @type {number} */ run) => {
    list.current = run;
    setState(run);
  };
  const [closed, setClosed] = useState(/** @type {Set<string>} */ (new Set()));
  /** @type {(RunInfo | Group)[]} */
  const entries = useMemo(() => (isGrouped ? groupBySession(rows).flatMap((group) => [group, ...(closed.has(group.key) ? [] : group.runs)]) : rows), [rows, isGrouped, closed]);
  const keyOf = (/** @type {number} */ index) => keyOfEntry(entries[index]);
  const height = isPhone.value ? PHONE_ROW_PX : ROW_PX;
  const at = current === null ? -1 : entries.findIndex((entry) => keyOfEntry(entry) === current);
  useScrollAnchor(element, list, entries, height);
  useEffect(() => {
    const onKey = (/** @type {KeyboardEvent} */ event) => {
      const target = /** @type {HTMLElement} */ (event.target);
      if (target.closest("input,textarea,select,dialog") || event.ctrlKey || event.metaKey || event.altKey) return;
      const isInside = element.current?.contains(target);
      const step = { j: 1, k: -1, ...(isInside ? { ArrowDown: 1, ArrowUp: -1 } : {}) }[event.key];
      if (event.key === "Enter" && list.current !== null && !target.closest("a,button")) go("runs", list.current);
      else if (step) {
        const from = list.current === null ? -1 : entries.findIndex((entry) => keyOfEntry(entry) === list.current);
        let next = from < 0 ? 0 : from + step;
        while (entries[next] && "runs" in entries[next]) next += step; // a header of a group
        const entry = entries[next];
        if (!entry) return;
        const { run } = /** @type {RunInfo} */ (entry);
        setCurrent(run);
        if (element.current) focusRow(element.current, run, next, height);
      } else return;
      event.preventDefault();
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, [entries, height]);
  const toggle = (/** @type {string} */ key) => setClosed((known) => {
    const next = new Set(known);
    if (!next.delete(key)) next.add(key);
    return next;
  });
  const row = (/** @type {number} */ index) => {
    const entry = entries[index];
    if ("runs" in entry) return html`<${GroupRow} group=${entry} isOpen=${!closed.has(entry.key)} toggle=${() => toggle(entry.key)} />`;
    return html`<${RunRow} run=${history.whole(entry)} isCurrent=${entry.run === current} isTabStop=${index === (at < 0 ? 0 : at)} stop=${stop} onFocus=${() => setCurrent(entry.run)} />`;
  };
  return html`<div class="run-table" ref=${element}>
    <div class="run-columns" aria-hidden="true"><span>Outcome</span><span>What</span><span>Source</span><span>Started</span><span>Duration</span><span>Output</span></div>
    <${FixedList} class="run-rows" count=${entries.length} height=${height} row=${row} keyOf=${keyOf} label="Runs" onEnd=${() => history.load()} /></div>`;
}

/** Scroll a row into view and focus it, once it is in the document.
    @param {HTMLElement} table @param {number} run @param {number} index @param {number} height */
function focusRow(table, run, index, height) {
  const box = /** @type {HTMLElement} */ (table.querySelector(".fixed-list"));
  const top = index * height;
  box.scrollTop = Math.min(top, Math.max(box.scrollTop, top + height - box.clientHeight));
  const focus = (/** @type {number} */ attempts) => {
    const found = /** @type {HTMLElement | null} */ (table.querySelector(`[data-run="${run}"] a`));
    if (found) found.focus({ preventScroll: true });
    else if (attempts > 0) requestAnimationFrame(() => focus(attempts - 1));
  };
  focus(10);
}

/** @param {RunInfo | Group} entry */
function keyOfEntry(entry) {
  return "runs" in entry ? entry.key : entry.run;
}

/** Keep the rows in view where they are while new runs are added above them, and restore the position
    of a list that is shown again. @param {{current: HTMLElement | null}} element
    @param {NonNullable<typeof last>} list @param {(RunInfo | Group)[]} entries @param {number} height */
function useScrollAnchor(element, list, entries, height) {
  const shown = useRef(entries);
  const anchor = useRef({ index: 0, key: /** @type {string | number} */ ("") });
  const mark = () => {
    const index = Math.min(shown.current.length - 1, Math.floor(list.top / height));
    anchor.current = { index, key: shown.current[index] ? keyOfEntry(shown.current[index]) : "" };
  };
  useLayoutEffect(() => {
    const box = /** @type {HTMLElement} */ (element.current?.querySelector(".fixed-list"));
    if (list.top) box.scrollTop = list.top;
    const onScroll = () => {
      list.top = box.scrollTop;
      mark();
    };
    box.addEventListener("scroll", onScroll);
    return () => box.removeEventListener("scroll", onScroll);
  }, [height]);
  useLayoutEffect(() => {
    const box = /** @type {HTMLElement} */ (element.current?.querySelector(".fixed-list"));
    const { index, key } = anchor.current;
    shown.current = entries;
    if (box.scrollTop > 0 && key !== "" && entries[index] && keyOfEntry(entries[index]) !== key) {
      const moved = entries.findIndex((entry) => keyOfEntry(entry) === key);
      if (moved >= 0) box.scrollTop += (moved - index) * height;
    }
    list.top = box.scrollTop;
    mark();
  }, [entries]);
}
