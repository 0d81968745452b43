// The output of one run as numbered rows, in bounded memory.
//
// Rows are divided into pages. For each page only its position is kept: the item and the offset where
// it begins, its first row and the style of the terminal there. The rows themselves are kept for the
// last page and for some pages that were used recently; others are read from the server again.

import { call } from "../core/connection.js";
import { signal } from "../core/html.js";
import { RowBuilder, gapText, sizeOf } from "./rows.js";

/** @typedef {import("./rows.js").Row} Row */
/** @typedef {import("./rows.js").Item} Item */
/** `times` has the time of each row. @typedef {{rows: Row[], times: number[], size: number}} Page */

/** A page ends at whichever it reaches first. */
const PAGE_ROWS = 2000;
const PAGE_SIZE = 64 * 1024;
/** What is kept of pages that are not the last. */
const CACHE_PAGES = 24;
const CACHE_SIZE = 1_500_000;
const MAX_LOADS = 2;
/** Questions that are remembered. */
const MAX_QUESTIONS = 200;

/** Return a typed array with room for an index. @template {Float64Array | Uint32Array} T @param {T} array @param {number} index @returns {T} */
function withRoom(array, index) {
  if (index < array.length) return array;
  const larger = /** @type {T} */ (new (/** @type {any} */ (array.constructor))(array.length * 2));
  larger.set(array);
  return larger;
}

/** The rows of a run. `version` changes with the rows. */
export class RunLog {
  /** @param {number} run */
  constructor(run) {
    this.run = run;
    this.version = signal(0);
    /** Changes with the terminal, the progress and the questions. */
    this.facts = signal(0);
    /** Number of rows, with the one that is not finished. */
    this.count = 0;
    /** Number of the last item. */
    this.last = 0;
    /** The event that ended the run. @type {any} */
    this.terminal = null;
    /** The last event of progress. @type {any} */
    this.progress = null;
    /** Questions with their times, by the number of the request. @type {Map<string, {event: any, time: number, answered?: any, answeredAt?: number}>} */
    this.questions = new Map();
    this._seqs = new Float64Array(64);
    this._offsets = new Uint32Array(64);
    this._firsts = new Float64Array(64);
    /** @type {(import("./ansi.js").Style | null)[]} */
    this._styles = [null];
    this._pages = 1;
    this._seqs[0] = 1;
    /** @type {Page} */
    this._tail = { rows: [], times: [], size: 0 };
    /** The unfinished row. @type {Row | null} */
    this._open = null;
    /** Whether there is output of a terminal. */
    this.isTerminal = false;
    this._time = 0;
    /** @type {Map<number, Page>} */
    this._cache = new Map();
    this._cached = 0;
    /** Pages to load, the most urgent first, and those being loaded. @type {number[]} */
    this._wanted = [];
    /** @type {Set<number>} */
    this._loads = new Set();
    this._builder = new RowBuilder(null, (row, time, seq, offset) => this._addRow(row, time, seq, offset));
  }

  /** Number of finished rows. */
  get finished() {
    return this._firsts[this._pages - 1] + this._tail.rows.length;
  }

  /** Add items, in order. Items that are known are skipped. @param {Item[]} items */
  add(items) {
    let hasFacts = false;
    for (const item of items) {
      const { event } = item;
      // A terminal may have a lower number than the last item if the server was killed before it recorded that item.
      const isTerminal = event.type === "complete" || event.type === "error" || event.type === "cancelled";
      if ((item.seq <= this.last && !isTerminal) || this.terminal) continue;
      this.last = Math.max(this.last, item.seq);
      this._time = item.time_ms;
      if (isTerminal) this.terminal = event;
      else if (event.type === "stdout" || event.type === "stderr") this.isTerminal = true;
      else if (event.type === "progress") this.progress = event;
      else if (event.type === "request") this._ask(event, item.time_ms);
      else if (event.type === "answered") {
        const asked = this.questions.get(event.request);
        if (asked) Object.assign(asked, { answered: event, answeredAt: item.time_ms });
      }
      hasFacts ||= isTerminal || event.type === "progress" || event.type === "request" || event.type === "answered";
      this._builder.add(item);
    }
    if (hasFacts) this.facts.value += 1;
    this._open = this._builder.open;
    this.count = this.finished + (this._open === null ? 0 : 1);
    this.version.value += 1;
  }

  /** Return a row; undefined while it is not in memory. @param {number} index @returns {Row | undefined} */
  row(index) {
    const at = this._find(index);
    if (at.page === undefined) return undefined;
    return at.index === at.page.rows.length && this._open !== null ? this._open : at.page.rows[at.index];
  }

  /** Return when a row was written; 0 while it is not in memory. @param {number} index */
  timeOf(index) {
    const at = this._find(index);
    return at.page?.times[at.index] ?? (at.page ? this._time : 0);
  }

  /** Load the rows from `first` to `last`, and those around them, if they are not in memory. @param {number} first @param {number} last */
  need(first, last) {
    const from = this._pageOf(Math.max(0, first));
    const to = this._pageOf(Math.max(0, last));
    this._wanted = [];
    for (let page = from; page <= to; page += 1) this._wanted.push(page);
    for (const page of [this._pageOf(Math.max(0, first - PAGE_ROWS / 4)), this._pageOf(last + PAGE_ROWS / 4)]) {
      if (page < from || page > to) this._wanted.push(page);
    }
    this._loadNext();
  }

