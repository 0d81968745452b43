// A conversation: its stored messages, loaded in pages from the end, and the turn in progress.
//
// A turn is found by the runs that the page watches, so an answer that was started in another tab or
// by another program is shown too. If it cannot be found, stored messages are polled until it ends.

import { call, state } from "../core/connection.js";
import { ACTIVE } from "../core/format.js";
import { batch, effect, signal } from "../core/html.js";
import { isKnown, runs, version } from "../core/live.js";
import { loadSiblings } from "./branches.js";
import { TURN_METHODS, Turn } from "./turn.js";

/** @typedef {import("./rows.js").Message} Message */
/** @typedef {{session_id: string, name: string, model: string, position: {tree_id: string, node_id: string},
      created_ms: number, updated_ms: number, busy: boolean, [setting: string]: any}} Session */

const PAGE = 60;
const POLL_MS = 1000;

/** Turns in progress by session. They outlive the view, because their messages may not be stored yet. @type {Map<string, Turn>} */
const turns = new Map();
/** The sessions of runs that were inspected. @type {Map<number, Promise<string | null>>} */
const inspected = new Map();

/** Return the session of a turn, or null. @param {number} run @returns {Promise<string | null>} */
function sessionOf(run) {
  let found = inspected.get(run);
  if (!found) {
    found = call("plexus.inspect", { run }).then((info) => info.arguments?.session || info.arguments?.session_name || null, () => null);
    inspected.set(run, found);
  }
  return found;
}

/** The state of an open conversation. */
export class Conversation {
  /** @param {string} name */
  constructor(name) {
    this.name = name;
    this.session = signal(/** @type {Session | null} */ (null));
    this.messages = signal(/** @type {Message[]} */ ([]));
    /** The cursor of the next older page; null if there is none. */
    this.older = signal(/** @type {string | null} */ (null));
    this.turn = signal(/** @type {Turn | null} */ (turns.get(name) || null));
    /** Why the conversation could not be loaded. */
    this.problem = signal(/** @type {any} */ (null));
    /** Why the last turn failed, and the message that it should have answered. */
    this.failure = signal(/** @type {{node: string | null | undefined, error: any} | null} */ (null));
    /** The alternatives of a message, by node. */
    this.siblings = signal(/** @type {import("./branches.js").Siblings} */ (new Map()));
    /** Counts requests to show the end of the conversation. */
    this.wantsEnd = signal(0);
    this._isOpen = true;
    this._isLoadingOlder = false;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this._timer = undefined;
    const stopRuns = this._watchRuns();
    const stopState = this._watchConnection();
    this._stop = () => {
      stopRuns();
      stopState();
    };
    if (this.turn.peek()) this._watchTurn(/** @type {Turn} */ (this.turn.peek()));
    this.load();
  }

  /** Stop watching. A turn in progress continues. */
  close() {
    this._isOpen = false;
    clearTimeout(this._timer);
    this._stop();
  }

  /** Load the session and its newest messages; older pages that are still valid are kept. */
  async load() {
    clearTimeout(this._timer);
    try {
      const [session, page] = await Promise.all([call("chat.get", { session: this.name }), call("chat.history", { session: this.name, limit: PAGE })]);
      if (!this._isOpen) return;
      batch(() => {
        this.session.value = session;
        this.problem.value = null;
        this._merge(page.messages, page.next || null);
      });
      const isStreaming = session.busy || page.messages.some((/** @type {Message} */ each) => each.status === "streaming");
      if (isStreaming && !this.turn.peek()) this._timer = setTimeout(() => this.load(), POLL_MS);
      else loadSiblings(session).then((found) => { this.siblings.value = found; }, () => {});
    } catch (error) {
      if (this._isOpen) this.problem.value = error;
    }
  }

  /** @param {Message[]} page @param {string | null} next */
  _merge(page, next) {
    const known = this.messages.peek();
    const first = page.length ? known.findIndex((each) => each.node_id && each.node_id === page[0].node_id) : -1;
    if (first < 0) this.older.value = next;
    this.messages.value = first < 0 ? page : [...known.slice(0, first), ...page];
  }

  /** Load the page before the oldest message. */
  async loadOlder() {
    const before = this.older.peek();
    if (!before || this._isLoadingOlder) return;
    this._isLoadingOlder = true;
    try {
      const page = await call("chat.history", { session: this.name, before, limit: PAGE });
      if (this.older.peek() !== before) return; // another branch was loaded in the meantime
      batch(() => {
        this.older.value = page.next || null;
        this.messages.value = [...page.messages, ...this.messages.peek()];
      });
    } finally {
      this._isLoadingOlder = false;
    }
  }

