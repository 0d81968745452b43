// The connection to the server: one WebSocket for all calls and subscriptions of this tab.
//
// A browser opens six HTTP connections to a server, for all tabs together, so streams over HTTP
// starve each other. If a WebSocket cannot be opened, for example behind a proxy, each request is a
// POST instead, and its events are read from the response.
//
// After a loss the connection is opened again, with a growing pause. Calls in progress fail with the
// code "lost"; subscriptions get it too, and subscribe again when the connection is open.

import { effect, signal } from "./html.js";
import { doubtServer, newTicket, request } from "./session.js";
import { readEvents } from "./sse.js";

const FIRST_PAUSE_MS = 250;
const MAX_PAUSE_MS = 5000;
/** A proxy may neither open nor refuse a WebSocket: then HTTP is used. */
const OPEN_MS = 5000;
/** Failures to open a WebSocket while HTTP works, after which HTTP is used. */
const MAX_SOCKET_FAILURES = 2;

/** @typedef {{jsonrpc: "2.0", id: number, method: string, params: object}} Request */
/** @typedef {(params: {subscription: number, seq: number, time_ms?: number, result: any}) => void} OnItem */
/** @typedef {{onStart?: (run: number) => void, onItem: OnItem, onError: (error: RpcError) => void}} Handlers */

/** "connecting", "open", "lost" or "closed". */
export const state = signal("connecting");
/** When the next attempt is made, in milliseconds since the epoch; 0 while connected. */
export const retryAt = signal(0);

/** An error of the server, or of the connection to it. */
export class RpcError extends Error {
  /** @param {string} message @param {number | string} code @param {any} [data] */
  constructor(message, code, data) {
    super(message);
    this.code = code;
    this.data = data;
  }

  /** The parameters that are wrong, as `{at, fault}`. */
  get faults() {
    const data = this.data?.terminal ? this.data.terminal.data : this.data;
    return data?.errors || [];
  }
}

const lost = () => new RpcError("The connection to the server was lost.", "lost");

let lastId = 0;
/** Requests without a reply. @type {Map<number, Handlers>} */
const pending = new Map();
/** Subscriptions in progress, by their numbers. @type {Map<number, Handlers>} */
const subscriptions = new Map();
/** The requests over HTTP in progress. A browser has six connections to a server. @type {Set<AbortController>} */
const posts = new Set();
/** @type {WebSocket | null} */
let socket = null;
let socketFailures = 0;
let pauseMs = FIRST_PAUSE_MS;
/** @type {ReturnType<typeof setTimeout> | undefined} */
let timer;

/** Open the connection, and keep it open until `disconnect`. */
export function connect() {
  if (state.peek() !== "closed") open();
  addEventListener("online", retryNow);
}

/** Close the connection for good: the session is over. */
export function disconnect() {
  state.value = "closed";
  clearTimeout(timer);
  socket?.close();
  fail();
}

/** Try to connect now instead of after the pause. */
export function retryNow() {
  if (state.peek() !== "lost") return;
  clearTimeout(timer);
  pauseMs = FIRST_PAUSE_MS;
  open();
}

async function open() {
  if (state.peek() !== "lost") state.value = "connecting";
  if (socketFailures >= MAX_SOCKET_FAILURES) {
    await openHttp();
    return;
  }
  let opened = false;
  try {
    const ticket = await newTicket("/rpc");
    if (state.peek() === "closed") return;
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    const made = new WebSocket(`${scheme}//${location.host}/rpc?client=Browser&ticket=${encodeURIComponent(ticket)}`);
    socket = made;
    const deadline = setTimeout(() => {
      socketFailures = MAX_SOCKET_FAILURES;
      made.close();
    }, OPEN_MS);
    made.onopen = () => {
      clearTimeout(deadline);
      opened = true;
      socketFailures = 0;
      onOpen();
    };
    made.onmessage = (event) => onMessage(JSON.parse(event.data));
    made.onclose = () => {
      clearTimeout(deadline);
      if (socket !== made) return;
      socket = null;
      if (!opened) socketFailures += 1;
      onLost();
    };
  } catch {
    onLost();
  }
}

/** Use HTTP: there is nothing to open, but the server must answer. */
async function openHttp() {
  try {
    const response = await request("/session/proof");
    if (state.peek() === "closed") return;
    if (response.status < 500) onOpen();
    else onLost();
  } catch {
    onLost();
  }
}

function onOpen() {
  pauseMs = FIRST_PAUSE_MS;
  retryAt.value = 0;
  state.value = "open";
}

function onLost() {
  if (state.peek() === "closed") return;
  // After a loss over HTTP a WebSocket is tried once more.
  if (socketFailures >= MAX_SOCKET_FAILURES && state.peek() === "open") socketFailures -= 1;
  doubtServer();
  fail();
  clearTimeout(timer);
  timer = setTimeout(open, pauseMs);
  retryAt.value = Date.now() + pauseMs;
  state.value = "lost";
  pauseMs = Math.min(pauseMs * 2, MAX_PAUSE_MS);
}

/** Report the loss to everything that waits. */
function fail() {
  const waiting = [...pending.values(), ...subscriptions.values()];
  pending.clear();
  subscriptions.clear();
  for (const abort of posts) abort.abort();
  for (const handlers of waiting) handlers.onError(lost());
}