  /** Read all rows from a row on, in parts. The unfinished row is included with `withOpen`.
      @param {number} from @param {boolean} [withOpen] @returns {AsyncGenerator<{first: number, rows: Row[], times: number[]}>} */
  async *read(from, withOpen = false) {
    const page = this._pageOf(from);
    let first = this._firsts[page];
    /** @type {Row[]} */
    let rows = [];
    /** @type {number[]} */
    let times = [];
    const builder = new RowBuilder(this._styles[page], (row, time) => {
      rows.push(row);
      times.push(time);
    });
    const end = this.last;
    for (let after = this._seqs[page] - 1; after < end; ) {
      const items = await this._fetch(after, end - after);
      if (items.length === 0) break;
      for (const item of items) builder.add(item, item.seq === this._seqs[page] ? this._offsets[page] : 0);
      after = items[items.length - 1].seq;
      if (withOpen && after >= end) builder.finish();
      const skipped = Math.max(0, Math.min(rows.length, from - first));
      yield { first: first + skipped, rows: rows.slice(skipped), times: times.slice(skipped) };
      first += rows.length;
      rows = [];
      times = [];
    }
  }

  /** @param {any} event @param {number} time */
  _ask(event, time) {
    if (this.questions.size < MAX_QUESTIONS) this.questions.set(event.request, { event, time });
  }

  /** @param {Row} row @param {number} time @param {number} seq @param {number} offset */
  _addRow(row, time, seq, offset) {
    const tail = this._tail;
    tail.rows.push(row);
    tail.times.push(time);
    tail.size += sizeOf(row);
    if (tail.rows.length < PAGE_ROWS && tail.size < PAGE_SIZE) return;
    const page = this._pages;
    this._keep(page - 1, tail);
    this._seqs = withRoom(this._seqs, page);
    this._offsets = withRoom(this._offsets, page);
    this._firsts = withRoom(this._firsts, page);
    this._seqs[page] = seq;
    this._offsets[page] = offset;
    this._firsts[page] = this._firsts[page - 1] + tail.rows.length;
    this._styles.push(this._builder.style);
    this._pages += 1;
    this._tail = { rows: [], times: [], size: 0 };
  }

  /** Return the page of a row. @param {number} index */
  _pageOf(index) {
    let low = 0;
    let high = this._pages - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this._firsts[middle] <= index) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  /** @param {number} index @returns {{page: Page | undefined, index: number}} */
  _find(index) {
    const number = this._pageOf(index);
    return { page: number === this._pages - 1 ? this._tail : this._cache.get(number), index: index - this._firsts[number] };
  }

  /** Keep a page, and evict those that were not used for the longest time. @param {number} number @param {Page} page */
  _keep(number, page) {
    this._cache.set(number, page);
    this._cached += page.size;
    for (const [oldest, each] of this._cache) {
      if ((this._cache.size <= CACHE_PAGES && this._cached <= CACHE_SIZE) || this._cache.size <= 3) break;
      this._cache.delete(oldest);
      this._cached -= each.size;
    }
  }

  _loadNext() {
    while (this._loads.size < MAX_LOADS && this._wanted.length) {
      const number = /** @type {number} */ (this._wanted.shift());
      const known = this._cache.get(number);
      if (known) { // now the last to be evicted
        this._cache.delete(number);
        this._cache.set(number, known);
      } else if (number < this._pages - 1 && !this._loads.has(number)) this._load(number);
    }
  }

  /** @param {number} number */
  async _load(number) {
    this._loads.add(number);
    try {
      const page = await this._readPage(number);
      if (!this._cache.has(number)) this._keep(number, page);
      this.version.value += 1;
    } catch {
      // The connection was lost. The rows are requested again when they are drawn after the next change.
    } finally {
      this._loads.delete(number);
      this._loadNext();
    }
  }

  /** @param {number} number @returns {Promise<Page>} */
  async _readPage(number) {
    const first = this._seqs[number];
    const until = this._seqs[number + 1];
    const count = this._firsts[number + 1] - this._firsts[number];
    /** @type {Page} */
    const page = { rows: [], times: [], size: 0 };
    const builder = new RowBuilder(this._styles[number], (row, time) => {
      if (page.rows.length === count) return;
      page.rows.push(row);
      page.times.push(time);
      page.size += sizeOf(row);
    });
    for (let after = first - 1; after < until && page.rows.length < count; ) {
      const items = await this._fetch(after, until - after);
      if (items.length === 0) break;
      for (const item of items) builder.add(item, item.seq === first ? this._offsets[number] : 0);
      after = items[items.length - 1].seq;
    }
    builder.finish();
    // The store may have lost what was shown before.
    while (page.rows.length < count) {
      page.rows.push({ parts: [{ text: gapText({ from: first, to: until }), style: { dim: true } }] });
      page.times.push(0);
    }
    return page;
  }

  /** @param {number} after @param {number} count @returns {Promise<Item[]>} */
  async _fetch(after, count) {
    const found = await call("plexus.items", { run: this.run, after, limit: Math.min(10_000, Math.max(1, count)) });
    return found.items;
  }
}
