// A JSON value as a tree. What is folded is not in the document; a large list or object is shown in
// slices, so that any size opens at once.

import { count } from "../core/format.js";
import { html, useState } from "../core/html.js";
import { copy } from "./toast.js";

const SLICE = 100;
/** Characters of a text that are shown at first. */
const LONG_TEXT = 2000;

/** A value as a tree that is open to a depth of `open`. @param {{value: any, open?: number, label?: string}} props */
export function JsonTree({ value, open = 1, label }) {
  return html`<div class="json" role="group" aria-label=${label || "JSON"}>
    <button type="button" class="plain small json-copy" onClick=${() => copy(JSON.stringify(value, null, 2), "Copied as JSON")}>Copy<span class="unseen"> ${label || "JSON"}</span></button>
    <${Node} value=${value} open=${open} /></div>`;
}

/** @param {{value: any, open: number, name?: string}} props */
function Node({ value, open, name }) {
  const key = name === undefined ? null : html`<span class="j-key">${name}: </span>`;
  if (value === null || typeof value !== "object") return html`<div class="j-leaf">${key}<${Leaf} value=${value} /></div>`;
  const isList = Array.isArray(value);
  const names = isList ? value.length : Object.keys(value);
  const length = isList ? value.length : /** @type {string[]} */ (names).length;
  if (length === 0) return html`<div class="j-leaf">${key}${isList ? "[]" : "{}"}</div>`;
  return html`<${Fold} open=${open > 0} summary=${html`${key}<span class="j-hint">${isList ? `[${count(length)}]` : keysOf(/** @type {string[]} */ (names))}</span>`}
    content=${() => html`<${Slice} value=${value} names=${isList ? null : names} from=${0} to=${length} open=${open} />`} />`;
}

/** Entries of a list or an object; more than a slice are divided into folds. @param {{value: any, names: string[] | null, from: number, to: number, open: number}} props */
function Slice({ value, names, from, to, open }) {
  const rows = [];
  if (to - from <= SLICE) {
    for (let index = from; index < to; index += 1) {
      const name = names ? names[index] : String(index);
      rows.push(html`<${Node} key=${name} name=${name} value=${value[names ? name : index]} open=${open - 1} />`);
    }
    return rows;
  }
  const width = SLICE ** Math.ceil(Math.log(to - from) / Math.log(SLICE) - 1 - 1e-9);
  for (let start = from; start < to; start += width) {
    const end = Math.min(to, start + width);
    rows.push(html`<${Fold} key=${start} open=${start === 0 && open > 0} summary=${html`<span class="j-hint">${count(start)} … ${count(end - 1)}</span>`}
      content=${() => html`<${Slice} value=${value} names=${names} from=${start} to=${end} open=${open} />`} />`);
  }
  return rows;
}

/** @param {{open: boolean, summary: any, content: () => any}} props */
function Fold({ open, summary, content }) {
  const [isOpen, setOpen] = useState(open);
  return html`<details open=${isOpen} onToggle=${(event) => setOpen(event.target.open)}><summary>${summary}</summary>
    ${isOpen ? html`<div class="j-inner">${content()}</div>` : null}</details>`;
}

/** @param {string[]} names */
function keysOf(names) {
  return `{${names.slice(0, 6).join(", ")}${names.length > 6 ? `, … ${count(names.length)}` : ""}}`;
}

/** @param {{value: any}} props */
function Leaf({ value }) {
  const [isWhole, setWhole] = useState(false);
  if (typeof value !== "string") return html`<span class=${`j-${value === null ? "null" : typeof value}`}>${String(value)}</span>`;
  const isCut = value.length > LONG_TEXT && !isWhole;
  return html`<span class="j-string">${JSON.stringify(isCut ? value.slice(0, LONG_TEXT) : value)}</span>
    ${isCut ? html` <button type="button" class="small" onClick=${() => setWhole(true)}>Show all ${count(value.length)} characters</button>` : null}`;
}

/** Return a value in one short line. @param {any} value @param {number} [most] */
export function jsonLine(value, most = 160) {
  if (value === undefined) return "";
  const text = typeof value === "string" ? value : boundedJson(value, most);
  const line = text.slice(0, most * 2).replace(/[\u0000-\u001f]+/g, " ");
  return line.length > most ? `${line.slice(0, most)}…` : line;
}

/** Only as much is serialised as can be shown. @param {any} value @param {number} most */
function boundedJson(value, most) {
  let left = most * 4;
  return JSON.stringify(value, (_, each) => {
    if (left <= 0) return undefined;
    left -= typeof each === "string" ? Math.min(each.length, most) + 3 : 4;
    if (typeof each === "string" && each.length > most) return `${each.slice(0, most)}…`;
    return Array.isArray(each) && each.length > 20 ? each.slice(0, 20) : each;
  }) || "";
}