/** @param {any} message */
function onMessage(message) {
  if (message.method !== undefined) {
    const { params } = message;
    const handlers = subscriptions.get(params.subscription);
    if (handlers === undefined) return;
    if (isTerminal(params.result)) subscriptions.delete(params.subscription);
    handlers.onItem(params);
    return;
  }
  const handlers = pending.get(message.id);
  if (handlers === undefined) return;
  pending.delete(message.id);
  if (message.error) {
    handlers.onError(new RpcError(message.error.message, message.error.code, message.error.data));
  } else {
    subscriptions.set(message.result, handlers);
    handlers.onStart?.(message.result);
  }
}

/** Whether an event ends its run. @param {{type: string}} event */
export function isTerminal(event) {
  return event.type === "complete" || event.type === "error" || event.type === "cancelled";
}

/** Subscribe to a method. Returns a function that ends the subscription here; a run continues.
    @param {string} method @param {object} params @param {Handlers} handlers */
export function subscribe(method, params, handlers) {
  lastId += 1;
  const id = lastId;
  const abort = new AbortController();
  if (state.peek() !== "open") {
    queueMicrotask(() => abort.signal.aborted || handlers.onError(lost()));
    return () => abort.abort();
  }
  pending.set(id, handlers);
  const message = { jsonrpc: "2.0", id, method, params };
  if (socket) socket.send(JSON.stringify(message));
  else post(/** @type {Request} */ (message), abort);
  const leave = (/** @type {number} */ number) => {
    subscriptions.delete(number);
    if (!socket || state.peek() !== "open") return;
    lastId += 1;
    socket.send(JSON.stringify({ jsonrpc: "2.0", id: lastId, method: "plexus.unsubscribe", params: { subscription: number } }));
  };
  return () => {
    abort.abort();
    // The reply is on its way: the subscription is ended when its number is known.
    if (pending.delete(id) && socket) pending.set(id, { onStart: leave, onItem: () => {}, onError: () => {} });
    for (const [number, each] of subscriptions) if (each === handlers) leave(number);
  };
}

/** Send a request over HTTP and read its events. @param {Request} message @param {AbortController} abort */
async function post(message, abort) {
  const { signal } = abort;
  posts.add(abort);
  const headers = { "content-type": "application/json", accept: "text/event-stream", "substrate-client": "Browser" };
  try {
    const response = await request("/rpc", { method: "POST", headers, body: JSON.stringify(message), signal });
    if (!response.ok) {
      const body = await response.json().catch(() => ({}));
      const error = body.error && typeof body.error === "object" ? body.error : { message: body.error || `The server answered ${response.status}.`, code: response.status };
      onMessage({ id: message.id, error });
      return;
    }
    let isOver = false;
    for await (const data of readEvents(response)) {
      onMessage(data);
      isOver = data.error !== undefined || (data.method !== undefined && isTerminal(data.params.result));
    }
    // A proxy that ends a response early ends it like a server that has finished.
    if (!isOver && !signal.aborted) onLost();
  } catch {
    if (!signal.aborted) onLost();
  } finally {
    posts.delete(abort);
  }
}

/** Wait until the connection is open; rejects when it is closed for good. */
export function whenOpen() {
  return new Promise((resolve, reject) => {
    /** @type {(() => void) | undefined} */
    let stop;
    let isDone = false;
    stop = effect(() => {
      if (state.value !== "open" && state.value !== "closed") return;
      isDone = true;
      queueMicrotask(() => stop?.());
      if (state.value === "open") resolve(undefined);
      else reject(lost());
    });
    if (isDone) stop();
  });
}

/** Call a method and return its result. What the page only reads is not listed as a run (`_lookup`).
    Waits for the connection; throws RpcError.
    @param {string} method @param {object} [params] @returns {Promise<any>} */
export async function call(method, params = {}) {
  await whenOpen();
  return new Promise((resolve, reject) => {
    subscribe(method, { ...params, _lookup: true }, {
      onItem: ({ result }) => {
        if (result.type === "complete") resolve("result" in result ? result.result : result);
        else if (result.type === "error") reject(new RpcError(result.message, result.code, result.data));
        else if (result.type === "cancelled") reject(new RpcError(result.reason || "The call was stopped.", "cancelled"));
      },
      onError: reject,
    });
  });
}

/** Call a method whose events are handled one by one. Resolves with its terminal; throws RpcError.
    @param {string} method @param {object} params @param {(event: any) => void} onEvent
    @returns {Promise<any>} */
export async function stream(method, params, onEvent) {
  await whenOpen();
  return new Promise((resolve, reject) => {
    subscribe(method, { ...params, _lookup: true }, {
      onItem: ({ result }) => {
        if (result.type === "error") reject(new RpcError(result.message, result.code, result.data));
        else if (isTerminal(result)) resolve(result);
        else onEvent(result);
      },
      onError: reject,
    });
  });
}

/** Subscribe to a method that never ends, again after every loss. `onBegin` is called each time, and
    `onRefused` if the server refuses it. Returns a function that ends it.
    @param {string} method @param {object} params
    @param {{onBegin?: (run: number) => void, onEvent: (event: any) => void, onRefused?: (error: RpcError) => void}} handlers */
export function watch(method, params, { onBegin, onEvent, onRefused }) {
  let isOver = false;
  let end = () => {};
  const begin = () => {
    if (isOver) return;
    end = subscribe(method, params, {
      onStart: (run) => onBegin?.(run),
      onItem: ({ result }) => (isTerminal(result) ? setTimeout(begin, MAX_PAUSE_MS) : onEvent(result)),
      onError: (error) => {
        if (error.code === "lost") return;
        isOver = true;
        onRefused?.(error);
      },
    });
  };
  const stop = effect(() => {
    if (state.value === "open") begin();
  });
  return () => {
    isOver = true;
    stop();
    end();
  };
}
