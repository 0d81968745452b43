// The items of a run, put together to what a person reads: the lines of a terminal, an answer in
// Markdown, one bar for all progress. A block is never large, so that a list can show any number
// of them: `{kind, from, to, at, version, ...}`; `from` and `to` are the numbers of its items.

import { AnsiText } from "./ansi.js";

const LINES = 20;
/** An answer is cut into blocks where it has a gap, once it is so long. */
const TEXT = 2000;
const MOST_TEXT = 20000;

/** Turns items into blocks. */
export class Blocks {
  constructor() {
    this.blocks = [];
    this._ansi = null;
  }

  /** One item more. */
  add(seq, at, event) {
    switch (event.type) {
      case "stdout":
      case "stderr": return this._output(seq, at, event.data, event.type === "stderr" ? { error: true } : null);
      case "content": return this._text("text", seq, at, event.text);
      case "thinking": return this._text("thinking", seq, at, event.text);
      case "progress": return this._progress(seq, at, event);
      default: return this._push(kindOf(event), seq, at, { event });
    }
  }

  /** Forget the blocks of items up to this one; how many that were. */
  drop(seq) {
    let gone = 0;
    while (gone < this.blocks.length - 1 && this.blocks[gone].to <= seq) gone += 1;
    this.blocks.splice(0, gone);
    return gone;
  }

  get _last() {
    return this.blocks[this.blocks.length - 1];
  }

  _push(kind, seq, at, more) {
    const block = { kind, from: seq, to: seq, at, version: 0, ...more };
    this.blocks.push(block);
    return block;
  }

  _extend(block, seq, at) {
    block.to = seq;
    block.at = at;
    block.version += 1;
    return block;
  }

  _output(seq, at, data, base) {
    let block = this._last;
    if (!block || block.kind !== "output") {
      this._ansi = new AnsiText();
      block = this._push("output", seq, at, { lines: [], open: [] });
    }
    this._ansi.write(data, base);
    this._extend(block, seq, at);
    const finished = this._ansi.finished.splice(0);
    for (let from = 0; from < finished.length; ) {
      const room = LINES - block.lines.length;
      block.lines.push(...finished.slice(from, from + room));
      from += room;
      if (from < finished.length || (block.lines.length >= LINES && !this._ansi.isEmpty)) {
        block.open = [];
        block = this._push("output", seq, at, { lines: [], open: [] });
      }
    }
    block.open = this._ansi.isEmpty ? [] : this._ansi.current;
    return block;
  }

  _text(kind, seq, at, text) {
    let block = this._last;
    if (block && block.kind === kind && block.text.length > TEXT) {
      // A new block begins at a gap between paragraphs that is in no code.
      const gap = block.text.lastIndexOf("\n\n");
      const inCode = (block.text.match(/^\s*(```|~~~)/gm) || []).length % 2 === 1;
      if (block.text.length > MOST_TEXT) block = null;
      else if (gap > 0 && !inCode) {
        const rest = block.text.slice(gap + 2);
        block.text = block.text.slice(0, gap);
        block.version += 1;
        block = this._push(kind, seq, at, { text: rest });
      }
    } else if (!block || block.kind !== kind) block = null;
    if (block === null) block = this._push(kind, seq, at, { text: "" });
    block.text += text;
    return this._extend(block, seq, at);
  }

  _progress(seq, at, event) {
    const last = this._last;
    if (last && last.kind === "progress") {
      last.event = event;
      return this._extend(last, seq, at);
    }
    return this._push("progress", seq, at, { event });
  }
}

const KNOWN = new Set(["image", "audio", "resource", "request", "tool_use", "tool_start", "tool_result", "log", "gap", "complete", "error", "cancelled", "message"]);

function kindOf(event) {
  return KNOWN.has(event.type) ? event.type : "data";
}
