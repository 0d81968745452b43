// What is known about one run: its live state, its record, and what its log has shown.

import { call } from "../core/connection.js";
import { ACTIVE } from "../core/format.js";
import { useEffect, useState } from "../core/html.js";
import { liveRun, runs, version } from "../core/live.js";

/** @typedef {import("../core/live.js").RunInfo} RunInfo */
/** A run with what `plexus.inspect` adds.
    @typedef {RunInfo & {arguments?: any, principal?: string, ended_ms?: number, epoch?: number, recorded?: string, watchers?: string[]}} RunDetails */

const MAX_CHILDREN = 200;
/** How often the clients that watch a run in progress are read. */
const WATCHERS_MS = 5000;
/** What the recorded arguments have instead of a secret, or of what was too long. */
const INCOMPLETE = /\[redacted\]|\[\.\.\. \d+ characters omitted \.\.\.\]|"\.\.\.|\[\d+ (?:characters|bytes)\]|\[(?:object|list|integer) of \d+/;

/** Whether recorded arguments are those of the call, so that it can be repeated. @param {any} given */
export function areComplete(given) {
  return given !== undefined && given !== null && !INCOMPLETE.test(JSON.stringify(given));
}

/** Return what is known about a run, and a function that reads its record again.
    @param {number} run @param {import("./log.js").RunLog} log @param {string} state of the feed
    @returns {{info: RunDetails | null, refresh: () => void}} */
export function useRunInfo(run, log, state) {
  const [details, setDetails] = useState(/** @type {RunDetails | null} */ (null));
  const [round, setRound] = useState(0);
  const live = liveRun(run);
  log.facts.value;
  useEffect(() => {
    let isOver = false;
    call("plexus.inspect", { run }).then((found) => { if (!isOver) setDetails(found); }, () => {});
    return () => { isOver = true; };
  }, [run, round, live?.state, state]);
  const isActive = live !== undefined && ACTIVE.has(live.state);
  useEffect(() => {
    if (!isActive) return undefined;
    const timer = setInterval(() => document.hidden || setRound((number) => number + 1), WATCHERS_MS);
    return () => clearInterval(timer);
  }, [isActive]);
  const refresh = () => setRound((number) => number + 1);
  if (!details && !live) return { info: null, refresh };
  const { terminal } = log;
  /** @type {any} */
  const info = { ...details, ...live, pinned: details?.pinned ?? live?.pinned };
  if (!live && details) info.state = details.state;
  if (terminal) {
    info.state = terminal.type;
    info.exit_code = terminal.exit_code;
    info.code = terminal.type === "error" ? terminal.code : undefined;
  } else if (log.progress) info.progress = log.progress;
  if (!ACTIVE.has(info.state)) info.duration_ms = details?.duration_ms ?? live?.duration_ms;
  return { info, refresh };
}

/** Return the runs that a run has called, oldest first. @param {number} run @param {boolean} isActive @returns {RunInfo[]} */
export function useChildren(run, isActive) {
  const [recorded, setRecorded] = useState(/** @type {RunInfo[]} */ ([]));
  version.value;
  const live = [...runs.values()].filter((each) => each.parent === run);
  const key = live.map((each) => `${each.run}${each.state}`).join(" ");
  useEffect(() => {
    let isOver = false;
    call("plexus.history", { parent: run, limit: MAX_CHILDREN, all_projects: true }).then((found) => { if (!isOver) setRecorded(found); }, () => {});
    return () => { isOver = true; };
  }, [run, isActive, key]);
  const all = new Map([...recorded, ...live].map((each) => [each.run, each]));
  return [...all.values()].sort((one, two) => one.started_ms - two.started_ms);
}
