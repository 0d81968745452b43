// Calling the server: one answer, or a stream that is taken up again where it broke off.
//
// Streams are read with fetch, which sends the session in a header; an EventSource cannot. Items of
// a run are numbered from 1 without a hole, so a reader knows what is missing and what came twice.

import { eventsOf } from "./events.js";
import { NO_TOKEN, doubtServer, request } from "./session.js";

const JSON_TYPE = "application/json";
const STREAM = "text/event-stream";
const TERMINALS = new Set(["complete", "error", "cancelled"]);
/** How many runs are read at a time. A browser opens six connections to a server: one is for what
    the page always listens to, one for what a view listens to, and one is left for calls. */
const MOST_STREAMS = 3;

let numbers = 0;
let streams = 0;

/** What the server, or the way to it, said no with. */
export class RpcError extends Error {
  constructor(message, code, data) {
    super(message);
    this.code = code;
    this.data = data;
  }

  /** Each place where parameters are wrong, with what is wrong there. */
  get faults() {
    const data = this.data && this.data.terminal ? this.data.terminal.data : this.data;
    return (data && data.errors) || [];
  }

  /** The word for programs, as in "not_found". */
  get word() {
    return (this.data && this.data.terminal && this.data.terminal.code) || null;
  }
}

/** Post to the server. Throws RpcError if it refuses. */
export async function post(body, accept, signal) {
  const headers = { "content-type": JSON_TYPE, accept };
  const response = await request("/rpc", { method: "POST", headers, body: JSON.stringify(body), signal });
  return checked(response);
}

async function checked(response) {
  if (response.ok) return response;
  let said = {};
  try {
    said = await response.json();
  } catch {
    // Whoever answered was no server of ours; the status says enough.
  }
  const error = said.error;
  if (error && typeof error === "object") throw new RpcError(error.message, error.code, error.data);
  throw new RpcError(error || `the server answered ${response.status}`, response.status, said);
}

function message(method, params) {
  numbers += 1;
  return { jsonrpc: "2.0", id: numbers, method, params: params || {} };
}

/** Call a method and wait for its end: `{run, events, terminal}`. Throws RpcError. */
async function callWhole(method, params, signal) {
  const response = await post(message(method, params), JSON_TYPE, signal);
  const said = await response.json();
  if (said.error) throw new RpcError(said.error.message, said.error.code, said.error.data);
  return said.result;
}

/** Call a method and give what it returns. */
export async function call(method, params, signal) {
  const { terminal } = await callWhole(method, params, signal);
  return "result" in terminal ? terminal.result : terminal;
}

/** Several methods that never end, over one connection; `tell(index, event)` for each event.
    It comes back by itself until `signal` is aborted, beginning anew each time. */
export async function watchAll(calls, tell, { signal, onState = () => {} }) {
  let wait = 250;
  while (!signal.aborted) {
    try {
      const batch = calls.map(([method, params]) => message(method, params));
      const response = await post(batch, STREAM, signal);
      const places = new Map();
      for await (const { data } of eventsOf(response)) {
        if (Array.isArray(data)) {
          const place = (answer) => batch.findIndex((each) => each.id === answer.id);
          for (const answer of data) if (!answer.error) places.set(answer.result, place(answer));
          onState("open", [...places.keys()]);
          for (const { error, ...answer } of data) if (error) tell(place(answer), { type: "error", message: error.message });
          wait = 250;
        } else {
          tell(places.get(data.params.subscription), data.params.result);
        }
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof RpcError && NO_TOKEN.has(error.code)) return;
    }
    doubtServer();
    onState("lost", []);
    await pause(wait, signal);
    wait = Math.min(wait * 2, 5000);
  }
}

function pause(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    });
  });
}

/** A random key, so that a call that was lost on the way is not made twice. */
function newKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return `page-${Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

function tooMany() {
  return new RpcError(
    `${MOST_STREAMS} runs are being read in this page, as many as a browser has connections for. ` +
      "Wait for one of them, or stop it; or use a terminal.", "busy");
}

/** Reads one run: begins it, or takes up one that exists, and goes on after what it has whenever
    the connection breaks. Calls `onItem(seq, event, time_ms)`, in order, each once, and
    `onState("connecting" | "live" | "broken" | "ended" | "gone", why)`. */
export class Follower {
  constructor({ onItem, onState = () => {} }) {
    this.run = null;
    this.method = null;
    this.last = 0;
    this.repeated = 0;
    this.resumed = 0;
    this.ended = false;
    this._onItem = onItem;
    this._onState = onState;
    this._abort = new AbortController();
  }

  /** Begin a run; resolves with its number once the server has answered, or throws RpcError. */
  async begin(method, params) {
    if (streams >= MOST_STREAMS) throw tooMany();
    this.method = method;
    const body = message(method, { ...params, _run: newKey(), _times: true });
    const answered = new Promise((resolve, reject) => {
      this._answered = { resolve, reject };
    });
    this._read(() => post(body, STREAM, this._abort.signal));
    return answered;
  }

  /** Take up a run that exists, after this item. */
  follow(run, after = 0) {
    this.run = run;
    this.last = after;
    if (streams >= MOST_STREAMS) this._end("gone", tooMany());
    else this._read(() => this._attach());
  }

  /** Read no more. A run that this page began is stopped by the server after a while. */
  close() {
    this._abort.abort();
  }

  _attach() {
    const headers = { accept: STREAM };
    if (this.last) headers["last-event-id"] = `${this.run}:${this.last}`;
    return request(`/runs/${this.run}/events?times=1`, { headers, signal: this._abort.signal }).then(checked);
  }

  async _read(open) {
    const { signal } = this._abort;
    let wait = 250;
    streams += 1;
    try {
      for (let first = true; !signal.aborted && !this.ended; first = false) {
        this._onState("connecting");
        try {
          const response = await (first || this.run === null ? open() : this._attach());
          if (response.status === 204) {
            this._end("ended");
            return;
          }
          if (!first) this.resumed += 1;
          this._onState("live");
          for await (const { data } of eventsOf(response)) {
            wait = 250;
            if (!this._take(data)) break; // an item is missing: ask for it
            if (this.ended) return;
          }
        } catch (error) {
          if (signal.aborted) return;
          if (error instanceof RpcError) {
            this._fail(error);
            return;
          }
        }
        doubtServer();
        this._onState("broken");
        await pause(wait, signal);
        wait = Math.min(wait * 2, 5000);
      }
    } finally {
      streams -= 1;
    }
  }

  _take(data) {
    if (!data.params) {
      if (data.error) throw new RpcError(data.error.message, data.error.code, data.error.data);
      this.run = data.result;
      if (this._answered) this._answered.resolve(this.run);
      return true;
    }
    const { seq, result, time_ms: at } = data.params;
    this.method = this.method || data.method;
    if (result.type === "gap") {
      // These are no longer kept: it is said, and the next item is the one after them.
      this._onItem(result.to, result, at);
      this.last = result.to;
      return true;
    }
    if (seq <= this.last) {
      this.repeated += 1;
      return true;
    }
    if (seq !== this.last + 1) return false;
    this.last = seq;
    this._onItem(seq, result, at);
    if (TERMINALS.has(result.type)) this._end("ended");
    return true;
  }

  _end(state, why) {
    this.ended = true;
    this._onState(state, why);
    this._abort.abort();
  }

  _fail(error) {
    if (this._answered && this.run === null) this._answered.reject(error);
    this._end("gone", error);
  }
}
