// The connection to the server: one WebSocket for all calls and subscriptions of this tab.
//
// A browser opens six HTTP connections to a server, for all tabs together, so streams over HTTP
// starve each other. If a WebSocket cannot be opened, for example behind a proxy, each request is a
// POST instead, and its events are read from the response.
//
// After a loss the connection is opened again, with a growing pause. Calls in progress fail with the
// code "lost"; subscriptions get it too, and subscribe again when the connection is open.
//
// A network that is lost closes nothing. So a connection on which nothing arrives is checked with a
// request that the server answers at once, and is lost if no answer arrives.

import { effect, signal } from "./html.js";
import { tooLarge } from "./message_size.js";
import { doubtServer, newTicket, request } from "./session.js";
import { readEvents } from "./sse.js";

const FIRST_PAUSE_MS = 250;
const MAX_PAUSE_MS = 5000;
/** A proxy may neither open nor refuse a WebSocket: then HTTP is used. */
const OPEN_MS = 5000;
/** How often it is looked whether anything has arrived. */
const LOOK_MS = 5000;
/** Silent looks after which the connection is checked, and after which it is lost: 20 to 25 seconds.
    Looks are counted, not seconds: a machine that was suspended must not lose its connections. */
const CHECK_LOOKS = 2;
const LOST_LOOKS = 4;
/** Timeout of what is requested to open a connection, and to check one over HTTP. */
const ANSWER_MS = 10_000;
/** Failures to open a WebSocket while HTTP works, after which HTTP is used. */
const MAX_SOCKET_FAILURES = 2;

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
/** Ends the attempt to connect that is in progress. @type {AbortController | null} */
let attempt = null;
/** Looks since something has arrived. */
let silent = 0;
/** @type {ReturnType<typeof setInterval> | undefined} */
let looks;

/** Open the connection, and keep it open until `disconnect`. */
export function connect() {
  if (state.peek() !== "closed") open();
  addEventListener("online", retryNow);
}

/** Close the connection for good: the session is over. */
export function disconnect() {
  state.value = "closed";
  clearTimeout(timer);
  clearInterval(looks);
  attempt?.abort();
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

/** Begin an attempt to connect. One that is in progress ends: two would open two connections. */
async function open() {
  attempt?.abort();
  attempt = new AbortController();
  const { signal: ended } = attempt;
  if (state.peek() !== "lost") state.value = "connecting";
  try {
    if (socketFailures >= MAX_SOCKET_FAILURES) await openHttp(ended);
    else await openSocket(ended);
  } catch {
    if (!ended.aborted) onLost();
  }
}

/** @param {AbortSignal} ended */
async function openSocket(ended) {
  const ticket = await newTicket("/rpc", within(ended));
  if (ended.aborted) return;
  const scheme = location.protocol === "https:" ? "wss:" : "ws:";
  const made = new WebSocket(`${scheme}//${location.host}/rpc?client=Browser&frames=batch&ticket=${encodeURIComponent(ticket)}`);
  let isOpened = false;
  const deadline = setTimeout(() => {
    socketFailures = MAX_SOCKET_FAILURES;
    made.close();
  }, OPEN_MS);
  ended.addEventListener("abort", () => isOpened || made.close());
  made.onopen = () => {
    clearTimeout(deadline);
    if (ended.aborted) return;
    isOpened = true;
    socketFailures = 0;
    socket = made;
    onOpen();
  };
  made.onmessage = (event) => {
    if (socket !== made) return; // it was given up
    const message = JSON.parse(event.data);
    // What was ready at once arrives in one frame.
    if (Array.isArray(message)) message.forEach(onMessage);
    else onMessage(message);
  };
  made.onclose = () => {
    clearTimeout(deadline);
    if (isOpened ? socket !== made : ended.aborted) return;
    socket = null;
    if (!isOpened) socketFailures += 1;
    onLost();
  };
}

/** Use HTTP: there is nothing to open, but the server must answer. @param {AbortSignal} ended */
async function openHttp(ended) {
  const response = await request("/session/proof", { signal: within(ended) });
  if (ended.aborted) return;
  if (response.status < 500) onOpen();
  else onLost();
}

/** @param {AbortSignal} ended */
const within = (ended) => AbortSignal.any([ended, AbortSignal.timeout(ANSWER_MS)]);

/** Count this look as silent, and check a connection that is silent for long. */
function look() {
  silent += 1;
  if (silent >= LOST_LOOKS) onLost();
  else if (silent < CHECK_LOOKS) return;
  else if (!socket) checkHttp();
  // There is no such subscription. The answer says so, and nothing else happens.
  else send("plexus.unsubscribe", { subscription: 0 });
}

async function checkHttp() {
  try {
    const response = await request("/session/proof", { signal: AbortSignal.timeout(ANSWER_MS) });
    if (response.status < 500) silent = 0;
  } catch {
    // The next looks are silent too.
  }
}

function onOpen() {
  attempt = null;
  pauseMs = FIRST_PAUSE_MS;
  retryAt.value = 0;
  silent = 0;
  clearInterval(looks);
  looks = setInterval(look, LOOK_MS);
  state.value = "open";
}

function onLost() {
  if (state.peek() === "closed") return;
  // After a loss over HTTP a WebSocket is tried once more.
  if (socketFailures >= MAX_SOCKET_FAILURES && state.peek() === "open") socketFailures -= 1;
  doubtServer();
  attempt = null;
  clearInterval(looks);
  // On a network that is lost, closing takes as long as nothing arrives.
  const former = socket;
  socket = null;
  former?.close();
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

/** Send a request whose reply says nothing new. @param {string} method @param {object} params */
function send(method, params) {
  lastId += 1;
  socket?.send(JSON.stringify({ jsonrpc: "2.0", id: lastId, method, params }));
}

/** @param {any} message */
function onMessage(message) {
  silent = 0;
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
  const message = JSON.stringify({ jsonrpc: "2.0", id, method, params });
  const fault = tooLarge(message);
  if (fault) {
    queueMicrotask(() => abort.signal.aborted || handlers.onError(new RpcError(fault, "too_big")));
    return () => abort.abort();
  }
  pending.set(id, handlers);
  if (socket) socket.send(message);
  else post(id, message, abort);
  const leave = (/** @type {number} */ number) => {
    subscriptions.delete(number);
    send("plexus.unsubscribe", { subscription: number });
  };
  return () => {
    abort.abort();
    // The reply is on its way: the subscription is ended when its number is known.
    if (pending.delete(id) && socket) pending.set(id, { onStart: leave, onItem: () => {}, onError: () => {} });
    for (const [number, each] of subscriptions) if (each === handlers) leave(number);
  };
}

/** Send a request over HTTP and read its events. @param {number} id @param {string} message @param {AbortController} abort */
async function post(id, message, abort) {
  const { signal } = abort;
  posts.add(abort);
  const headers = { "content-type": "application/json", accept: "text/event-stream", "substrate-client": "Browser" };
  try {
    const response = await request("/rpc", { method: "POST", headers, body: message, signal });
    if (!response.ok) {
      const body = await response.json().catch(() => ({}));
      const error = body.error && typeof body.error === "object" ? body.error : { message: body.error || `The server answered ${response.status}.`, code: response.status };
      onMessage({ id, error });
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
