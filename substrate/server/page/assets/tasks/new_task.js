// The form for a new task.

import { call } from "../core/connection.js";
import { html, useState } from "../core/html.js";
import { attempt } from "../ui/toast.js";

export const TYPES = ["task", "bug", "feature", "epic", "chore"];

/** @param {{project: string | null}} props */
export function NewTask({ project }) {
  const [text, setText] = useState("");
  const [type, setType] = useState("task");
  const [priority, setPriority] = useState("2");
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    attempt(async () => {
      // All projects are shown: the new task belongs to the one of the server.
      const where = project === null || project === "*" ? {} : { project };
      await call("tasks.create_task", { description: text, type, priority: Number(priority), ...where });
      setText("");
    });
  };
  return html`<form class="bar new-task" onSubmit=${submit}>
    <input type="text" class="grow" aria-label="New task" placeholder="New task …" value=${text} onInput=${(/** @type {any} */ event) => setText(event.target.value)} />
    <select aria-label="Type" value=${type} onChange=${(/** @type {any} */ event) => setType(event.target.value)}>${TYPES.map((each) => html`<option>${each}</option>`)}</select>
    <select aria-label="Priority" value=${priority} onChange=${(/** @type {any} */ event) => setPriority(event.target.value)}>${["0", "1", "2", "3", "4"].map((each) => html`<option value=${each}>P${each}</option>`)}</select>
    <button type="submit" class="primary" disabled=${!text.trim()}>Add task</button></form>`;
}
