// What the page always knows while it is seen: all runs of the server, and what they ask. Both
// come over one connection, because a browser has few of them.

import { watchAll } from "./rpc.js";
import { doubtServer } from "./session.js";

/** All runs, by number, as `plexus.runs` describes them. */
export const runs = new Map();
/** Every question that is open, by its id. */
export const approvals = new Map();
/** Whether it is heard ("open" or "lost"), the numbers of the runs that tell it, and whether
    questions are told too, for which there is a scope. */
export const hearing = { state: "lost", own: new Set(), questions: true };

const listeners = new Set();
let stop = null;
let over = false;

/** Be told of every change; call what is returned to be told no more. */
export function onLive(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function tell() {
  for (const listener of listeners) listener();
}

function listen() {
  if (stop || over) return;
  stop = new AbortController();
  const calls = [["plexus.watch", { interval_s: 0.5 }], ["approvals.watch", {}]];
  watchAll(calls, (index, event) => {
    if (event.type === "runs_changed") {
      for (const number of event.gone) runs.delete(number);
      for (const run of event.runs) runs.set(run.run, run);
    } else if (event.type === "approval_pending") approvals.set(event.approval_id, event);
    else if (event.type === "approval_settled") approvals.delete(event.approval_id);
    else if (event.type === "error" && index === 1) hearing.questions = false;
    tell();
  }, {
    signal: stop.signal,
    onState: (state, own) => {
      hearing.state = state;
      hearing.own = new Set(own);
      hearing.questions = true;
      // Each time it begins with all there is.
      runs.clear();
      approvals.clear();
      tell();
    },
  });
}

function rest() {
  if (stop) stop.abort();
  stop = null;
  // From here on the page would not notice that the server is gone.
  doubtServer();
}

/** Stop listening for good: the session is over. */
export function stopLive() {
  over = true;
  rest();
}

/** Begin to listen; a page that is not visible does not. */
export function startLive() {
  document.addEventListener("visibilitychange", () => (document.hidden ? rest() : listen()));
  if (!document.hidden) listen();
}
