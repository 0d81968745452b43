// The table of measured files, sorted by any column. What was not measured is an empty cell, and comes last.

import { count } from "../core/format.js";
import { html, useState } from "../core/html.js";
import { setQuery } from "../core/router.js";

/** @typedef {import("./project.js").FileRow} FileRow */

/** Rows that are shown at first, and that are added. */
const ROWS = 100;
/** @type {{name: keyof FileRow, title: string, hint: string, isText?: boolean}[]} */
const COLUMNS = [
  { name: "path", title: "File", hint: "Path in the project", isText: true },
  { name: "language", title: "Language", hint: "By the extension of the name", isText: true },
  { name: "nloc", title: "Code lines", hint: "Lines without comments and blank lines" },
  { name: "functions", title: "Functions", hint: "Functions and methods" },
  { name: "max_cyclomatic", title: "Cyclomatic", hint: "Highest cyclomatic complexity of a function" },
  { name: "max_cognitive", title: "Cognitive", hint: "Highest cognitive complexity of a function" },
  { name: "maintainability_index", title: "Maintainability", hint: "Maintainability index, from 0 to 100" },
  { name: "commits", title: "Commits", hint: "Commits of the period that change the file" },
  { name: "hotspot_score", title: "Hotspot", hint: "Changes times complexity, from 0 to 1" },
  { name: "findings", title: "Findings", hint: "Complex functions, debt and unused code" },
];

/** @param {{files: FileRow[], query: URLSearchParams}} props */
export function FileTable({ files, query }) {
  const [shown, setShown] = useState(ROWS);
  const text = (query.get("q") || "").toLowerCase();
  const column = COLUMNS.find((each) => each.name === query.get("by")) || COLUMNS[4];
  const isRising = query.get("order") === "up";
  const rows = files.filter((file) => file.path.toLowerCase().includes(text)).sort(order(column, isRising));
  const sort = (/** @type {typeof column} */ chosen) => setQuery({
    by: chosen.name,
    order: (chosen === column ? !isRising : chosen.isText) ? "up" : null,
  });
  return html`<section aria-label="Files" class="analysis-files">
    <input type="search" aria-label="Search files" placeholder="Search files …" value=${query.get("q") || ""} onInput=${(/** @type {any} */ event) => setQuery({ q: event.target.value || null })} />
    <div class="analysis-table card" tabindex="0" role="region" aria-label="Measured files"><table>
      <thead><tr>${COLUMNS.map((each) => html`<th key=${each.name} scope="col" aria-sort=${each === column ? (isRising ? "ascending" : "descending") : "none"}>
        <button type="button" class="plain" title=${each.hint} onClick=${() => sort(each)}>${each.title}<span aria-hidden="true">${each === column ? (isRising ? " ↑" : " ↓") : ""}</span></button></th>`)}</tr></thead>
      <tbody>${rows.slice(0, shown).map((file) => html`<tr key=${file.path}>${COLUMNS.map(({ name, isText }) => (name === "path"
        ? html`<th scope="row" title=${file.path}><code>${file.path}</code></th>`
        : html`<td key=${name} class=${isText ? "" : "number"}>${cell(file[name])}</td>`))}</tr>`)}</tbody></table>
      ${rows.length === 0 ? html`<p class="none">${files.length ? "No file has this name." : "No file was measured yet."}</p>` : null}</div>
    <div class="bar"><small class="grow">${count(Math.min(shown, rows.length))} of ${count(rows.length)} files</small>
      ${rows.length > shown ? html`<button type="button" class="small" onClick=${() => setShown(shown + ROWS)}>Show ${Math.min(ROWS, rows.length - shown)} more</button>` : null}</div></section>`;
}

/** @param {string | number | undefined} value */
function cell(value) {
  return typeof value === "number" ? count(value) : value;
}

/** Return the order of a column; files without the figure are last in both directions.
    @param {{name: keyof FileRow, isText?: boolean}} column @param {boolean} isRising */
function order({ name, isText }, isRising) {
  const sign = isRising ? 1 : -1;
  return (/** @type {FileRow} */ one, /** @type {FileRow} */ two) => {
    const [first, second] = [one[name], two[name]];
    if (first === undefined || second === undefined) return Number(first === undefined) - Number(second === undefined) || byPath(one, two);
    const difference = isText ? compare(String(first), String(second)) : Number(first) - Number(second);
    return sign * difference || byPath(one, two);
  };
}

const compare = (/** @type {string} */ one, /** @type {string} */ two) => (one < two ? -1 : Number(one > two));
const byPath = (/** @type {FileRow} */ one, /** @type {FileRow} */ two) => compare(one.path, two.path);
