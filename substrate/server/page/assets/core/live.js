// What the page always knows: the runs of the server and their open questions.

import { call, watch } from "./connection.js";
import { computed, effect, signal } from "./html.js";
import { ACTIVE } from "./format.js";
import { maxMessage } from "./message_size.js";
import { methods } from "./schema.js";

/** A run as `plexus.watch` and `plexus.history` describe it.
    @typedef {{run: number, method: string, state: string, started_ms: number, last_seq: number,
      duration_ms?: number, outcome?: string, exit_code?: number, code?: string, summary?: string,
      client?: string, agent_session?: string, project?: string, bytes?: number, kept_until?: number,
      pinned?: boolean, parent?: number, system?: boolean,
      process?: {pid: number, project: string, host: string, id: number},
      progress?: {done: number, total?: number, message?: string}}} RunInfo */

/** An open question.
    @typedef {{approval_id: string, run: number, request: string, kind: string, message: string,
      schema?: any, options?: any[], details?: any, default?: any, method?: string, summary?: string,
      arguments?: any, client?: string, asked_ms?: number, expires_ms?: number}} Question */

/** The known runs by number. Read `version` to be updated. @type {Map<number, RunInfo>} */
export const runs = new Map();
/** Changes with every change of `runs`. */
export const version = signal(0);
/** The open questions, oldest first. @type {import("@preact/signals").Signal<Question[]>} */
export const questions = signal([]);
/** Whether this session may see questions. */
export const seesQuestions = signal(true);
/** Whether the first snapshot of runs has arrived. */
export const isKnown = signal(false);
/** The number of snapshots: one, and one after each lost connection. */
export const snapshots = signal(0);
/** Milliseconds in which the open questions are sent again after a lost connection. */
const QUESTIONS_MS = 1000;

/** Return a run if it is known, and update the caller when it changes. @param {number} run */
export function liveRun(run) {
  version.value;
  return runs.get(run);
}

/** The folder of the project that the server serves; empty until it is known. */
export const project = signal("");

/** The machine of the server; empty until it is known. Runs of other machines name theirs. */
export const host = signal("");

/** The runs in progress that people started, without the calls of the page itself. */
export const active = computed(() => {
  version.value;
  return [...runs.values()].filter((run) => ACTIVE.has(run.state) && !run.system);
});

/** Watch the server until the connection is closed for good. */
export function watchServer() {
  let isSnapshot = true;
  watch("plexus.watch", { interval_s: 0.5 }, {
    onBegin: () => {
      isSnapshot = true;
    },
    onEvent: (event) => {
      if (event.type !== "runs_changed") return;
      if (isSnapshot) {
        runs.clear(); // only now, so that the list is not blank in between
        isSnapshot = false;
        snapshots.value += 1;
      }
      for (const run of event.gone) runs.delete(run);
      for (const run of event.runs) runs.set(run.run, run);
      isKnown.value = true;
      version.value += 1;
    },
  });
  effect(() => {
    if (methods.value.has("health.check")) call("health.check").then(({ server, limits }) => {
      maxMessage.value = limits.message_bytes;
      project.value = server?.project || "";
      host.value = server?.host || "";
    }, () => {});
  });
  watch("approvals.watch", {}, {
    onBegin: () => {
      seesQuestions.value = true;
      // What is still open is sent again, as a new object. There is no event after the last one.
      const former = new Set(questions.peek());
      if (former.size) setTimeout(() => { questions.value = questions.peek().filter((each) => !former.has(each)); }, QUESTIONS_MS);
    },
    onEvent: (event) => {
      const others = questions.peek().filter((each) => each.approval_id !== event.approval_id);
      // A question keeps its place, so that a card does not move while it is used.
      if (event.type === "approval_pending" && others.length < questions.peek().length) questions.value = questions.peek().map((each) => (each.approval_id === event.approval_id ? event : each));
      else if (event.type === "approval_pending") questions.value = [...others, event];
      else if (event.type === "approval_settled") questions.value = others;
    },
    onRefused: () => {
      seesQuestions.value = false;
    },
  });
}
