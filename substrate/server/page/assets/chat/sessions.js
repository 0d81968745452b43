// The sessions of the user, kept up to date while the view is open, and what can be done with them.

import { call, stream } from "../core/connection.js";
import { effect, signal } from "../core/html.js";
import { runs, version } from "../core/live.js";
import { dropDrafts, moveDrafts } from "./drafts.js";
import { TURN_METHODS } from "./turn.js";

/** @typedef {import("./conversation.js").Session} Session */

const PAGE = 500;
const MAX_SESSIONS = 5000;
const CHANGES = new Set([...TURN_METHODS, "chat.create", "chat.rename", "chat.delete", "chat.fork", "chat.configure", "claudecode.create", "claudecode.delete", "claudecode.fork"]);

/** All sessions, last updated first; null until they are known. @type {import("@preact/signals").Signal<Session[] | null>} */
export const sessions = signal(null);
/** Why they could not be loaded. */
export const problem = signal("");

/** Load the sessions. */
export async function loadSessions() {
  try {
    /** @type {Session[]} */
    const found = [];
    /** @type {string | undefined} */
    let after;
    do {
      const page = await call("chat.list", { limit: PAGE, ...(after ? { after } : {}) });
      found.push(...page.sessions);
      after = page.next;
    } while (after && found.length < MAX_SESSIONS);
    sessions.value = found.sort((one, two) => two.updated_ms - one.updated_ms);
    problem.value = "";
  } catch (error) {
    problem.value = /** @type {Error} */ (error).message;
  }
}

/** Load the sessions now and after every change that a run makes. Returns a function that ends it. */
export function watchSessions() {
  let known = "";
  return effect(() => {
    version.value;
    // The runs that change sessions, and whether each has ended: what changes here may change the list.
    let state = "";
    for (const run of runs.values()) if (CHANGES.has(run.method)) state += `${run.run}${run.state};`;
    if (sessions.peek() !== null && state === known) return;
    known = state;
    loadSessions();
  });
}

/** Create a session and return it. Throws RpcError. @param {string} name @param {string} model @param {string} prompt */
export async function createSession(name, model, prompt) {
  const session = await call("chat.create", { name, ...(model ? { model } : {}), ...(prompt ? { system_prompt: prompt } : {}) });
  await loadSessions();
  return session;
}

/** Rename a session, with its drafts. Throws RpcError. @param {string} session @param {string} name */
export async function renameSession(session, name) {
  await call("chat.rename", { session, new_name: name });
  moveDrafts(session, name);
  await loadSessions();
}

/** Delete a session, with its drafts. Throws RpcError. @param {string} session */
export async function deleteSession(session) {
  await call("chat.delete", { session });
  dropDrafts(session);
  await loadSessions();
}

/** Fork a session at a message. Throws RpcError. @param {string} session @param {string} name @param {string} node */
export async function forkSession(session, name, node) {
  const made = await call("chat.fork", { session, new_name: name, ...(node ? { node_id: node } : {}) });
  await loadSessions();
  return made;
}

/** Return a name that no session has. @param {string} base */
export function freeName(base) {
  const taken = new Set((sessions.peek() || []).map((each) => each.name));
  let name = base;
  for (let number = 2; taken.has(name); number += 1) name = `${base} ${number}`;
  return name;
}

/** Save a conversation as a Markdown file. Throws RpcError. @param {string} session */
export async function exportSession(session) {
  /** @type {string[]} */
  const pieces = [];
  await stream("chat.export", { session }, (event) => event.type === "content" && pieces.push(event.text));
  const address = URL.createObjectURL(new Blob(pieces, { type: "text/markdown" }));
  const anchor = document.createElement("a");
  anchor.href = address;
  anchor.download = `${session.replace(/[^\w.-]+/g, "-")}.md`;
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
