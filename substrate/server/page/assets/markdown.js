// Light Markdown as nodes: headings, lists, quotes, code, tables, emphasis, links. What it does
// not know stays as it was written.

import { h } from "./dom.js";

const FENCE = /^\s{0,3}(```+|~~~+)\s*([\w+-]*)/;
const HEADING = /^(#{1,6})\s+(.*?)\s*#*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const RULE = /^\s{0,3}([-*_])(\s*\1){2,}\s*$/;
const TABLE_LINE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

/** A text as nodes. */
export function markdown(text) {
  const lines = text.split("\n");
  const found = h("div", { class: "markdown" });
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    const fence = FENCE.exec(line);
    if (fence) {
      const code = [];
      for (at += 1; at < lines.length && !lines[at].trim().startsWith(fence[1]); at += 1) code.push(lines[at]);
      found.append(h("pre", { class: "code", tabindex: "0", "aria-label": fence[2] ? `Code, ${fence[2]}` : "Code" }, h("code", {}, code.join("\n"))));
      at += 1;
    } else if (line.trim() === "") {
      at += 1;
    } else if (HEADING.test(line)) {
      const [, marks, title] = HEADING.exec(line);
      // Headings of the page itself end at the second level.
      found.append(h(`h${Math.min(6, marks.length + 2)}`, {}, inline(title)));
      at += 1;
    } else if (RULE.test(line)) {
      found.append(h("hr"));
      at += 1;
    } else if (line.startsWith(">")) {
      const quote = [];
      for (; at < lines.length && lines[at].startsWith(">"); at += 1) quote.push(lines[at].replace(/^>\s?/, ""));
      found.append(h("blockquote", {}, ...markdown(quote.join("\n")).childNodes));
    } else if (ITEM.test(line)) {
      at = list(lines, at, found);
    } else if (line.includes("|") && at + 1 < lines.length && TABLE_LINE.test(lines[at + 1])) {
      at = table(lines, at, found);
    } else {
      const paragraph = [];
      for (; at < lines.length && lines[at].trim() !== "" && !starts(lines[at]); at += 1) paragraph.push(lines[at]);
      if (!paragraph.length) paragraph.push(lines[at++]);
      found.append(h("p", {}, inline(paragraph.join("\n"))));
    }
  }
  return found;
}

const starts = (line) => FENCE.test(line) || HEADING.test(line) || line.startsWith(">") || ITEM.test(line) || RULE.test(line);

function list(lines, start, place) {
  const depth = ITEM.exec(lines[start])[1].length;
  const ordered = /\d/.test(ITEM.exec(lines[start])[2]);
  const element = h(ordered ? "ol" : "ul");
  if (ordered) element.start = Number.parseInt(ITEM.exec(lines[start])[2], 10);
  let at = start;
  let last = null;
  while (at < lines.length) {
    const item = ITEM.exec(lines[at]);
    if (item && item[1].length > depth && last) {
      at = list(lines, at, last);
    } else if (item && item[1].length === depth && /\d/.test(item[2]) === ordered) {
      last = h("li", {}, inline(item[3]));
      element.append(last);
      at += 1;
    } else if (!item && last && lines[at].trim() !== "" && /^\s/.test(lines[at])) {
      last.append("\n", ...inline(lines[at].trim()));
      at += 1;
    } else if (lines[at].trim() === "" && at + 1 < lines.length && ITEM.test(lines[at + 1]) && ITEM.exec(lines[at + 1])[1].length >= depth) {
      at += 1;
    } else break;
  }
  place.append(element);
  return at;
}

function table(lines, start, place) {
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
  const head = cells(lines[start]);
  let at = start + 2;
  const rows = [];
  for (; at < lines.length && lines[at].includes("|") && lines[at].trim() !== ""; at += 1) rows.push(cells(lines[at]));
  place.append(h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Table" }, h("table", {},
    h("thead", {}, h("tr", {}, head.map((cell) => h("th", { scope: "col" }, inline(cell))))),
    h("tbody", {}, rows.map((row) => h("tr", {}, head.map((_, index) => h("td", {}, inline(row[index] || "")))))))));
  return at;
}

// Code first: nothing inside it means anything. Then links, emphasis, bare addresses.
const INLINE = /(`+)([\s\S]*?[^`])\1(?!`)|\[([^\]\n]+)\]\(([^)\s]+)\)|\*\*([^*\n]+)\*\*|__([^_\n]+)__|(?<![\w*])\*([^*\n]+)\*(?!\w)|(?<!\w)_([^_\n]+)_(?!\w)|~~([^~\n]+)~~|(https?:\/\/[^\s<>)\]]+)/g;

function inline(text) {
  const nodes = [];
  let from = 0;
  for (const found of text.matchAll(INLINE)) {
    if (found.index > from) nodes.push(text.slice(from, found.index));
    nodes.push(marked(found));
    from = found.index + found[0].length;
  }
  if (from < text.length) nodes.push(text.slice(from));
  return nodes;
}

function marked([whole, ticks, code, label, address, bold, bold2, italic, italic2, struck, bare]) {
  if (ticks) return h("code", {}, code);
  if (label) return webLink(address, label) || whole;
  if (bold || bold2) return h("strong", {}, inline(bold || bold2));
  if (italic || italic2) return h("em", {}, inline(italic || italic2));
  if (struck) return h("s", {}, inline(struck));
  return webLink(bare, bare) || whole;
}

/** A link to the web; null for an address that leads elsewhere, as to a script. */
export function webLink(address, label) {
  if (!/^https?:\/\//i.test(address)) return null;
  return h("a", { href: address, target: "_blank", rel: "noopener noreferrer" }, label);
}
