// The filters of the list of runs. They are in the address, so that links and reloads keep them.

import { call } from "../core/connection.js";
import { clientName, count } from "../core/format.js";
import { html, useEffect, useRef, useState } from "../core/html.js";
import { active, questions, runs, version } from "../core/live.js";
import { go, setQuery } from "../core/router.js";
import { methods } from "../core/schema.js";
import { onlyWithId, runNumber } from "./run_history.js";

/** @typedef {import("../core/live.js").RunInfo} RunInfo */
/** @typedef {import("./run_history.js").Filters} Filters */
/** @typedef {{running?: number, asking?: number, failed?: number, total?: number}} Counts */

const STATES = ["running", "asking", "failed"];
const RANGES = [["", "Last 24 h"], ["7d", "Last 7 days"], ["all", "All time"]];
const TYPING_MS = 250;
const COUNT_MS = 3000;

/** Return the filters of an address. @param {URLSearchParams} query @returns {Filters} */
export function filtersOf(query) {
  const text = (/** @type {string} */ name) => query.get(name) || "";
  return {
    state: STATES.includes(text("state")) ? text("state") : "", client: text("source"), method: text("method"),
    range: RANGES.some(([value]) => value === text("range")) ? text("range") : "", text: text("q").trim(), system: text("system") === "1",
  };
}

/** Whether anything but the time range is filtered. @param {Filters} filters */
export function isFiltered({ state, client, method, text }) {
  return Boolean(state || client || method || text);
}

/** Remove all filters. */
export function clearFilters() {
  setQuery({ state: null, source: null, method: null, q: null });
}

/** Return the number of runs of people since a time, updated while runs start and end. Empty if the
    server does not count. @param {number} since @param {string} name @returns {Counts} */
export function useCounts(since, name) {
  const [counts, setCounts] = useState(/** @type {Counts} */ ({}));
  const isKnown = methods.value.has("plexus.run_counts");
  version.value;
  let newest = 0;
  let ended = 0;
  for (const run of runs.values()) {
    newest = Math.max(newest, run.started_ms);
    if (run.duration_ms !== undefined) ended += 1;
  }
  const asked = useRef({ name: "", at: 0 });
  useEffect(() => {
    if (!isKnown) return undefined;
    const pause = asked.current.name === name ? Math.max(0, asked.current.at + COUNT_MS - Date.now()) : 0;
    const timer = setTimeout(() => {
      asked.current = { name, at: Date.now() };
      call("plexus.run_counts", { since: String(since) }).then((found) => asked.current.name === name && setCounts(found), () => {});
    }, pause);
    return () => clearTimeout(timer);
  }, [isKnown, name, newest, ended]);
  return counts;
}

/** The chips and selects. Sources and methods are those of the list.
    @param {{history: import("./run_history.js").RunHistory, counts: Counts, group: boolean}} props */
export function FilterBar({ history, counts, group }) {
  const { filters } = history;
  const chip = (/** @type {string} */ state, /** @type {string} */ label, /** @type {number | undefined} */ number) => html`<button type="button" aria-pressed=${filters.state === state ? "true" : "false"}
    onClick=${() => setQuery({ state: state || null })}>${label}${number === undefined ? "" : ` ${count(number)}`}</button>`;
  const select = (/** @type {string} */ name, /** @type {string} */ label, /** @type {string} */ value, /** @type {any} */ options) => html`<select aria-label=${label} value=${value} data-set=${value ? "true" : null}
    onChange=${(/** @type {any} */ event) => setQuery({ [name]: event.target.value || null })}>${options}</select>`;
  const option = (/** @type {string} */ value, /** @type {string} */ text) => html`<option key=${value} value=${value}>${text}</option>`;
  const clients = [...new Set([...[...history.clients].map(clientName), filters.client].filter(Boolean))].sort();
  const used = [...new Set([...history.methods, filters.method].filter(Boolean))].sort();
  const others = [...methods.value.values()].filter((each) => each.kind !== "resource" && !used.includes(each.name)).map((each) => each.name).sort();
  return html`<div class="chips filters" role="group" aria-label="Filters">
    ${chip("", "All", undefined)}${chip("running", "Running", active.value.length)}${chip("asking", "Needs answer", questions.value.length)}${chip("failed", "Failed", counts.failed)}
    ${select("source", "Source", filters.client, [option("", "Source: any"), ...clients.map((name) => option(name, `Source: ${name}`))])}
    ${select("method", "Method", filters.method, [option("", "Method: any"), ...used.map((name) => option(name, name)), others.length ? html`<optgroup key="others" label="Not in this list">${others.map((name) => option(name, name))}</optgroup>` : null])}
    ${select("range", "Time range", filters.range, RANGES.map(([value, text]) => option(value, text)))}
    <span class="toggles"><label class="check"><input type="checkbox" checked=${group} onChange=${(/** @type {any} */ event) => setQuery({ group: event.target.checked ? "session" : null })} /> Group by session</label>
    <label class="check"><input type="checkbox" checked=${filters.system} onChange=${(/** @type {any} */ event) => setQuery({ system: event.target.checked ? "1" : null })} /> Show system calls</label></span>
  </div>`;
}

/** The search field. Enter opens the run whose number or id was typed, or goes to the first row.
    @param {{text: string, rows: RunInfo[], toList: () => void}} props */
export function SearchField({ text, rows, toList }) {
  const [typed, setTyped] = useState(text);
  const timer = useRef(/** @type {ReturnType<typeof setTimeout> | undefined} */ (undefined));
  useEffect(() => setTyped((now) => (now.trim() === text ? now : text)), [text]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const apply = (/** @type {string} */ value) => setQuery({ q: value.trim() || null });
  const onInput = (/** @type {any} */ event) => {
    const { value } = event.target;
    setTyped(value);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => apply(value), TYPING_MS);
  };
  const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Escape" && typed) {
      setTyped("");
      apply("");
    } else if (event.key === "ArrowDown") toList();
    else if (event.key === "Enter") {
      clearTimeout(timer.current);
      const run = runNumber(typed.trim()) ?? onlyWithId(rows, typed.trim());
      if (run !== undefined) go("runs", run);
      else if (typed.trim() === text) toList();
      else apply(typed);
    } else return;
    event.preventDefault();
  };
  return html`<div class="search"><input type="search" aria-label="Search runs by command, output or id" aria-keyshortcuts="/" placeholder="Search command, output, id …" autocomplete="off" spellcheck=${false} value=${typed} onInput=${onInput} onKeyDown=${onKeyDown} />
    ${typed ? null : html`<kbd aria-hidden="true">/</kbd>`}</div>`;
}

/** Return the start of today, in milliseconds. */
export function midnight() {
  return new Date().setHours(0, 0, 0, 0);
}