  /** Load again after a lost connection. */
  _watchConnection() {
    let wasLost = false;
    return effect(() => {
      if (state.value === "lost") wasLost = true;
      else if (state.value === "open" && wasLost) {
        wasLost = false;
        this.load();
      }
    });
  }

  // --- turns ----------------------------------------------------------------------------------------

  /** Send a message. Resolves when it is stored; throws RpcError if it is not.
      @param {string} message @param {object[]} attachments @param {string} key */
  send(message, attachments, key) {
    return this._begin("chat.send", { message, ...(attachments.length ? { attachments } : {}), _run: key });
  }

  /** Replace a message in a new branch. @param {string} node_id @param {string} message */
  edit(node_id, message) {
    return this._begin("chat.edit", { node_id, message });
  }

  /** Answer a message again; an error is shown at the message. @param {string} node_id */
  async regenerate(node_id) {
    try {
      await this._begin("chat.regenerate", { node_id });
    } catch (error) {
      this.failure.value = { node: node_id, error };
    }
  }

  /** Stop the turn in progress. */
  stop() {
    const run = this.turn.peek()?.run.peek();
    return run ? call("plexus.cancel", { run, reason: "stopped in the chat" }) : undefined;
  }

  /** @param {string} method @param {object} params */
  async _begin(method, params) {
    const turn = new Turn();
    turns.set(this.name, turn);
    batch(() => {
      this.failure.value = null;
      this.turn.value = turn;
      this.wantsEnd.value += 1;
    });
    this._watchTurn(turn);
    await turn.begin(method, { session: this.name, ...params, _on_disconnect: "keep" });
  }

  /** Load what a turn stores: its message when it begins, and its answer when it ends. @param {Turn} turn */
  _watchTurn(turn) {
    const stop = effect(() => {
      const node = turn.userNode.value;
      if (node && turn.terminal.value === undefined) this.load();
    });
    const stopEnd = effect(() => {
      const terminal = turn.terminal.value;
      if (terminal === undefined) return;
      if (turns.get(this.name) === turn) turns.delete(this.name);
      const node = turn.userNode.peek();
      queueMicrotask(async () => {
        stop();
        stopEnd();
        if (!node && this.turn.peek() === turn) this.turn.value = null; // nothing of it was stored
        if (this._isOpen) await this.load();
        batch(() => {
          if (this.turn.peek() === turn) this.turn.value = null;
          if (terminal?.type === "error" && node) this.failure.value = { node, error: terminal };
        });
        if (this._isOpen && this.session.peek()) loadSiblings(/** @type {Session} */ (this.session.peek())).then((found) => { this.siblings.value = found; }, () => {});
      });
    });
  }

  /** Follow the turns of this session that were not started here. */
  _watchRuns() {
    const seen = new Set(isKnown.peek() ? [...runs.values()].filter((run) => !ACTIVE.has(run.state)).map((run) => run.run) : []);
    let isFirst = !isKnown.peek();
    return effect(() => {
      version.value;
      if (!isKnown.value) return;
      for (const run of runs.values()) {
        if (seen.has(run.run)) continue;
        seen.add(run.run);
        const isActive = ACTIVE.has(run.state);
        if (TURN_METHODS.has(run.method) && run.run !== this.turn.peek()?.run.peek() && (isActive || !isFirst)) this._found(run.run, isActive);
      }
      isFirst = false;
    });
  }

  /** @param {number} run @param {boolean} isActive */
  async _found(run, isActive) {
    if ((await sessionOf(run)) !== this.name || !this._isOpen) return;
    if (!isActive) this.load();
    else if (!this.turn.peek()) {
      const turn = new Turn();
      turns.set(this.name, turn);
      this.turn.value = turn;
      this._watchTurn(turn);
      turn.follow(run);
    }
  }

  // --- branches and settings ------------------------------------------------------------------------

  /** Move the session to another message. @param {string} node_id */
  async setHead(node_id) {
    await call("chat.set_head", { session: this.name, node_id });
    this.failure.value = null;
    await this.load();
  }

  /** Change settings. @param {object} changes */
  async configure(changes) {
    this.session.value = await call("chat.configure", { session: this.name, ...changes });
  }
}
