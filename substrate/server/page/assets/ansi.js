// The output of a terminal: colours, carriage returns, and nothing that could do harm.
//
// Lines are kept as segments `{text, style}`; a style is null or `{fg, bg, bold, ...}`. Sequences
// that move about the screen are dropped: this shows what was said, and is no terminal.

import { h } from "./dom.js";

/** A line longer than this is broken. */
const MOST_CELLS = 4000;
// CSI ... letter, OSC ... BEL or ST, other escapes of two characters.
const SEQUENCE = /\x1b(?:\[([0-?]*)[ -/]*([@-~])|\][^\x07\x1b]*(?:\x07|\x1b\\)|[PX^_][^\x1b]*\x1b\\|[ -/]*[0-~])/y;
const UNFINISHED = /^\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x1b]*\x1b?|[PX^_][^\x1b]*\x1b?|[ -/]*)?$/;

/** What is not printed. */
const CONTROL = /[\x00-\x1f\x7f]/g;

/** Takes text as it comes, in pieces cut anywhere, and keeps lines. */
export class AnsiText {
  constructor() {
    this._style = null;
    this._rest = "";
    /** The line that is being written: segments, or, once something was written over, a cell a
        character. */
    this._line = [];
    this._cells = null;
    this._length = 0;
    this._column = 0;
    /** Lines that are finished, to be taken away by whoever shows them. */
    this.finished = [];
  }

  /** Add some text. `base` is a style for all of it, as in `{error: true}`. */
  write(text, base = null) {
    let all = this._rest + text;
    this._rest = "";
    const last = all.lastIndexOf("\x1b");
    if (last >= 0 && all.length - last < 256 && UNFINISHED.test(all.slice(last))) {
      this._rest = all.slice(last);
      all = all.slice(0, last);
    }
    for (let at = 0; at < all.length; ) {
      CONTROL.lastIndex = at;
      const found = CONTROL.exec(all);
      const end = found ? found.index : all.length;
      if (end > at) this._print(all.slice(at, end), base);
      if (!found) return;
      at = end + 1;
      const code = all.charCodeAt(end);
      if (code === 27) {
        SEQUENCE.lastIndex = end;
        const sequence = SEQUENCE.exec(all);
        if (sequence && sequence[2] !== undefined) this._control(sequence[1], sequence[2]);
        if (sequence) at = SEQUENCE.lastIndex;
      } else if (code === 10) this._newLine();
      else if (code === 13) this._column = 0;
      else if (code === 8) this._column = Math.max(0, this._column - 1);
      else if (code === 9) this._print(" ".repeat(8 - (this._column % 8)), base);
    }
  }

  _print(text, base) {
    const style = base === null ? this._style : this._style === null ? base : { ...this._style, ...base };
    for (let at = 0; at < text.length; ) {
      if (this._column >= MOST_CELLS) this._newLine();
      const part = text.slice(at, at + MOST_CELLS - this._column);
      at += part.length;
      if (this._cells === null && this._column === this._length) this._append(part, style);
      else this._overwrite(part, style);
    }
  }

  _append(text, style) {
    const last = this._line[this._line.length - 1];
    if (last && last.style === style) last.text += text;
    else this._line.push({ text, style });
    this._length += text.length;
    this._column = this._length;
  }

  _overwrite(text, style) {
    const cells = this._asCells();
    while (cells.length < this._column) cells.push([" ", null]);
    for (const char of text) {
      cells[this._column] = [char, style];
      this._column += 1;
    }
    this._length = cells.length;
  }

  _asCells() {
    if (this._cells === null) {
      this._cells = [];
      for (const { text, style } of this._line) for (const char of text) this._cells.push([char, style]);
    }
    return this._cells;
  }

  _newLine() {
    this.finished.push(this.current);
    this._line = [];
    this._cells = null;
    this._length = 0;
    this._column = 0;
  }

