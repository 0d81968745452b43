// One conversation: what was said, what is being said, its branches, and what one says next.

import { OpenQuestions, openOf } from "./asking.js";
import { Composer } from "./composer.js";
import { button, h, perFrame, replace, toast, trouble } from "./dom.js";
import { blockElement } from "./items.js";
import { hearing, onLive } from "./live.js";
import { branchList, branchesAt, messageElement } from "./messages.js";
import { go } from "./router.js";
import { call } from "./rpc.js";
import { beginRun, leaveRun, openRun } from "./runs.js";

/** What is shown otherwise, or is of no interest here. */
const HIDDEN = new Set(["data", "complete", "request"]);
const LOOK_MS = 1000;

export class Conversation {
  constructor(session, { onSessions }) {
    this._session = session;
    this._onSessions = onSessions;
    this._log = null;
    this._closed = false;
    this._older = null;
    this._pages = [];
    this._history = h("div", { class: "messages" });
    this._turn = h("div", { class: "turn", hidden: true });
    this._questions = new OpenQuestions();
    this._branches = h("details", { class: "branches" }, h("summary", {}, "Branches"));
    this._trouble = h("div");
    this._scroller = h("div", { class: "conversation", tabindex: "0", role: "log", "aria-label": `Conversation ${session}` },
      this._history, this._turn, this._questions.element);
    this._composer = new Composer({ onSend: (text, attachments) => this._send(text, attachments), onStop: () => this._log && this._log.stop() });
    this.element = h("section", { class: "chat" },
      h("header", { class: "bar" }, h("h2", {}, session), this._branches, button("Delete", () => this._delete(), { class: "quiet" })),
      this._scroller, this._trouble, this._composer.element);
    this._draw = perFrame(() => this._drawTurn());
    this._stopLive = onLive(this._draw);
    this._load(true);
    const run = Number(remembered(session));
    if (run) this._follow(openRun(run), null);
  }

  close() {
    this._closed = true;
    clearTimeout(this._timer);
    this._stopLive();
    this._drop();
  }

  // --- what was said ----------------------------------------------------------------------------

  async _load(toEnd) {
    try {
      const [page, branches] = await Promise.all([
        call("chat.history", { session: this._session }), call("chat.branches", { session: this._session }),
      ]);
      if (this._closed) return;
      this._pages = [page.messages];
      this._older = page.next || null;
      this._tree = page.position.tree_id;
      this._ends = branches.branches;
      this._showHistory();
      if (toEnd) this._toEnd();
      // A turn of somebody else: it is looked at until it is over.
      const busy = page.messages.some((message) => message.status === "streaming");
      clearTimeout(this._timer);
      if (busy && !this._log) this._timer = setTimeout(() => this._load(this._isAtEnd()), LOOK_MS);
    } catch (error) {
      replace(this._trouble, trouble(error));
    }
  }

  _showHistory() {
    const messages = this._before();
    const actions = { onEdit: (message, text) => this._edit(message, text), onAgain: (message) => this._again(message), tree: this._tree };
    const known = new Set(messages.map((message) => message.node_id));
    const here = (branch) => this._goTo(branch.node_id);
    replace(this._history,
      this._older ? button("Earlier messages", () => this._earlier(), { class: "small" }) : null,
      branchesAt(this._ends.filter((branch) => branch.leaves_at && !known.has(branch.leaves_at)), here),
      messages.map((message) => [messageElement(message, actions), branchesAt(this._ends.filter((branch) => branch.leaves_at === message.node_id), here)]));
    replace(this._branches, ...branchList(this._ends, here));
  }

  /** What was said before the turn that is being read: the rest is shown as it comes. */
  _before() {
    const messages = this._pages.flat();
    if (!this._log) return messages;
    const start = this._log.items.find(({ event }) => event.type === "start");
    const place = start && start.event.user_position;
    const end = messages.findIndex((message) => message.status === "streaming" || (place && message.node_id === place.node_id));
    if (end < 0) return messages;
    return messages.slice(0, messages[end].status === "streaming" ? end : end + 1);
  }

  async _earlier() {
    const page = await call("chat.history", { session: this._session, before: this._older });
    this._pages.unshift(page.messages);
    this._older = page.next || null;
    this._showHistory();
  }

