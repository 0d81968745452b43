// Parses the output of a terminal into lines: colours, carriage returns, backspaces.
//
// Sequences that move the cursor between lines are dropped: this shows a log, not a screen. All
// other control characters stay in the text, and `line_view.js` makes them visible.

/** @typedef {{fg?: number | string, bg?: number | string, bold?: true, dim?: true, italic?: true, underline?: true,
      inverse?: true, strike?: true, error?: true, link?: string}} Style */
/** @typedef {{text: string, style: Style | null}} Part */
/** A line: its text, or its parts if it has a style. @typedef {string | Part[]} Line */

/** Characters of a line that are kept. The download has all of them. */
export const MAX_LINE = 2_000_000;
/** A longer line is not edited in place: a carriage return clears it. */
const MAX_EDITED = 10_000;
// CSI ... letter; OSC ... BEL or ST; other escape sequences of two characters.
const SEQUENCE = /\x1b(?:\[([0-?]*)[ -/]*([@-~])|\]([^\x07\x1b\n]*)(?:\x07|\x1b\\)|[PX^_][^\x1b\n]*\x1b\\|[ -/]*[0-~])/y;
const UNFINISHED = /^\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x1b\n]*\x1b?|[PX^_][^\x1b\n]*\x1b?|[ -/]*)?$/;
/** What changes a line instead of being part of it. */
const EDITS = /[\x08\r\x1b]/;
const EACH_EDIT = /[\x08\r\x1b]/g;
/** The address of a link is in such a sequence. */
const MAX_SEQUENCE = 2048;

/** Turns text, in pieces cut anywhere, into lines. The style at a line start is its whole state. */
export class AnsiParser {
  /** @param {Style | null} style */
  constructor(style = null) {
    /** @type {Style | null} */
    this.style = style;
    /** @type {Style | null} */
    this._errorStyle = null;
    this._rest = "";
    /** @type {Part[]} */
    this._parts = [];
    /** The line as characters, after something in it was overwritten. @type {[string, Style | null][] | null} */
    this._cells = null;
    this._length = 0;
    this._column = 0;
    /** Characters of the line that were not kept. */
    this._cut = 0;
  }

  /** Add text. `onLine(line, end)` gets each finished line and the offset in `text` after it.
      @param {string} text @param {boolean} isError @param {(line: Line, end: number) => void} onLine */
  write(text, isError, onLine) {
    let whole = text;
    const before = this._rest.length;
    if (before) {
      whole = this._rest + text;
      this._rest = "";
    }
    const last = whole.lastIndexOf("\x1b");
    if (last >= 0 && whole.length - last < MAX_SEQUENCE && UNFINISHED.test(whole.slice(last))) {
      this._rest = whole.slice(last);
      whole = whole.slice(0, last);
    }
    const isPlain = !EDITS.test(whole);
    let at = 0;
    for (;;) {
      const end = whole.indexOf("\n", at);
      if (end < 0) break;
      const piece = whole.slice(at, end > at && whole.charCodeAt(end - 1) === 13 ? end - 1 : end);
      at = end + 1;
      // Most lines are plain text in one piece.
      if (this._length === 0 && this._cells === null && !isError && this.style === null && piece.length <= MAX_LINE && (isPlain || !EDITS.test(piece))) {
        this._column = 0;
        onLine(piece, at - before);
      } else {
        this._edit(piece, isError);
        onLine(this.take(), at - before);
      }
    }
    if (at < whole.length) this._edit(whole.slice(at), isError);
  }

  get isEmpty() {
    return this._length === 0;
  }

  /** The unfinished line. @returns {Line} */
  get line() {
    const parts = this._cells === null ? this._parts : partsOf(this._cells);
    const all = this._cut ? [...parts, { text: ` … ${this._cut.toLocaleString("en")} more characters; download the output to read them`, style: /** @type {Style} */ ({ dim: true }) }] : parts;
    if (all.length === 0) return "";
    return all.length === 1 && all[0].style === null ? all[0].text : all.map((part) => ({ ...part }));
  }

  /** Finish the line, and return it. */
  take() {
    const line = this.line;
    this._parts = [];
    this._cells = null;
    this._length = this._column = this._cut = 0;
    return line;
  }

  /** @param {string} text @param {boolean} isError */
  _edit(text, isError) {
    for (let at = 0; at < text.length; ) {
      EACH_EDIT.lastIndex = at;
      const found = EACH_EDIT.exec(text);
      const end = found ? found.index : text.length;
      if (end > at) this._print(text.slice(at, end), isError);
      if (!found) return;
      at = end + 1;
      if (found[0] === "\r") this._column = 0;
      else if (found[0] === "\b") this._column = Math.max(0, this._column - 1);
      else {
        SEQUENCE.lastIndex = end;
        const sequence = SEQUENCE.exec(text);
        if (!sequence) this._print("\x1b", isError); // shown as a control character
        else at = SEQUENCE.lastIndex;
        if (sequence && sequence[2] !== undefined) this._control(sequence[1], sequence[2]);
        else if (sequence && sequence[3]?.startsWith("8;")) this._link(sequence[3].slice(sequence[3].indexOf(";", 2) + 1));
      }
    }
  }