  /** The line that is not finished yet. */
  get current() {
    return this._cells === null ? this._line : segments(this._cells);
  }

  get isEmpty() {
    return this._length === 0;
  }

  _control(given, letter) {
    const numbers = given.split(";").map((part) => (part === "" ? 0 : Number(part)));
    const to = (column) => { this._column = Math.min(MOST_CELLS - 1, Math.max(0, column)); };
    if (letter === "m") this._style = restyled(this._style, numbers);
    else if (letter === "K") {
      const cells = this._asCells();
      if (numbers[0] === 0) cells.length = Math.min(cells.length, this._column);
      else if (numbers[0] === 2) cells.length = 0;
      this._length = cells.length;
    } else if (letter === "G") to((numbers[0] || 1) - 1);
    else if (letter === "C") to(this._column + (numbers[0] || 1));
    else if (letter === "D") to(this._column - (numbers[0] || 1));
  }
}

function segments(cells) {
  const found = [];
  let last = null;
  for (const [char, style] of cells) {
    if (last !== null && last.style === style) last.text += char;
    else found.push((last = { text: char, style }));
  }
  return found;
}

const FLAGS = { 1: "bold", 2: "dim", 3: "italic", 4: "underline", 7: "inverse", 9: "strike" };

function restyled(style, numbers) {
  let now = { ...(style || {}) };
  for (let index = 0; index < numbers.length; index += 1) {
    const n = numbers[index];
    if (n === 0) now = {};
    else if (FLAGS[n]) now[FLAGS[n]] = true;
    else if (n === 22) delete now.bold, delete now.dim;
    else if (n === 23) delete now.italic;
    else if (n === 24) delete now.underline;
    else if (n === 27) delete now.inverse;
    else if (n === 29) delete now.strike;
    else if (n >= 30 && n <= 37) now.fg = n - 30;
    else if (n >= 90 && n <= 97) now.fg = n - 90 + 8;
    else if (n >= 40 && n <= 47) now.bg = n - 40;
    else if (n >= 100 && n <= 107) now.bg = n - 100 + 8;
    else if (n === 39) delete now.fg;
    else if (n === 49) delete now.bg;
    else if (n === 38 || n === 48) {
      const key = n === 38 ? "fg" : "bg";
      if (numbers[index + 1] === 5) {
        now[key] = palette(numbers[index + 2] || 0);
        index += 2;
      } else if (numbers[index + 1] === 2) {
        const rgb = numbers.slice(index + 2, index + 5).map((part) => Math.min(255, part || 0));
        now[key] = `rgb(${rgb.join(",")})`;
        index += 4;
      }
    }
  }
  return Object.keys(now).length ? now : null;
}

function palette(n) {
  if (n < 16) return n;
  if (n >= 232) {
    const grey = Math.min(255, 8 + (n - 232) * 10);
    return `rgb(${grey},${grey},${grey})`;
  }
  const level = (part) => (part === 0 ? 0 : 55 + part * 40);
  const rest = n - 16;
  return `rgb(${level(Math.floor(rest / 36) % 6)},${level(Math.floor(rest / 6) % 6)},${level(rest % 6)})`;
}

/** A line as an element. */
export function lineElement(line) {
  const row = h("div", { class: "line" });
  for (const { text, style } of line) row.append(style === null ? text : styled(text, style));
  if (!line.length) row.append("\u200b");
  return row;
}

function styled(text, style) {
  const classes = [];
  for (const name of ["bold", "dim", "italic", "underline", "strike", "inverse", "error"]) if (style[name]) classes.push(`t-${name}`);
  for (const [key, prefix] of [["fg", "f"], ["bg", "b"]]) if (typeof style[key] === "number") classes.push(`t-${prefix}${style[key]}`);
  const span = h("span", { class: classes.join(" ") }, text);
  if (typeof style.fg === "string") span.style.color = style.fg;
  if (typeof style.bg === "string") span.style.backgroundColor = style.bg;
  return span;
}