  async _goTo(node) {
    await this._try(async () => {
      await call("chat.set_head", { session: this._session, node_id: node });
      await this._load(true);
    });
  }

  // --- turns ------------------------------------------------------------------------------------

  _send(text, attachments) {
    return this._begin("chat.send", { message: text, ...(attachments.length ? { attachments } : {}) }, text);
  }

  _edit(message, text) {
    return this._begin("chat.edit", { node_id: message.node_id, message: text }, message.kind === "user" ? text : null, message);
  }

  _again(message) {
    return this._begin("chat.regenerate", { node_id: message.node_id }, null, message);
  }

  /** Begin a turn; whether it could be begun. `instead` is the message from which on things are
      said anew. */
  async _begin(method, params, said, instead = null) {
    return this._try(async () => {
      const log = await beginRun(method, { session: this._session, ...params });
      if (instead) {
        const messages = this._pages.flat();
        this._pages = [messages.slice(0, Math.max(0, messages.findIndex((each) => each.node_id === instead.node_id)))];
        this._showHistory();
      }
      openRun(log.run);
      remember(this._session, log.run);
      this._follow(log, said);
      this._toEnd();
    });
  }

  _follow(log, said) {
    this._drop();
    this._log = log;
    this._said = said;
    this._rows = [];
    this._turn.hidden = false;
    replace(this._turn, said === null ? null : messageElement({ kind: "user", text: said }, null));
    this._offset = this._turn.childElementCount;
    this._unlisten = log.listen(this._draw);
    this._composer.setBusy(true);
    this._draw();
  }

  _drop() {
    if (!this._log) return;
    this._unlisten();
    leaveRun(this._log);
    this._log = null;
  }

  _drawTurn() {
    const log = this._log;
    if (!log) return;
    const atEnd = this._isAtEnd();
    const blocks = log.blocks.blocks.filter((block) => !HIDDEN.has(block.kind));
    blocks.forEach((block, index) => {
      const row = this._rows[index];
      if (row && row.block === block && row.version === block.version) return;
      const element = blockElement(block);
      if (row) row.element.replaceWith(element);
      else this._turn.append(element);
      this._rows[index] = { block, version: block.version, element };
    });
    if (hearing.state === "open" || log.isOver) this._questions.show(openOf(log));
    if (atEnd) this._toEnd();
    if (log.isOver) this._ended(log);
  }

  async _ended(log) {
    this._drop();
    forget(this._session);
    this._questions.show([]);
    this._composer.setBusy(false);
    const failed = log.terminal && log.terminal.type === "error" ? log.terminal : null;
    replace(this._trouble, failed ? trouble(failed) : null);
    await this._load(this._isAtEnd());
    if (!this._log) {
      this._turn.hidden = true;
      replace(this._turn, null);
    }
    this._onSessions();
  }

  async _try(work) {
    replace(this._trouble, null);
    try {
      await work();
      return true;
    } catch (error) {
      replace(this._trouble, trouble(error));
      return false;
    }
  }

  async _delete() {
    if (!confirm(`Delete the conversation "${this._session}"? Its tree is kept for a week.`)) return;
    await this._try(async () => {
      await call("chat.delete", { session: this._session });
      toast("Deleted.");
      this._onSessions();
      go("chat");
    });
  }

  _isAtEnd() {
    const { scrollTop, scrollHeight, clientHeight } = this._scroller;
    return scrollHeight - scrollTop - clientHeight < 60;
  }

  _toEnd() {
    this._scroller.scrollTop = this._scroller.scrollHeight;
  }
}

// --- the turn that this page has begun, so that a reload finds it --------------------------------

const key = (session) => `substrate.turn.${session}`;

function remember(session, run) {
  try {
    sessionStorage.setItem(key(session), String(run));
  } catch {
    // Then a reload shows what is stored of the answer so far.
  }
}

function remembered(session) {
  try {
    return sessionStorage.getItem(key(session));
  } catch {
    return null;
  }
}

function forget(session) {
  try {
    sessionStorage.removeItem(key(session));
  } catch {
    // There was nothing to forget.
  }
}
