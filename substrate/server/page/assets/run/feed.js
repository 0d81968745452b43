// Reads the items of a run into its log: what exists in parts, then new ones as they are written.
//
// What exists is requested part by part, so a long run never fills the memory. New items are collected
// and added once for each frame, for a bounded time, so that the page can be used meanwhile. If they
// arrive faster than they are added, the subscription is ended, and they are requested in parts again.
// After a lost connection reading continues after the last item.

import { RpcError, call, isTerminal, subscribe, whenOpen } from "../core/connection.js";
import { signal } from "../core/html.js";

/** @typedef {import("./rows.js").Item} Item */

/** Items of one request. The next part is requested while one is added. */
const PART_ITEMS = 4000;
/** Characters and items that may wait to be added. */
const MAX_WAITING = 4_000_000;
const MAX_WAITING_ITEMS = 20_000;
/** Milliseconds in which items are added before the browser may draw, and items between two looks at the clock. */
const SLICE_MS = 20;
const SLICE_ITEMS = 250;
/** Pause while the tab is hidden, when there are no frames. */
const HIDDEN_MS = 500;
const RETRY_MS = 1000;

/** Wait for the next frame, or in a hidden tab for a short time. */
const nextFrame = () => new Promise((resolve) => {
  if (document.hidden) setTimeout(resolve);
  else requestAnimationFrame(resolve);
});

/** Reads a run until `stop`. `state` is "loading", "live", "lost", "ended" or "missing". */
export class Feed {
  /** @param {number} run @param {{last: number, add: (items: Item[]) => void}} log @param {{tail?: number}} [options] only the last items */
  constructor(run, log, { tail } = {}) {
    this.state = signal("loading");
    /** What part of the run has been read, from 0 to 1. */
    this.read = signal(0);
    /** Why the run cannot be read. */
    this.error = "";
    this._run = run;
    this._log = log;
    this._tail = tail;
    this._isStopped = false;
    this._end = () => {};
    this._follow();
  }

  /** Read no more. */
  stop() {
    this._isStopped = true;
    this._end();
  }

  async _follow() {
    while (!this._isStopped) {
      try {
        await whenOpen();
        if (await this._readParts()) {
          this.state.value = "ended";
          return;
        }
        if (this._isStopped) return;
        this.state.value = "live";
        if (await this._attach()) {
          this.state.value = "ended";
          return;
        }
      } catch (error) {
        if (this._isStopped) return;
        if (!(error instanceof RpcError)) throw error;
        if (error.code === "lost") this.state.value = "lost";
        else if (error.code === "busy" || error.code === -32003) {
          await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
        } else {
          this.error = error.message;
          this.state.value = "missing";
          return;
        }
      }
    }
  }

  /** Request the part after an item. @param {number} after @returns {Promise<any>} */
  _request(after) {
    const part = call("plexus.items", { run: this._run, after, limit: PART_ITEMS });
    part.catch(() => {}); // the caller that awaits it handles errors; after `stop` there is none
    return part;
  }

  /** Read what exists. Returns whether the run has ended. */
  async _readParts() {
    const log = this._log;
    /** The part that was requested while the former one was added, and the item it begins after. @type {{after: number, part: Promise<any>} | null} */
    let next = null;
    for (;;) {
      if (this._isStopped) return false;
      let after = log.last;
      if (this._tail !== undefined && after === 0) {
        const { last_seq: last } = await call("plexus.items", { run: this._run, after: 0, limit: 1 });
        after = Math.max(0, last - this._tail);
      }
      const part = await (next?.after === after ? next.part : this._request(after));
      let items = part.items;
      if (items.length === 0 && part.ended && part.last_seq <= after) {
        // The server was killed before it recorded the last items that are shown here; only the terminal is new.
        const { items: last } = await call("plexus.items", { run: this._run, after: Math.max(0, part.last_seq - 1), limit: 1 });
        items = last;
      }
      if (this._isStopped) return false;
      const last = items.length ? items[items.length - 1].seq : Infinity;
      next = last < part.last_seq ? { after: last, part: this._request(last) } : null;
      for (let added = this._addSome(items, 0); added < items.length; added = this._addSome(items, added)) {
        await nextFrame();
        if (this._isStopped) return false;
      }
      this.read.value = part.last_seq ? Math.min(1, log.last / part.last_seq) : 1;
      if (log.last >= part.last_seq || items.length === 0) return part.ended;
      if (this.state.value === "lost") this.state.value = "loading";
    }
  }

  /** Add items from an index on, for the time of a frame. Returns the index after them.
      @param {Item[]} items @param {number} from */
  _addSome(items, from) {
    const until = performance.now() + SLICE_MS;
    let at = from;
    do {
      this._log.add(items.slice(at, at + SLICE_ITEMS));
      at += SLICE_ITEMS;
    } while (at < items.length && performance.now() < until);
    return Math.min(at, items.length);
  }

  /** Read new items as they are written. Resolves with whether the run has ended. @returns {Promise<boolean>} */
  _attach() {
    return new Promise((resolve, reject) => {
      /** @type {Item[]} */
      let waiting = [];
      let size = 0;
      let isScheduled = false;
      let isDone = false;
      const finish = (/** @type {boolean} */ hasEnded) => {
        isDone = true;
        this._end();
        resolve(hasEnded);
      };
      const flush = () => {
        isScheduled = false;
        if (this._isStopped || isDone || waiting.length === 0) return;
        const added = this._addSome(waiting, 0);
        const { event } = waiting[added - 1];
        size *= 1 - added / waiting.length;
        waiting = waiting.slice(added);
        if (isTerminal(event)) finish(true);
        else if (waiting.length) schedule();
      };
      const schedule = () => {
        if (isScheduled) return;
        isScheduled = true;
        if (document.hidden) setTimeout(flush, HIDDEN_MS);
        else requestAnimationFrame(flush);
      };
      this._end = subscribe("plexus.attach", { run: this._run, after: this._log.last, _times: true }, {
        onItem: ({ seq, time_ms: time, result }) => {
          if (isDone) return;
          waiting.push({ seq, time_ms: time ?? Date.now(), event: result });
          size += (result.data || result.text || "").length + 200;
          if (size > MAX_WAITING || waiting.length > MAX_WAITING_ITEMS) {
            waiting = [];
            finish(false);
          } else schedule();
        },
        onError: (error) => {
          flush();
          if (isDone) return;
          isDone = true; // what was not added is read again
          reject(error);
        },
      });
    });
  }
}
