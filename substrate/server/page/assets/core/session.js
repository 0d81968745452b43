// The session of this page: a secret that the server gives in exchange for a token.
//
// It is in localStorage, which belongs to this origin, port included. There is no cookie: a browser
// sends those to every port of a machine. Every request carries the secret in its Authorization
// header; a token is used once, and kept nowhere.
//
// While the server is down, another program may listen on its port. So after a lost connection the
// secret is not sent before the server has proved that it knows the session.

const KEY = "substrate.session";
const JSON_TYPE = "application/json";
/** Timeout of the proof: a network that is lost answers nothing. */
const PROOF_MS = 10_000;
/** What a server answers without a valid session; 421 through a forwarded port. */
export const NO_TOKEN = new Set([401, 421]);

let secret = read();
let doubted = false;
/** @type {Promise<void> | null} */
let proving = null;
const listeners = new Set();

function read() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null; // the browser stores nothing for this page
  }
}

/** Keep a secret, or forget it with null. False if the browser does not store it. */
function keep(value) {
  secret = value;
  try {
    if (value === null) localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, value);
  } catch {
    return value === null;
  }
  return true;
}

function notify() {
  for (const listener of listeners) listener(secret === null);
}

/** Subscribe to the end and the beginning of the session, in other tabs too: `listener(isOver)`. */
export function onSession(listener) {
  listeners.add(listener);
}

/** Whether this page has a session that it can end. */
export function hasSession() {
  return secret !== null;
}

function send(path, options, bearer) {
  const headers = { ...options.headers };
  if (bearer !== null) headers.authorization = `Bearer ${bearer}`;
  return fetch(path, { ...options, headers, credentials: "omit", cache: "no-store", redirect: "error" });
}

/** The connection was lost: the next request asks for a proof first. */
export function doubtServer() {
  doubted = true;
}

const hex = (bytes) => Array.from(new Uint8Array(bytes), (byte) => byte.toString(16).padStart(2, "0")).join("");

/** Have the server prove that it knows the session. Throws if it cannot; a session that it does not
    know is over. */
async function proveServer() {
  // A page over http, of another machine, cannot compute it.
  if (secret === null || !crypto.subtle) return;
  const asked = secret;
  const challenge = hex(crypto.getRandomValues(new Uint8Array(32)));
  const response = await send(`/session/proof?session=${asked.split(".")[0]}&challenge=${challenge}`, { signal: AbortSignal.timeout(PROOF_MS) }, null);
  if (response.status === 404) {
    if (secret === asked) keep(null);
  } else if (!response.ok || (await response.json()).proof !== (await proofOf(asked, challenge))) {
    throw new Error("the server at this address does not know the session");
  }
}

/** Wait until the server has proved itself, if there is a doubt. */
async function trusted() {
  while (doubted || proving) {
    if (!proving) {
      doubted = false; // what is lost from here on is a new doubt
      const settle = () => { proving = null; };
      proving = proveServer().catch((error) => {
        doubted = true;
        throw error;
      }).finally(settle);
    }
    await proving;
  }
}

async function proofOf(asked, challenge) {
  const text = new TextEncoder();
  const digest = await crypto.subtle.digest("SHA-256", text.encode(asked));
  const algorithm = { name: "HMAC", hash: "SHA-256" };
  const key = await crypto.subtle.importKey("raw", digest, algorithm, false, ["sign"]);
  return hex(await crypto.subtle.sign("HMAC", key, text.encode(`substrate session proof ${challenge}`)));
}

/** Like `fetch`, with the session. A refusal for want of one ends the session of the page. */
export async function request(path, options = {}) {
  await trusted();
  const used = secret;
  let response;
  try {
    response = await send(path, options, used);
  } catch (error) {
    doubtServer();
    throw error;
  }
  if (!NO_TOKEN.has(response.status)) return response;
  // Another tab may have begun a session in the meantime.
  if (secret !== null && secret !== used) return send(path, options, secret);
  keep(null);
  notify();
  return response;
}

/** Return a ticket for one connection to this path. Throws if the server refuses.
    @param {string} path @param {AbortSignal} [signal] */
export async function newTicket(path, signal) {
  const headers = { "content-type": JSON_TYPE, accept: JSON_TYPE };
  const response = await request("/tickets", { method: "POST", headers, body: JSON.stringify({ path }), signal });
  if (!response.ok) throw new Error(`the server answered ${response.status}`);
  return (await response.json()).ticket;
}

/** Exchange a token for a session. Returns an error message, or null. */
export async function beginSession(token) {
  const former = secret;
  const headers = { "content-type": JSON_TYPE, accept: JSON_TYPE };
  const response = await send("/session", { method: "POST", headers, body: "{}" }, token);
  const answer = await response.json();
  if (!response.ok) return answer.error || `the server answered ${response.status}`;
  // A server that asks for no token begins no session either.
  const kept = keep(answer.session);
  if (former !== null && !doubted) send("/session", { method: "DELETE" }, former).catch(() => {});
  return kept ? null : "this browser does not store anything for this page; allow it to";
}

/** End the session here and on the server. Returns an error message, or null if it is revoked. */
export async function endSession() {
  await trusted();
  const response = await send("/session", { method: "DELETE" }, secret);
  if (!response.ok && !NO_TOKEN.has(response.status)) return (await response.json()).error;
  keep(null);
  notify();
  return null;
}

/** Take the token out of the address, before anything else can see it. */
function takeToken() {
  if (!location.hash.startsWith("#token=") && !location.hash.includes("&token=")) return null;
  const given = new URLSearchParams(location.hash.slice(1));
  history.replaceState(null, "", location.pathname);
  return given.get("token");
}

/** Begin a session with the token in the address, if there is one. Returns an error message, or null. */
export async function enter() {
  const token = takeToken();
  return token === null ? null : beginSession(token);
}

addEventListener("storage", (event) => {
  // `key` is null when everything was cleared.
  if (event.storageArea !== localStorage || (event.key !== KEY && event.key !== null)) return;
  secret = event.key === null ? null : event.newValue;
  notify();
});
