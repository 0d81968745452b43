// One run as this page has it: its items, within a bound, and what they make together.

import { Blocks } from "./blocks.js";
import { Follower, call } from "./rpc.js";

/** What is kept of one run; the oldest goes first. The server keeps less. */
const MOST_ITEMS = 20000;
const MOST_CHARACTERS = 24_000_000;

const UNDER_WAY = new Set(["connecting", "live", "broken"]);

/** A run that is being read. Whoever listens is told of every change. */
export class RunLog {
  constructor() {
    this.items = [];
    this.blocks = new Blocks();
    this.state = "connecting";
    this.why = null;
    this.terminal = null;
    this.firstAt = null;
    this.lastAt = null;
    this.requests = new Map();
    /** How many items are no longer here. */
    this.dropped = 0;
    this.owned = false;
    this._size = 0;
    this._listeners = new Set();
    this._follower = new Follower({
      onItem: (seq, event, at) => this._take(seq, event, at),
      onState: (state, why) => this._turn(state, why),
    });
  }

  get run() {
    return this._follower.run;
  }

  get method() {
    return this._follower.method;
  }

  get last() {
    return this._follower.last;
  }

  get repeated() {
    return this._follower.repeated;
  }

  get resumed() {
    return this._follower.resumed;
  }

  get isOver() {
    return !UNDER_WAY.has(this.state);
  }

  /** Begin a run; throws RpcError. */
  async begin(method, params) {
    this.owned = true;
    await this._follower.begin(method, params);
  }

  /** Take up a run that exists, from its first item. */
  follow(run) {
    this._follower.follow(run);
  }

  /** Stop the run itself. */
  async stop() {
    await call("plexus.cancel", { run: this.run, reason: "stopped in the browser" });
  }

  /** Read it no longer. */
  close() {
    this._follower.close();
  }

  /** Be told: `listener({dropped})`; call what is returned to be told no more. */
  listen(listener) {
    this._listeners.add(listener);
    return () => this._listeners.delete(listener);
  }

  _tell(news) {
    for (const listener of this._listeners) listener(news);
  }

  /** `at` is when the server wrote the item. */
  _take(seq, event, at) {
    if (this.firstAt === null) this.firstAt = at;
    this.lastAt = at;
    const size = sizeOf(event);
    this.items.push({ seq, at, event, size });
    this._size += size;
    this.blocks.add(seq, at, event);
    if (event.type === "request") this.requests.set(event.request, event);
    if (event.type === "complete" || event.type === "error" || event.type === "cancelled") {
      this.terminal = event;
    }
    const news = { dropped: 0, droppedBlocks: 0 };
    if (this.items.length > MOST_ITEMS || this._size > MOST_CHARACTERS) this._drop(news);
    this._tell(news);
  }

  /** A tenth at a time, so that it is seldom. */
  _drop(news) {
    const most = Math.floor(this.items.length / 10) || 1;
    let gone = 0;
    while (gone < most || (this._size > MOST_CHARACTERS && gone < this.items.length - 1)) {
      this._size -= this.items[gone].size;
      gone += 1;
    }
    const last = this.items[gone - 1].seq;
    this.items.splice(0, gone);
    this.dropped += gone;
    news.dropped = gone;
    news.droppedBlocks = this.blocks.drop(last);
  }

  _turn(state, why) {
    this.state = state;
    this.why = why || null;
    this._tell({ dropped: 0, droppedBlocks: 0 });
  }
}

/** About how much room an item takes. */
function sizeOf(event) {
  let size = 100;
  for (const value of Object.values(event)) {
    if (typeof value === "string") size += value.length;
    else if (value && typeof value === "object") size += 500;
  }
  return size;
}
