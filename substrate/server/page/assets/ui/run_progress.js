// The progress of the runs whose rows are in view. Lists of runs do not have it, so it is read from
// the newest items; a run without progress is asked less and less often.

import { call } from "../core/connection.js";
import { ACTIVE } from "../core/format.js";
import { useEffect, useState } from "../core/html.js";
import { methods } from "../core/schema.js";

/** @typedef {import("../core/live.js").RunInfo} RunInfo */
/** @typedef {{progress?: RunInfo["progress"], seq: number, at: number, pauseMs: number}} Known */

const LAST_ITEMS = 20;
const PAUSE_MS = 1500;
const MAX_PAUSE_MS = 30_000;
const MAX_RUNS = 500;

/** What is known about runs, the oldest first. @type {Map<number, Known>} */
const known = new Map();

/** Return the progress of a run, and update the caller while its row is shown. @param {RunInfo} info */
export function useProgress({ run, state, last_seq }) {
  const [, refresh] = useState(0);
  const isWanted = ACTIVE.has(state) && last_seq > 0 && methods.value.has("plexus.items");
  useEffect(() => {
    if (!isWanted || known.get(run)?.seq === last_seq) return undefined;
    const { at = 0, pauseMs = PAUSE_MS } = known.get(run) || {};
    const timer = setTimeout(() => read(run, last_seq).then(() => refresh((count) => count + 1)), Math.max(0, at + pauseMs - Date.now()));
    return () => clearTimeout(timer);
  }, [run, last_seq, isWanted]);
  return ACTIVE.has(state) ? known.get(run)?.progress : undefined;
}

/** @param {number} run @param {number} seq */
async function read(run, seq) {
  const before = known.get(run);
  /** @type {Known} */
  const next = { progress: before?.progress, seq, at: Date.now(), pauseMs: PAUSE_MS };
  known.delete(run);
  known.set(run, next);
  for (const oldest of known.keys()) {
    if (known.size <= MAX_RUNS) break;
    known.delete(oldest);
  }
  try {
    const { items } = await call("plexus.items", { run, after: Math.max(0, seq - LAST_ITEMS), limit: LAST_ITEMS });
    const found = items.findLast((/** @type {any} */ item) => item.event.type === "progress");
    if (found) next.progress = found.event;
    else next.pauseMs = Math.min(MAX_PAUSE_MS, (before?.pauseMs ?? PAUSE_MS) * 2);
  } catch {
    // The connection was lost, or the run is gone; the next item is the next occasion.
  }
}