  /** @param {string} text @param {boolean} isError */
  _print(text, isError) {
    let style = this.style;
    if (isError) style = this._errorStyle ||= { ...this.style, error: true };
    if (this._cells === null && this._column === this._length) this._append(text, style);
    else this._overwrite(text, style);
  }

  /** @param {string} text @param {Style | null} style */
  _append(text, style) {
    const room = MAX_LINE - this._length;
    if (text.length > room) {
      this._cut += text.length - room;
      text = text.slice(0, room);
    }
    const last = this._parts[this._parts.length - 1];
    if (last && last.style === style) last.text += text;
    else if (text) this._parts.push({ text, style });
    this._length += text.length;
    this._column = this._length;
  }

  /** @param {string} text @param {Style | null} style */
  _overwrite(text, style) {
    if (this._length + text.length > MAX_EDITED) {
      this.take();
      this._append(text, style);
      return;
    }
    const cells = this._asCells();
    while (cells.length < this._column) cells.push([" ", null]);
    for (const character of text) {
      cells[this._column] = [character, style];
      this._column += 1;
    }
    this._length = cells.length;
  }

  _asCells() {
    if (this._cells === null) {
      this._cells = [];
      for (const { text, style } of this._parts) for (const character of text) this._cells.push([character, style]);
    }
    return this._cells;
  }

  /** Begin a link, or end it with an empty address. Other addresses than those of the web are dropped.
      @param {string} address */
  _link(address) {
    const { link: _, ...rest } = this.style || {};
    const next = /^https?:\/\/[^\s\x00-\x1f\x7f]+$/i.test(address) ? { ...rest, link: address } : rest;
    this.style = Object.keys(next).length ? next : null;
    this._errorStyle = null;
  }

  /** @param {string} given @param {string} letter */
  _control(given, letter) {
    const numbers = given.split(/[;:]/).map((part) => (part === "" ? 0 : Number(part)));
    const first = numbers[0] || 1;
    const moveTo = (/** @type {number} */ column) => {
      this._column = Math.min(MAX_EDITED, Math.max(0, column));
    };
    if (letter === "m") {
      this.style = restyled(this.style, numbers);
      this._errorStyle = null;
    } else if (letter === "K" && this._length <= MAX_EDITED) {
      const cells = this._asCells();
      if (numbers[0] === 0) cells.length = Math.min(cells.length, this._column);
      else if (numbers[0] === 2) cells.length = 0;
      this._length = cells.length;
    } else if (letter === "G") moveTo(first - 1);
    else if (letter === "C") moveTo(this._column + first);
    else if (letter === "D") moveTo(this._column - first);
  }
}

/** @param {[string, Style | null][]} cells @returns {Part[]} */
function partsOf(cells) {
  /** @type {Part[]} */
  const found = [];
  for (const [character, style] of cells) {
    const last = found[found.length - 1];
    if (last && last.style === style) last.text += character;
    else found.push({ text: character, style });
  }
  return found;
}

const FLAGS = { 1: "bold", 2: "dim", 3: "italic", 4: "underline", 7: "inverse", 9: "strike" };
const CLEARED = { 22: ["bold", "dim"], 23: ["italic"], 24: ["underline"], 27: ["inverse"], 29: ["strike"], 39: ["fg"], 49: ["bg"] };

/** Return a style after a sequence of SGR numbers. @param {Style | null} style @param {number[]} numbers @returns {Style | null} */
function restyled(style, numbers) {
  /** @type {any} */
  let next = { ...style };
  for (let index = 0; index < numbers.length; index += 1) {
    const code = numbers[index];
    if (code === 0) next = next.link ? { link: next.link } : {}; // a link ends by its own sequence
    else if (FLAGS[code]) next[FLAGS[code]] = true;
    else if (CLEARED[code]) for (const name of CLEARED[code]) delete next[name];
    else if (code >= 30 && code <= 37) next.fg = code - 30;
    else if (code >= 90 && code <= 97) next.fg = code - 82;
    else if (code >= 40 && code <= 47) next.bg = code - 40;
    else if (code >= 100 && code <= 107) next.bg = code - 92;
    else if (code === 38 || code === 48) {
      const name = code === 38 ? "fg" : "bg";
      if (numbers[index + 1] === 5) {
        next[name] = palette(numbers[index + 2] || 0);
        index += 2;
      } else if (numbers[index + 1] === 2) {
        const rgb = numbers.slice(index + 2, index + 5).map((part) => Math.min(255, part || 0));
        next[name] = `rgb(${rgb.join(",")})`;
        index += 4;
      }
    }
  }
  return Object.keys(next).length ? next : null;
}

/** Return a colour of the palette of 256. @param {number} code */
function palette(code) {
  if (code < 16) return code;
  if (code >= 232) {
    const grey = Math.min(255, 8 + (code - 232) * 10);
    return `rgb(${grey},${grey},${grey})`;
  }
  const level = (/** @type {number} */ part) => (part === 0 ? 0 : 55 + part * 40);
  const rest = code - 16;
  return `rgb(${level(Math.floor(rest / 36) % 6)},${level(Math.floor(rest / 6) % 6)},${level(rest % 6)})`;
}
