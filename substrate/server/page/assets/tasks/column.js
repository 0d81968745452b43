// A column of the board and its cards. A card is dragged to another column, or moved with Alt and an
// arrow key, or with the buttons of its panel.

import { count } from "../core/format.js";
import { html, useState } from "../core/html.js";
import { link } from "../core/router.js";
import { COLUMNS } from "./board.js";

/** @typedef {import("./board.js").Task} Task */
/** @typedef {import("./board.js").ColumnName} ColumnName */

const FORMAT = "text/x-substrate-task";
/** Cards of a column that are shown at first: the page stays quick with thousands of tasks. */
const SHOWN = 100;

/** @param {{column: (typeof COLUMNS)[number], tasks: Task[], chosen: string, onMove: (id: string, column: ColumnName) => void}} props */
export function Column({ column, tasks, chosen, onMove }) {
  const [isOver, setOver] = useState(false);
  const [shown, setShown] = useState(SHOWN);
  const accepts = (/** @type {DragEvent} */ event) => column.name !== "blocked" && Boolean(event.dataTransfer?.types.includes(FORMAT));
  const heading = `column-${column.name}`;
  return html`<section class="task-column" data-column=${column.name} data-over=${isOver || undefined} aria-labelledby=${heading}
      onDragOver=${(/** @type {DragEvent} */ event) => { if (accepts(event)) { event.preventDefault(); setOver(true); } }}
      onDragLeave=${(/** @type {any} */ event) => event.currentTarget.contains(event.relatedTarget) || setOver(false)}
      onDrop=${(/** @type {DragEvent} */ event) => {
        setOver(false);
        if (!accepts(event)) return;
        event.preventDefault();
        onMove(/** @type {DataTransfer} */ (event.dataTransfer).getData(FORMAT), column.name);
      }}>
    <h2 id=${heading}>${column.title} <span class="dim">${count(tasks.length)}</span></h2>
    <ul class="plain">${tasks.slice(0, shown).map((task) => html`<${Card} key=${task.id} task=${task} column=${column.name} isChosen=${task.id === chosen} onMove=${onMove} />`)}</ul>
    ${tasks.length ? null : html`<p class="dim">${column.empty}</p>`}
    ${tasks.length > shown ? html`<button type="button" class="small" onClick=${() => setShown(shown + SHOWN)}>Show ${count(Math.min(SHOWN, tasks.length - shown))} more</button>` : null}</section>`;
}

/** @param {{task: Task, column: ColumnName, isChosen: boolean, onMove: (id: string, column: ColumnName) => void}} props */
function Card({ task, column, isChosen, onMove }) {
  const onKey = (/** @type {KeyboardEvent} */ event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!event.altKey || !step) return;
    event.preventDefault();
    const order = COLUMNS.filter((each) => each.name !== "blocked").map((each) => each.name);
    const from = column === "blocked" ? -1 : order.indexOf(column);
    const to = order[from + step];
    if (to) onMove(task.id, to);
  };
  return html`<li class="task-card" data-task=${task.id} data-chosen=${isChosen || undefined} draggable="true"
      onDragStart=${(/** @type {DragEvent} */ event) => {
        event.dataTransfer?.setData(FORMAT, task.id);
        if (event.dataTransfer) event.dataTransfer.effectAllowed = "move";
      }}>
    <a href=${link("tasks", task.id)} draggable=${false} aria-current=${isChosen ? "true" : undefined} aria-keyshortcuts="Alt+ArrowLeft Alt+ArrowRight" onKeyDown=${onKey}>
      <span class="text">${task.description}</span>
      <span class="facts"><${Facts} task=${task} /></span></a></li>`;
}

/** What is particular about a task, as short tags. @param {{task: Task}} props */
export function Facts({ task }) {
  const priority = task.priority ?? 2;
  return html`<span class="tag" data-priority=${priority} title="Priority, from 0 (urgent) to 4">P${priority}</span>
    ${task.type ? html`<span class="tag" data-type=${task.type}>${task.type}</span>` : null}
    ${task.stuck ? html`<span class="tag" data-kind="bad" title="Several agents left it unfinished. Release it to offer it again.">stuck</span>` : null}
    ${task.status === "cancelled" ? html`<span class="tag">cancelled</span>` : null}
    ${(task.labels || []).map((each) => html`<span class="tag">#${each}</span>`)}
    ${task.blocked_by?.length ? html`<small>waits for ${count(task.blocked_by.length)}</small>` : null}
    ${task.holder ? html`<small class="holder">${task.holder}</small>` : null}`;
}
