// The runs that this page reads: those it began, which it must not lose, and those it looks at.
//
// The server stops a run whose caller does not come back within ten seconds. So a run of this page
// is read for as long as it goes on, whichever view is shown, and after a reload it is taken up.

import { RunLog } from "./runlog.js";

const OWNED = "substrate.owned";
/** How many runs that are over are kept to be looked at again. */
const KEPT = 4;

const logs = new Map();

function remember() {
  const owned = [...logs.values()].filter((log) => log.owned && !log.isOver && log.run !== null).map((log) => log.run);
  try {
    sessionStorage.setItem(OWNED, JSON.stringify(owned));
  } catch {
    // A browser that keeps nothing loses the runs on a reload, and that is all.
  }
}

function enter(log) {
  logs.set(log.run, log);
  let was = log.isOver;
  log.listen(() => {
    if (log.isOver !== was) {
      was = log.isOver;
      remember();
      tidy();
    }
  });
  remember();
  tidy();
}

function tidy() {
  const over = [...logs.values()].filter((log) => log.isOver && log.users === 0);
  for (const log of over.slice(0, Math.max(0, over.length - KEPT))) logs.delete(log.run);
}

/** Begin a run; resolves with its log once it has a number. Throws RpcError. */
export async function beginRun(method, params) {
  const log = new RunLog();
  log.users = 0;
  await log.begin(method, params);
  enter(log);
  return log;
}

/** The log of a run, read from its first item on. Give it back with `leaveRun`. */
export function openRun(run) {
  let log = logs.get(run);
  if (!log || log.state === "gone") {
    log = new RunLog();
    log.users = 0;
    log.follow(run);
    enter(log);
  }
  log.users += 1;
  return log;
}

/** Somebody looks at it no longer; if it is not ours, it is read no longer. */
export function leaveRun(log) {
  log.users -= 1;
  if (log.users === 0 && !log.owned) {
    log.close();
    logs.delete(log.run);
  }
  tidy();
}

/** The runs of this page, the newest first. */
export function ownRuns() {
  return [...logs.values()].filter((log) => log.owned).reverse();
}

/** After a reload: take up the runs that this page had begun. */
export function resumeOwn() {
  let owned = [];
  try {
    owned = JSON.parse(sessionStorage.getItem(OWNED) || "[]");
  } catch {
    return;
  }
  for (const run of owned) {
    if (logs.has(run)) continue;
    const log = new RunLog();
    log.users = 0;
    log.owned = true;
    log.follow(run);
    enter(log);
  }
}
