// Turns the items of a run into the rows of its output: lines of a terminal, texts, other events.
//
// A row begins at an item and an offset in its text, and the only state there is the style of the
// terminal. So the rows after any row start can be built again from the items, always the same.

import { AnsiParser } from "./ansi.js";

/** @typedef {import("./ansi.js").Style} Style */
/** A row: a plain line, a line with styles, a text in Markdown, or an event.
    @typedef {string | {parts: import("./ansi.js").Part[]} | {kind: "text" | "thinking", text: string} | {kind: "event", event: any}} Row */
/** @typedef {{seq: number, time_ms: number, event: any}} Item */
/** Gets a row with its time, and the item and the offset where the next row begins.
    @typedef {(row: Row, time: number, seq: number, offset: number) => void} OnRow */

/** A text is divided between paragraphs after this many characters, and anywhere at the maximum. */
const TEXT = 2000;
const MAX_TEXT = 20_000;
/** Items that one row may have, so that a page of rows has a bounded number of items. */
const MAX_ITEMS = 2000;
/** Events that say nothing to a reader of the output; the list of events has them. */
const HIDDEN = new Set(["start", "answered"]);
const FENCE = /^\s*(?:```|~~~)/gm;

/** Builds rows from items. */
export class RowBuilder {
  /** @param {Style | null} style @param {OnRow} onRow */
  constructor(style, onRow) {
    this._onRow = onRow;
    this._parser = new AnsiParser(style);
    /** Consecutive items that are one row. @type {{kind: "text" | "thinking" | "event", text: string, event: any, items: number} | null} */
    this._group = null;
    this._time = 0;
  }

  /** The style of the terminal at the start of the next row. */
  get style() {
    return this._parser.style;
  }

  /** The row that is not finished; null between rows. @returns {Row | null} */
  get open() {
    if (this._group) return rowOf(this._group);
    return this._parser.isEmpty ? null : lineOf(this._parser.line);
  }

  /** Add an item; `skip` characters of its text belong to earlier rows. @param {Item} item @param {number} [skip] */
  add({ seq, time_ms: time, event }, skip = 0) {
    const { type } = event;
    if (type === "stdout" || type === "stderr") {
      const text = skip ? event.data.slice(skip) : event.data;
      if (this._group) this._close(seq, skip);
      this._time = time;
      this._parser.write(text, type === "stderr", (line, end) => {
        const isAll = end === text.length;
        this._onRow(lineOf(line), time, isAll ? seq + 1 : seq, isAll ? 0 : end + skip);
      });
    } else if (type === "content" || type === "thinking") {
      this._addText(type === "content" ? "text" : "thinking", seq, time, event.text, skip);
    } else if (type === "progress") {
      const group = this._begin("event", seq, time);
      group.event = event;
      if (group.items >= MAX_ITEMS) this._close(seq + 1, 0);
    } else if (!HIDDEN.has(type)) {
      this._close(seq, 0);
      this._onRow({ kind: "event", event }, time, seq + 1, 0);
    }
  }

  /** Finish the open row: there are no more items. */
  finish() {
    this._close(Infinity, 0);
  }

  /** Return the open group of this kind; other rows are finished.
      @param {"text" | "thinking" | "event"} kind @param {number} seq @param {number} time @param {number} [skip] */
  _begin(kind, seq, time, skip = 0) {
    if (this._group?.kind !== kind) this._close(seq, skip);
    this._time = time;
    this._group ||= { kind, text: "", event: null, items: 0 };
    this._group.items += 1;
    return this._group;
  }

  /** @param {"text" | "thinking"} kind @param {number} seq @param {number} time @param {string} text @param {number} skip */
  _addText(kind, seq, time, text, skip) {
    for (let at = skip; at < text.length; ) {
      const group = this._begin(kind, seq, time, at);
      const before = group.text.length;
      group.text += text.slice(at);
      const end = endOf(group.text, before);
      if (end === null) {
        if (group.items >= MAX_ITEMS) this._close(seq + 1, 0);
        return;
      }
      group.text = group.text.slice(0, end);
      at += end - before;
      this._close(at === text.length ? seq + 1 : seq, at === text.length ? 0 : at);
    }
  }

  /** Finish the open row; the next one begins at this item and offset. @param {number} seq @param {number} offset */
  _close(seq, offset) {
    if (this._group) {
      const row = rowOf(this._group);
      this._group = null;
      this._onRow(row, this._time, seq, offset);
    } else if (!this._parser.isEmpty) this._onRow(lineOf(this._parser.take()), this._time, seq, offset);
  }
}

/** Return where a long text ends: after a paragraph outside of code that was added after `before`.
    @param {string} text @param {number} before */
function endOf(text, before) {
  for (let gap = text.indexOf("\n\n", Math.max(TEXT, before - 1)); gap >= 0; gap = text.indexOf("\n\n", gap + 2)) {
    if ((text.slice(0, gap).match(FENCE) || []).length % 2 === 0) return gap + 2;
  }
  return text.length > MAX_TEXT ? Math.max(MAX_TEXT, before + 1) : null;
}

/** @param {import("./ansi.js").Line} line @returns {Row} */
function lineOf(line) {
  return typeof line === "string" ? line : { parts: line };
}

/** @param {{kind: "text" | "thinking" | "event", text: string, event: any}} group @returns {Row} */
function rowOf({ kind, text, event }) {
  return kind === "event" ? { kind, event } : { kind, text };
}

/** Return the text of a row, as it is searched, copied and downloaded. @param {Row} row */
export function textOf(row) {
  if (typeof row === "string") return row;
  if ("parts" in row) return row.parts.map((part) => part.text).join("");
  return row.kind === "event" ? eventText(row.event) : row.text;
}

/** @param {any} event */
function eventText(event) {
  const { type, ...rest } = event;
  if (type === "image" || type === "audio") return `[${type} ${event.mime_type}]`;
  if (type === "complete" && "exit_code" in event) return exitText(event);
  if (type === "complete" && Object.keys(rest).length === 0) return "Done";
  if (type === "complete" && typeof rest.result === "string") return rest.result;
  if (type === "complete" && Array.isArray(rest.content)) return rest.content.map(blockText).join("\n");
  if (type === "error") return namesCode(event) ? event.message : `${event.code}: ${event.message}`;
  if (type === "cancelled") return `Stopped${event.reason ? `: ${event.reason}` : ""}`;
  if (type === "log") return `${event.level}: ${event.message}`;
  if (type === "request") return event.message;
  if (type === "gap") return gapText(event);
  if (type === "file" && event.content !== undefined) return `${event.path}: ${event.action}\n${event.diff ?? event.content}`;
  if (type === "resource" && event.content) return `${event.uri}\n${event.content}`;
  return `${type} ${JSON.stringify(rest)}`;
}

/** Return the text of a content block of another server. @param {any} block */
function blockText(block) {
  const { type, text, uri, mimeType } = block.resource || (block.role && block.content) || block;
  return typeof text === "string" ? text : `[${type || "resource"} ${uri || mimeType || ""}]`;
}

/** Describe how a command ended. @param {any} event */
export function exitText({ exit_code: code, signal, duration_ms: ms }) {
  return `Exit code ${code}${signal ? ` (${signal})` : ""}${ms === undefined ? "" : ` after ${Math.round(ms)} ms`}`;
}

/** Return whether the message of an error has its code, so that showing both says it twice.
    @param {{code: string, message: string}} event */
export function namesCode({ code, message }) {
  return message.toLowerCase().includes(code.toLowerCase());
}

/** Describe missing items. @param {{from: number, to: number}} event */
export function gapText({ from, to }) {
  return `Items ${from} to ${to} are no longer available`;
}

const ERROR_WORDS = /\b(error|failed|exception|traceback)\b/i;

/** Whether a row is an error: standard error, a line that names one, or an event. @param {Row} row */
export function isErrorRow(row) {
  if (typeof row === "string") return ERROR_WORDS.test(row);
  if ("parts" in row) return row.parts.some((part) => part.style?.error) || ERROR_WORDS.test(textOf(row));
  if (row.kind !== "event") return false;
  const { type, level, is_error: failed, exit_code: code } = row.event;
  return type === "error" || (type === "log" && /^(error|critical|alert|emergency)$/.test(level)) || failed === true || (type === "complete" && code > 0);
}

/** Return about how many characters a row takes. @param {Row} row */
export function sizeOf(row) {
  if (typeof row === "string") return row.length;
  if ("parts" in row) return row.parts.reduce((sum, part) => sum + part.text.length, 40);
  if (row.kind !== "event") return row.text.length + 40;
  return Object.values(row.event).reduce((sum, value) => sum + (typeof value === "string" ? value.length : value && typeof value === "object" ? 500 : 8), 100);
}
