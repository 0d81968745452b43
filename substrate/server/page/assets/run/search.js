// Searches the whole output of a run, also the rows that are not in memory, and finds the next error.

import { signal } from "../core/html.js";
import { isErrorRow, textOf } from "./rows.js";

/** @typedef {import("./log.js").RunLog} RunLog */
/** @typedef {import("./rows.js").Row} Row */

/** Matches that are remembered. */
const MAX_MATCHES = 100_000;
/** Milliseconds of work after which the browser may draw. */
const SLICE_MS = 10;

const pause = () => new Promise((resolve) => setTimeout(resolve, 0));

/** The matches of a text in the output. `changed` changes with them. */
export class Search {
  /** @param {RunLog} log @param {string} text @param {number} from the row to begin with */
  constructor(log, text, from) {
    this.pattern = new RegExp(text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "gi");
    this.changed = signal(0);
    this.count = 0;
    /** Index of the current match; -1 before there is one. */
    this.current = -1;
    this._log = log;
    this._from = from;
    this._rows = new Float64Array(256);
    this._columns = new Uint32Array(256);
    /** The first row that was not searched yet. */
    this._next = 0;
    this._isRunning = false;
    this._isStopped = false;
    this.resume();
  }

  /** Whether there are more matches than are counted. */
  get isCut() {
    return this.count >= MAX_MATCHES;
  }

  /** Whether rows are still being searched. */
  get isRunning() {
    return this._isRunning;
  }

  /** The row of the current match; -1 without one. */
  get row() {
    return this.current < 0 ? -1 : this._rows[this.current];
  }

  /** The column of the current match. */
  get column() {
    return this.current < 0 ? -1 : this._columns[this.current];
  }

  /** Go to the next match, or to the previous one with -1. @param {number} step */
  move(step) {
    if (this.count === 0) return;
    this.current = (this.current + step + this.count) % this.count;
    this.changed.value += 1;
  }

  stop() {
    this._isStopped = true;
  }

  /** Search the rows that were added. */
  async resume() {
    if (this._isRunning || this._isStopped || this.isCut) return;
    this._isRunning = true;
    try {
      await this._scan();
    } catch {
      // The connection was lost; the search continues with the next rows.
    }
    this._isRunning = false;
    if (this.current < 0 && this.count > 0) this.current = 0;
    if (!this._isStopped) this.changed.value += 1;
  }

  async _scan() {
    let since = performance.now();
    for await (const { first, rows } of rowsFrom(this._log, this._next)) {
      for (let index = 0; index < rows.length; index += 1) {
        if (this._isStopped || this.isCut) return;
        this._test(first + index, rows[index]);
        this._next = first + index + 1;
        if (performance.now() - since > SLICE_MS) {
          this.changed.value += 1;
          await pause();
          since = performance.now();
        }
      }
    }
  }

  /** @param {number} index @param {Row} row */
  _test(index, row) {
    const text = textOf(row);
    this.pattern.lastIndex = 0;
    for (let match = this.pattern.exec(text); match && this.count < MAX_MATCHES; match = this.pattern.exec(text)) {
      if (this.count === this._rows.length) {
        const rows = new Float64Array(2 * this.count);
        const columns = new Uint32Array(2 * this.count);
        rows.set(this._rows);
        columns.set(this._columns);
        this._rows = rows;
        this._columns = columns;
      }
      this._rows[this.count] = index;
      this._columns[this.count] = match.index;
      if (this.current < 0 && index >= this._from) this.current = this.count;
      this.count += 1;
    }
  }
}

/** Yield finished rows from a row on: from memory as far as they are there, then from the server.
    @param {RunLog} log @param {number} from */
async function* rowsFrom(log, from) {
  /** @type {Row[]} */
  const rows = [];
  for (let index = from; index < log.finished; index += 1) {
    const row = log.row(index);
    if (row === undefined) break;
    rows.push(row);
  }
  yield { first: from, rows };
  if (from + rows.length < log.finished) yield* log.read(from + rows.length);
}

/** Return the first error after a row, or from the start if there is none after it; -1 without one.
    @param {RunLog} log @param {number} after */
export async function findError(log, after) {
  for (const [from, to] of [[after + 1, Infinity], [0, after + 1]]) {
    let since = performance.now();
    for await (const { first, rows } of rowsFrom(log, from)) {
      const found = rows.findIndex((row, index) => first + index < to && isErrorRow(row));
      if (found >= 0) return first + found;
      if (first + rows.length >= to) break;
      if (performance.now() - since > SLICE_MS) {
        await pause();
        since = performance.now();
      }
    }
  }
  return -1;
}
