// A turn: a run of chat.send, chat.edit or chat.regenerate, whose events become an answer.
//
// A turn is started here, or followed after a reload and in other tabs. It continues on the server
// when the tab closes; after a lost connection it is followed from the last item that arrived.

import { isTerminal, subscribe, whenOpen } from "../core/connection.js";
import { batch, signal } from "../core/html.js";

/** The methods whose runs are turns. */
export const TURN_METHODS = new Set(["chat.send", "chat.edit", "chat.regenerate", "claudecode.chat"]);

/** A piece of an answer in progress; its fields are those of a stored message.
    @typedef {{kind: string, text: string, tool_name?: string, tool_use_id?: string, run?: number,
      output?: string, is_error?: boolean, level?: string}} Part */

/** A turn in progress. */
export class Turn {
  constructor() {
    this.run = signal(0);
    /** The stored user message that is answered; null until it is stored. */
    this.userNode = signal(/** @type {string | null} */ (null));
    /** Changes with `parts`, at most once per frame. */
    this.version = signal(0);
    /** @type {Part[]} */
    this.parts = [];
    /** The questions of this run, by request. @type {Map<string, any>} */
    this.requests = new Map();
    /** The last event, null if the run was not found; undefined while it is in progress. */
    this.terminal = signal(/** @type {any} */ (undefined));
    this._seq = 0;
    this._isDue = false;
    /** @type {((error: any) => void) | undefined} */
    this._settle = undefined;
  }

  /** Start the turn. Resolves when the message is stored. Throws RpcError if it is not.
      @param {string} method @param {object} params @returns {Promise<void>} */
  begin(method, params) {
    return new Promise((resolve, reject) => {
      this._settle = (error) => (error ? reject(error) : resolve());
      subscribe(method, params, this._handlers());
    });
  }

  /** Follow a run that was started elsewhere. @param {number} run */
  follow(run) {
    this.run.value = run;
    whenOpen().then(() => subscribe("plexus.attach", { run, after: this._seq }, this._handlers()), () => this._end(null));
  }

  _handlers() {
    return {
      onStart: (/** @type {number} */ run) => {
        if (!this.run.peek()) this.run.value = run;
      },
      onItem: (/** @type {any} */ { seq, result }) => {
        this._seq = Math.max(this._seq, seq || 0);
        this._apply(result);
      },
      onError: (/** @type {any} */ error) => {
        if (error.code === "lost" && this.run.peek()) this.follow(this.run.peek());
        else this._end(null, error);
      },
    };
  }

  /** @param {any} event */
  _apply(event) {
    if (isTerminal(event)) {
      const error = event.type === "error" ? Object.assign(new Error(event.message), { code: event.code, data: event.data }) : null;
      this._end(event, error);
    } else if (event.type === "start") {
      this.userNode.value = event.user_position?.node_id || null;
      this._begun(null);
    } else {
      this._add(event);
      this._changed();
    }
  }

  /** @param {any} event */
  _add(event) {
    const last = this.parts[this.parts.length - 1];
    const tool = this.parts.find((part) => part.kind === "tool_use" && part.tool_use_id === event.tool_use_id);
    if (event.type === "content" || event.type === "thinking") {
      const kind = event.type === "content" ? "assistant" : "thinking";
      if (last?.kind === kind) last.text += event.text;
      else this.parts.push({ kind, text: event.text });
    } else if (event.type === "tool_use") {
      this.parts.push({ kind: "tool_use", text: JSON.stringify(event.input), tool_name: event.tool_name, tool_use_id: event.tool_use_id });
    } else if (event.type === "tool_start" && tool) tool.run = event.run;
    else if (event.type === "tool_result" && tool) Object.assign(tool, { output: event.output, is_error: event.is_error });
    else if (event.type === "log") this.parts.push({ kind: "log", text: event.message, level: event.level });
    else if (event.type === "gap") this.parts.push({ kind: "log", text: "Some events of this answer are missing here. They are in the stored message.", level: "info" });
    else if (event.type === "request") this.requests.set(event.request, event);
  }

  /** Have the answer drawn in the next frame. A hidden tab has no frames, and draws when it is shown. */
  _changed() {
    if (this._isDue) return;
    this._isDue = true;
    requestAnimationFrame(() => {
      this._isDue = false;
      this.version.value += 1;
    });
  }

  /** @param {any} error */
  _begun(error) {
    this._settle?.(error);
    this._settle = undefined;
  }

  /** @param {any} event @param {any} [error] */
  _end(event, error = null) {
    // The caller of `begin` handles an error before the message is stored.
    this._begun(error);
    batch(() => {
      this.version.value += 1;
      this.terminal.value = event;
    });
  }
}
