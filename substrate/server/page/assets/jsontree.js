// A value as a tree that opens where it is wanted. What is closed has no nodes yet.

import { button, h } from "./dom.js";

const AT_ONCE = 100;
const LONG = 2000;

/** A value; objects and lists open on demand, down to `open` levels at once. */
export function jsonTree(value, open = 1, name = null) {
  const key = name === null ? null : h("span", { class: "j-key" }, `${name}: `);
  if (value === null || typeof value !== "object") return h("div", { class: "j-leaf" }, key, leaf(value));
  const entries = Array.isArray(value) ? value.map((each, index) => [index, each]) : Object.entries(value);
  if (!entries.length) return h("div", { class: "j-leaf" }, key, Array.isArray(value) ? "[]" : "{}");
  const place = h("div", { class: "j-inner" });
  const details = h("details", { class: "json" },
    h("summary", {}, key, h("span", { class: "j-hint" }, summary(value, entries.length))), place);
  let shown = 0;
  const more = () => {
    const part = entries.slice(shown, shown + AT_ONCE);
    shown += part.length;
    place.append(...part.map(([each, inner]) => jsonTree(inner, open - 1, String(each))));
    if (shown < entries.length) {
      const next = button(`${entries.length - shown} more…`, () => {
        next.remove();
        more();
      }, { class: "small" });
      place.append(next);
    }
  };
  details.addEventListener("toggle", () => {
    if (details.open && shown === 0) more();
  });
  if (open > 0) {
    more();
    details.open = true;
  }
  return details;
}

function summary(value, count) {
  if (Array.isArray(value)) return `[${count}]`;
  const text = Object.keys(value).slice(0, 6).join(", ");
  return `{${text}${count > 6 ? ", …" : ""}}`;
}

function leaf(value) {
  if (typeof value === "string") {
    if (value.length > LONG) {
      const whole = h("span", { class: "j-string" }, JSON.stringify(value.slice(0, LONG)));
      const rest = button(`all ${value.length} characters`, () => {
        whole.textContent = JSON.stringify(value);
        rest.remove();
      }, { class: "small" });
      return [whole, " ", rest];
    }
    return h("span", { class: "j-string" }, JSON.stringify(value));
  }
  return h("span", { class: `j-${value === null ? "null" : typeof value}` }, String(value));
}

/** A value in one short line. */
export function jsonLine(value, most = 160) {
  if (value === undefined) return "";
  let text;
  if (typeof value === "string") text = value;
  else {
    // Only as much is written as can be seen.
    let left = most * 4;
    text = JSON.stringify(value, (_, each) => {
      if (left <= 0) return undefined;
      if (typeof each === "string") {
        left -= each.length + 3;
        return each.length > most ? `${each.slice(0, most)}…` : each;
      }
      left -= 4;
      return Array.isArray(each) && each.length > 20 ? each.slice(0, 20) : each;
    }) || "";
  }
  const line = text.slice(0, most * 2).replace(/[\r\n\t\u0000-\u001f]+/g, " ");
  return line.length > most ? `${line.slice(0, most)}…` : line;
}
