// The Python sessions of the server with their evaluations, as `python.watch` reports them.

import { watch } from "../core/connection.js";
import { batch, signal } from "../core/html.js";

/** @typedef {{session: string, state: "idle" | "busy", python: string, interpreter: string, directory: string,
      executions: number, started_ms: number, last_used_ms: number, run?: number}} Session */
/** @typedef {{session: string, execution: number, run: number, code: string, state: string, started_ms: number,
      client?: string, duration_ms?: number, error?: string}} Cell */

/** Evaluations that are kept for a session, like the server does. */
const MAX_CELLS = 200;

/** The known sessions by name. @type {import("@preact/signals").Signal<Map<string, Session>>} */
export const sessions = signal(new Map());
/** The evaluations of each session, oldest first. @type {import("@preact/signals").Signal<Map<string, Cell[]>>} */
export const cells = signal(new Map());

/** Watch the sessions while the view is shown. Returns a function that ends it. */
export function watchSessions() {
  return watch("python.watch", {}, {
    onBegin: () => batch(() => {
      sessions.value = new Map();
      cells.value = new Map();
    }),
    onEvent: (event) => {
      if (event.type === "session") sessions.value = new Map(sessions.peek()).set(event.session, event);
      else if (event.type === "cell") addCell(event);
      else if (event.type === "session_closed") batch(() => {
        sessions.value = without(sessions.peek(), event.session);
        cells.value = without(cells.peek(), event.session);
      });
    },
  });
}

/** @param {Cell} cell */
function addCell(cell) {
  const others = (cells.peek().get(cell.session) || []).filter((each) => each.run !== cell.run);
  const all = [...others, cell].sort((one, two) => one.execution - two.execution).slice(-MAX_CELLS);
  cells.value = new Map(cells.peek()).set(cell.session, all);
}

/** @template V @param {Map<string, V>} map @param {string} key */
function without(map, key) {
  const copy = new Map(map);
  copy.delete(key);
  return copy;
}
