// A line of a terminal as elements: colours, matches of a search, and characters that are invisible.

import { count, readable } from "../core/format.js";
import { html, useState } from "../core/html.js";
import { safeLink } from "../ui/markdown.js";

/** @typedef {import("./ansi.js").Part} Part */
/** @typedef {import("./ansi.js").Style} Style */
/** The pattern of a search, and the column of the current match if it is in this line. @typedef {{pattern: RegExp | null, column: number}} Marks */

/** Characters of a line that are shown at first, and that are added. */
const SHOWN = 20_000;
const MORE = 100_000;
/** Elements of a line; characters after them are shown without an element for each. */
const MAX_PIECES = 2000;
// Control characters, and characters that change the direction of text or cannot be seen.
const INVISIBLE = /[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]+/g;

// An address that an invisible character is in ends there: it would not lead to what is read.
const ADDRESS = /\bhttps?:\/\/[^\s<>"'`{}|\\^\]\x00-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]+/gi;

/** The text of a line. @param {{parts: Part[], marks: Marks}} props */
export function LineText({ parts, marks }) {
  const [shown, setShown] = useState(SHOWN);
  const length = parts.reduce((sum, part) => sum + part.text.length, 0);
  const limit = Math.max(shown, marks.column + 1000);
  return html`<span class="text">${piecesOf(parts, limit, marks)}${length > limit ? html` <button type="button" class="small more" onClick=${() => setShown(limit + MORE)}>Show more (${count(length - limit)} characters)</button>` : null}${length === 0 ? "\u200b" : null}</span>`;
}

/** A part of a line: a match of a search, or a link. @typedef {{start: number, end: number, href?: string}} Span */

/** @param {Part[]} parts @param {number} limit @param {Marks} marks */
function piecesOf(parts, limit, { pattern, column }) {
  /** @type {any[]} */
  const pieces = [];
  const whole = parts.map((part) => part.text).join("").slice(0, limit);
  const matches = pattern ? matchesIn(whole, pattern) : [];
  const links = linksIn(whole);
  let at = 0;
  for (const { text, style } of parts) {
    const end = Math.min(at + text.length, limit);
    /** @type {any[]} */
    const inner = [];
    for (let from = at; from < end; ) {
      const match = spanAt(matches, from);
      const link = spanAt(links, from);
      const to = Math.min(end, borderOf(match, from), borderOf(link, from));
      /** @type {any} */
      let content = visible(text.slice(from - at, to - at), pieces.length + inner.length);
      if (match && match.start <= from) content = html`<mark data-current=${match.start === column ? "true" : null}>${content}</mark>`;
      const href = style?.link || (link && link.start <= from ? link.href : undefined);
      if (href) content = html`<a href=${href} target="_blank" rel="noopener noreferrer" title=${href}>${content}</a>`;
      if (Array.isArray(content)) inner.push(...content);
      else inner.push(content);
      from = to;
    }
    if (style === null) pieces.push(...inner);
    else if (inner.length) pieces.push(html`<span class=${classOf(style)} style=${coloursOf(style)}>${inner}</span>`);
    at += text.length;
    if (at >= limit) break;
  }
  return pieces;
}

/** Drop the spans that end before this column, and return the next one. @param {Span[]} spans @param {number} column */
function spanAt(spans, column) {
  while (spans.length && spans[0].end <= column) spans.shift();
  return spans[0];
}

/** Return the column at which a span begins, or ends if it has begun. @param {Span | undefined} span @param {number} column */
function borderOf(span, column) {
  if (span === undefined) return Infinity;
  return span.start <= column ? span.end : span.start;
}

/** Return the addresses of the web in a text, without the punctuation after them. @param {string} text */
function linksIn(text) {
  /** @type {Span[]} */
  const found = [];
  if (!text.includes("://")) return found;
  for (const match of text.matchAll(ADDRESS)) {
    let href = match[0].replace(/[.,;:!?*]+$/, "");
    if (href.endsWith(")") && !href.includes("(")) href = href.slice(0, -1).replace(/[.,;:!?*]+$/, "");
    if (found.length < MAX_PIECES && safeLink(href)) found.push({ start: match.index, end: match.index + href.length, href });
  }
  return found;
}

/** @param {string} text @param {RegExp} pattern */
function matchesIn(text, pattern) {
  /** @type {Span[]} */
  const found = [];
  for (const match of text.matchAll(pattern)) {
    if (match[0] && found.length < MAX_PIECES) found.push({ start: match.index, end: match.index + match[0].length });
  }
  return found;
}

/** Return a text with an element for each run of invisible characters. @param {string} text @param {number} before */
function visible(text, before) {
  if (text.search(INVISIBLE) < 0) return [text];
  if (before > MAX_PIECES) return [readable(text)];
  /** @type {any[]} */
  const pieces = [];
  let at = 0;
  for (const match of text.matchAll(INVISIBLE)) {
    if (pieces.length > MAX_PIECES) break;
    if (match.index > at) pieces.push(text.slice(at, match.index));
    pieces.push(html`<span class="control" title="Control characters">${readable(match[0])}</span>`);
    at = match.index + match[0].length;
  }
  pieces.push(readable(text.slice(at)));
  return pieces;
}

/** @param {Style} style */
function classOf(style) {
  const names = ["bold", "dim", "italic", "underline", "strike", "inverse", "error"].filter((name) => style[name]).map((name) => `t-${name}`);
  if (typeof style.fg === "number") names.push(`t-f${style.fg}`);
  if (typeof style.bg === "number") names.push(`t-b${style.bg}`);
  return names.join(" ");
}

/** @param {Style} style */
function coloursOf({ fg, bg }) {
  if (typeof fg !== "string" && typeof bg !== "string") return undefined;
  return { ...(typeof fg === "string" ? { color: fg } : {}), ...(typeof bg === "string" ? { backgroundColor: bg } : {}) };
}
