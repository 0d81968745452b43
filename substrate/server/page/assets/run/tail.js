// The last lines of a run in a small box, for chat and other places that show a run beside other things.

import { html, signal, useEffect, useState } from "../core/html.js";
import { liveRun } from "../core/live.js";
import { link } from "../core/router.js";
import { RunLink } from "../ui/run_parts.js";
import { Feed } from "./feed.js";
import { RowView } from "./output.js";
import { RowBuilder } from "./rows.js";

/** @typedef {import("./rows.js").Row} Row */

const LINES = 12;
/** Items at the end of a run that are read for its last lines. */
const ITEMS = 40;

/** The last rows of a run. `version` changes with them. */
class Tail {
  /** @param {number} lines @param {boolean} isBare without the row of a successful end */
  constructor(lines, isBare) {
    this._lines = lines;
    this._isBare = isBare;
    this.last = 0;
    this.version = signal(0);
    /** The terminal. @type {any} */
    this.terminal = null;
    this.isTerminal = false;
    /** Number of rows before the first of `rows`. */
    this.dropped = 0;
    /** @type {Row[]} */
    this.rows = [];
    this._builder = new RowBuilder(null, (row) => this.rows.push(row));
  }

  /** @param {import("./rows.js").Item[]} items */
  add(items) {
    for (const item of items) {
      if (this.terminal) break;
      this.last = Math.max(this.last, item.seq);
      const { type } = item.event;
      if (type === "stdout" || type === "stderr") this.isTerminal = true;
      if (type === "complete" || type === "error" || type === "cancelled") this.terminal = item.event;
      if (!this._isBare || type !== "complete") this._builder.add(item);
      this._drop();
    }
    this.version.value += 1;
  }

  get open() {
    return this._builder.open;
  }

  _drop() {
    const count = this.rows.length - this._lines;
    if (count <= 0) return;
    this.rows.splice(0, count);
    this.dropped += count;
  }
}

/** The last lines of a run and its outcome, which link to it; `isBare`: only the lines.
    @param {{run: number, lines?: number, isBare?: boolean}} props */
export function RunTail({ run, lines = LINES, isBare = false }) {
  const [{ tail, feed }] = useState(() => {
    const made = new Tail(lines, isBare);
    return { tail: made, feed: new Feed(run, made, { tail: Math.max(ITEMS, lines) }) };
  });
  useEffect(() => () => feed.stop(), []);
  tail.version.value;
  const live = liveRun(run);
  const { terminal } = tail;
  /** @type {any} */
  const known = terminal ? { ...live, run, state: terminal.type, exit_code: terminal.exit_code, code: terminal.code } : live;
  const open = tail.open;
  const rows = open === null ? tail.rows : [...tail.rows, open].slice(-lines);
  return html`<div class="run-tail" data-terminal=${tail.isTerminal ? "true" : null} data-wrap="true">
    ${isBare ? null : html`<div class="run-tail-head"><${RunLink} run=${run} known=${known} /></div>`}
    ${isBare && tail.dropped ? html`<p class="e-note">Only the end of the output is shown. <a href=${link("runs", run)}>Show all of it</a></p>` : null}
    ${feed.state.value === "missing" ? html`<p class="none">${feed.error}</p>` : rows.map((row, index) => html`<div class="line" key=${tail.dropped + index}><${RowView} row=${row} pattern=${null} column=${-1} /></div>`)}
    ${rows.length === 0 && !isBare && feed.state.value !== "missing" ? html`<p class="none">${feed.state.value === "ended" ? "No output." : "No output yet."}</p>` : null}</div>`;
}
