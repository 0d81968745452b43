// The tasks of a project as they are now, and how a person moves them between columns.

import { call, watch } from "../core/connection.js";
import { signal } from "../core/html.js";

/** A task as `tasks.watch` describes it.
    @typedef {{id: string, description: string, status: string, priority?: number, type?: string,
      labels?: string[], holder?: string, stuck?: boolean, blocked_by?: string[],
      reason?: string}} Task */

/** @typedef {"blocked" | "ready" | "in_progress" | "closed"} ColumnName */

/** The columns, in the order of work. A task cannot be moved to "blocked": links decide that.
    @type {{name: ColumnName, title: string, empty: string}[]} */
export const COLUMNS = [
  { name: "blocked", title: "Blocked", empty: "No task waits for another." },
  { name: "ready", title: "Ready", empty: "No task is ready." },
  { name: "in_progress", title: "In progress", empty: "No one works on a task." },
  { name: "closed", title: "Closed", empty: "No task is closed." },
];

/** Return the column of a task. @param {Task} task @returns {ColumnName} */
export function columnOf(task) {
  if (task.status === "in_progress") return "in_progress";
  if (task.status !== "pending") return "closed";
  return task.blocked_by?.length || task.stuck ? "blocked" : "ready";
}

/** The live tasks of a project; "*" for all projects. */
export class Board {
  /** @param {string | null} project */
  constructor(project) {
    this.project = project;
    /** @type {import("@preact/signals").Signal<Map<string, Task>>} */
    this.tasks = signal(new Map());
    this.isKnown = signal(false);
    /** Why the tasks cannot be seen. */
    this.refusal = signal("");
    this.end = () => {};
  }

  open() {
    let isFirst = true;
    this.end = watch("tasks.watch", this.project === null ? {} : { project: this.project }, {
      onBegin: () => { isFirst = true; },
      onEvent: (event) => {
        if (event.type !== "tasks_changed") return;
        const next = isFirst && event.snapshot ? new Map() : new Map(this.tasks.peek());
        isFirst = false;
        for (const task of event.tasks) {
          if (task.status === "deleted") next.delete(task.id);
          else next.set(task.id, task);
        }
        this.tasks.value = next;
        this.isKnown.value = true;
      },
      onRefused: (error) => { this.refusal.value = error.message; },
    });
  }

  close() {
    this.end();
  }
}

/** Move a task to a column. `force` takes it from its holder. Throws RpcError.
    @param {Task} task @param {ColumnName} column @param {boolean} [force] */
export async function move(task, column, force = false) {
  const id = task.id;
  if (column === "closed") {
    await call("tasks.close_task", { task_id: id, force });
    return;
  }
  // A closed or stuck task is offered again before a person starts it.
  if (column === "ready" || task.stuck || columnOf(task) === "closed") await call("tasks.update_task", { task_id: id, status: "pending", force });
  if (column === "in_progress") await call("tasks.update_task", { task_id: id, status: "in_progress", force });
}

/** Sort by priority; equal ones by age, closed ones the latest first. Ids have no order, so the order
    of arrival counts. @param {Task[]} tasks */
export function sorted(tasks) {
  return tasks.sort((left, right) => (left.priority ?? 2) - (right.priority ?? 2));
}
