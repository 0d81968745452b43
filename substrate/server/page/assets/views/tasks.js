// The task board: columns by state, live, with filters; a task is shown beside it.

import { call } from "../core/connection.js";
import { html, useEffect, useMemo, useRef, useState } from "../core/html.js";
import { setQuery } from "../core/router.js";
import { Board, COLUMNS, columnOf, move, sorted } from "../tasks/board.js";
import { Column } from "../tasks/column.js";
import { NewTask, TYPES } from "../tasks/new_task.js";
import { TaskPanel } from "../tasks/task_panel.js";
import { Notice } from "../ui/run_parts.js";
import { announce, attempt, toast } from "../ui/toast.js";

/** @typedef {import("../tasks/board.js").ColumnName} ColumnName */
/** @typedef {{id: string, column: ColumnName, message: string}} Taking */

/** @param {{parts: string[], query: URLSearchParams}} props */
export function View({ parts, query }) {
  const [chosen = ""] = parts;
  const project = query.get("project");
  const board = useMemo(() => new Board(project), [project]);
  useEffect(() => {
    board.open();
    return () => board.close();
  }, [board]);
  const [taking, setTaking] = useState(/** @type {Taking | null} */ (null));
  const [shown, setShown] = useState(/** @type {ColumnName} */ ("ready"));
  const tasks = [...board.tasks.value.values()];
  const columns = columnsOf(tasks.filter(filterOf(query)));

  const onMove = (/** @type {string} */ id, /** @type {ColumnName} */ column, force = false) => attempt(async () => {
    const task = board.tasks.peek().get(id);
    if (!task || columnOf(task) === column) return;
    try {
      await move(task, column, force);
      announce(`Moved to ${COLUMNS.find((each) => each.name === column)?.title}.`);
    } catch (failure) {
      const error = /** @type {import("../core/connection.js").RpcError} */ (failure);
      if (error.code !== "claimed") throw error;
      setTaking({ id, column, message: `${error.data?.holder || "An agent"} works on this task.` });
    }
  });

  if (board.refusal.value) return html`<${Notice} title="Tasks cannot be shown"><p>${board.refusal.value}</p><//>`;
  return html`<div class="tasks-view" data-open=${chosen ? "task" : "board"}>
    <div class="bar heading"><h1>Tasks</h1><span class="dim" role="status">${board.isKnown.value ? `${columns.in_progress.length} in progress, ${columns.ready.length} ready` : "Loading …"}</span><span class="grow"></span><${Filters} tasks=${tasks} query=${query} /></div>
    <${NewTask} project=${project} />
    <div class="column-choice" role="group" aria-label="Shown column">${COLUMNS.map((each) => html`<button type="button" aria-pressed=${String(shown === each.name)} onClick=${() => setShown(each.name)}>${each.title} ${columns[each.name].length}</button>`)}</div>
    <div class="task-split"><div class="task-columns" data-shown=${shown}>${COLUMNS.map((each) => html`<${Column} key=${each.name} column=${each} tasks=${columns[each.name]} chosen=${chosen} onMove=${onMove} />`)}</div>
      ${chosen ? html`<aside class="task-panel card" aria-label="Task" tabindex="0"><${TaskPanel} key=${chosen} id=${chosen} live=${board.tasks.value.get(chosen)} onMove=${onMove} /></aside>` : null}</div>
    ${taking ? html`<${TakeDialog} taking=${taking} onYes=${() => { setTaking(null); onMove(taking.id, taking.column, true); }} onNo=${() => setTaking(null)} />` : null}</div>`;
}

/** @param {import("../tasks/board.js").Task[]} tasks */
function columnsOf(tasks) {
  /** @type {Record<ColumnName, import("../tasks/board.js").Task[]>} */
  const columns = { blocked: [], ready: [], in_progress: [], closed: [] };
  for (const task of sorted(tasks)) columns[columnOf(task)].push(task);
  return columns;
}

/** Return whether a task matches the filters. @param {URLSearchParams} query */
function filterOf(query) {
  const text = (query.get("q") || "").toLowerCase();
  const label = query.get("label");
  const type = query.get("type");
  return (/** @type {import("../tasks/board.js").Task} */ task) => (!text || task.description.toLowerCase().includes(text) || task.id.includes(text))
    && (!label || Boolean(task.labels?.includes(label))) && (!type || (task.type || "task") === type);
}

/** @param {{tasks: import("../tasks/board.js").Task[], query: URLSearchParams}} props */
function Filters({ tasks, query }) {
  const [known, setKnown] = useState(/** @type {{current: string, projects: {project: string, open: number}[]}} */ ({ current: "", projects: [] }));
  useEffect(() => {
    call("tasks.projects").then(setKnown, (error) => error.code !== "lost" && toast(error.message));
  }, []);
  const labels = [...new Set(tasks.flatMap((task) => task.labels || []))].sort();
  const choice = (/** @type {string} */ name, /** @type {string} */ title, /** @type {{value: string, text: string}[]} */ options) => html`<select aria-label=${title} data-set=${query.get(name) ? "" : undefined} value=${query.get(name) || ""}
    onChange=${(/** @type {any} */ event) => setQuery({ [name]: event.target.value || null })}><option value="">${title}</option>${options.map((each) => html`<option value=${each.value}>${each.text}</option>`)}</select>`;
  const others = known.projects.filter((each) => each.project !== known.current);
  return html`<div class="bar filters" role="search"><input type="search" aria-label="Search tasks" placeholder="Search tasks …" value=${query.get("q") || ""} onInput=${(/** @type {any} */ event) => setQuery({ q: event.target.value || null })} />
    ${choice("label", "All labels", labels.map((each) => ({ value: each, text: `#${each}` })))}
    ${choice("type", "All types", TYPES.map((each) => ({ value: each, text: each })))}
    ${others.length || query.get("project") ? choice("project", "This project", [{ value: "*", text: "All projects" }, ...others.map((each) => ({ value: each.project, text: `${each.project} (${each.open})` }))]) : null}</div>`;
}

/** Ask before a task is taken from its holder. @param {{taking: Taking, onYes: () => void, onNo: () => void}} props */
function TakeDialog({ taking, onYes, onNo }) {
  const dialog = useRef(/** @type {HTMLDialogElement | null} */ (null));
  useEffect(() => dialog.current?.showModal(), []);
  return html`<dialog ref=${dialog} aria-labelledby="take" onClose=${onNo}><h2 id="take">${taking.message}</h2>
    <p>Take it anyway? The agent is refused when it closes the task.</p>
    <div class="bar"><button type="button" class="danger" onClick=${onYes}>Take it</button><button type="button" onClick=${onNo} autofocus>Leave it</button></div></dialog>`;
}
