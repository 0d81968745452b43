// A document in an editor of this page: its text is exchanged with the server, which other windows and
// programs share. Edits are sent after a moment; those of others are taken over, or are a conflict.

import { EditorView, keymap, indentWithTab, indentOnInput, highlightActiveLine, Decoration, StateEffect, StateField } from "codemirror";
import { RpcError, call } from "../core/connection.js";
import { effect, signal } from "../core/html.js";
import { lineEndOf, setup } from "../editor/setup.js";
import { diagnostics, documents } from "./ide.js";

/** @typedef {import("./ide.js").DocumentInfo} DocumentInfo */
/** @typedef {import("./ide.js").Range} Range */

const EDIT_MS = 250;
const SELECT_MS = 150;
const RETRY_MS = 1000;

/** @type {import("codemirror").EffectType<import("./ide.js").Diagnostic[]>} */
const setProblems = StateEffect.define();
const problems = StateField.define({
  create: () => Decoration.none,
  update(marks, transaction) {
    let next = marks.map(transaction.changes);
    for (const each of transaction.effects) if (each.is(setProblems)) next = problemMarks(transaction.state, each.value);
    return next;
  },
  provide: (field) => EditorView.decorations.from(field),
});

/** @param {import("codemirror").EditorState} state @param {import("./ide.js").Diagnostic[]} found */
function problemMarks(state, found) {
  const marks = found.flatMap(({ range, severity, message }) => {
    const from = offsetOf(state, range.start);
    const to = Math.max(offsetOf(state, range.end), Math.min(from + 1, state.doc.lineAt(from).to));
    return to > from ? [Decoration.mark({ class: "cm-problem", attributes: { "data-severity": severity, title: message } }).range(from, to)] : [];
  });
  return Decoration.set(marks, true);
}

/** Return the offset of a position; positions outside the text are moved into it.
    @param {import("codemirror").EditorState} state @param {import("./ide.js").Position} position */
function offsetOf({ doc }, { line, character }) {
  const { from, to } = doc.line(Math.max(1, Math.min(doc.lines, line + 1)));
  return Math.min(to, from + character);
}

/** @param {import("codemirror").EditorState} state @param {number} offset */
function positionOf({ doc }, offset) {
  const line = doc.lineAt(offset);
  return { line: line.number - 1, character: offset - line.from };
}

/** An open document and its editor. */
export class Draft {
  /** @param {DocumentInfo} info @param {string} text @param {HTMLElement} parent @param {{wrap: boolean}} options */
  constructor(info, text, parent, { wrap }) {
    this.path = info.path;
    this.version = info.version;
    this.eol = lineEndOf(text);
    /** Whether something was typed that the server does not have yet. */
    this.isUnsent = signal(false);
    /** Why what was typed cannot be sent or saved; empty if it can.
        "window": another window has edited it; "disk_changed", "disk_deleted", "exists": the file has changed. */
    this.conflict = signal("");
    this.error = signal("");
    /** The selected lines, from 0, for "mention this". */
    this.selection = signal({ first: 0, last: 0, isEmpty: true, lines: 1 });
    this._isTaking = false;
    /** @type {Promise<void> | null} */
    this._sending = null;
    /** @type {any} */
    this._editTimer = undefined;
    /** @type {any} */
    this._selectTimer = undefined;
    this.isClosed = false;
    this.view = new EditorView({
      doc: text,
      parent,
      extensions: [
        keymap.of([{ key: "Mod-s", preventDefault: true, run: () => { this.save(); return true; } }, indentWithTab]),
        setup({ language: info.language, label: `Text of ${info.path}`, eol: this.eol, wrap }),
        indentOnInput(), highlightActiveLine(), problems,
        EditorView.updateListener.of((update) => this._onUpdate(update)),
      ],
    });
    if (info.selection) this.select(info.selection, false);
    this._stop = [
      effect(() => {
        const now = documents.value.get(this.path);
        if (now) queueMicrotask(() => this._onInfo(now));
      }),
      effect(() => {
        const found = diagnostics.value.get(this.path);
        if (found && !found.checking) queueMicrotask(() => this.isClosed || this.view.dispatch({ effects: setProblems.of(found.diagnostics) }));
      }),
    ];
  }

  /** The text with its line ends. */
  get text() {
    return this.view.state.sliceDoc();
  }

  close() {
    if (this.isUnsent.peek() && !this.conflict.peek()) this._send();
    this.isClosed = true;
    clearTimeout(this._editTimer);
    clearTimeout(this._selectTimer);
    for (const stop of this._stop) stop();
    this.view.destroy();
  }

  /** @param {import("codemirror").ViewUpdate} update */
  _onUpdate(update) {
    if (update.docChanged && !this._isTaking) {
      this.isUnsent.value = true;
      clearTimeout(this._editTimer);
      this._editTimer = setTimeout(() => this._send(), EDIT_MS);
    }
    if (!update.selectionSet && !update.docChanged) return;
    const { main } = update.state.selection;
    const [start, end] = [positionOf(update.state, main.from), positionOf(update.state, main.to)];
    // A selection that ends before the first character of a line does not contain that line.
    const last = end.character === 0 && end.line > start.line ? end.line - 1 : end.line;
    this.selection.value = { first: start.line, last, isEmpty: main.empty, lines: last - start.line + 1 };
    if (this._isTaking) return;
    clearTimeout(this._selectTimer);
    this._selectTimer = setTimeout(() => this._sendSelection(), SELECT_MS);
  }

  async _sendSelection() {
    if (this.isUnsent.peek()) await this._send();
    if (this.isClosed || this.isUnsent.peek()) return;
    const { state } = this.view;
    const [start, end] = [positionOf(state, state.selection.main.from), positionOf(state, state.selection.main.to)];
    call("ide.select", { path: this.path, start_line: start.line, start_character: start.character, end_line: end.line, end_character: end.character }).catch(() => {});
  }

  /** Send what was typed, and wait until the server has it. */
  async _send() {
    while (this._sending) await this._sending;
    if (!this.isUnsent.peek() || this.conflict.peek()) return;
    this._sending = this._sendOnce();
    try {
      await this._sending;
    } finally {
      this._sending = null;
    }
  }

  async _sendOnce() {
    const { doc } = this.view.state;
    const edit = () => call("ide.edit_document", { path: this.path, text: this.text, version: this.version });
    try {
      let info;
      try {
        info = await edit();
      } catch (failure) {
        if (!(failure instanceof RpcError) || !["not_found", -32001].includes(failure.code) || this.isClosed) throw failure;
        // The server was restarted, or another window has closed it: what was typed is not lost.
        ({ document: { version: this.version } } = await call("ide.open_document", { path: this.path }));
        info = await edit();
      }
      this.version = info.version;
      this.error.value = "";
      if (this.view.state.doc.eq(doc)) this.isUnsent.value = false;
      else this._later(EDIT_MS);
    } catch (failure) {
      const { code, message } = /** @type {RpcError} */ (failure);
      if (code === "lost") this._later(RETRY_MS);
      else if (code === "conflict") await this._onConflict(doc);
      else this.error.value = message;
    }
  }

  /** The document has another version than the one that was edited. @param {import("codemirror").TextDocument} sent */
  async _onConflict(sent) {
    const now = await call("ide.read_document", { path: this.path }).catch(() => null);
    const other = now && this.view.state.toText(now.text);
    if (!other?.eq(sent)) {
      this.conflict.value = "window";
      return;
    }
    // It is this edit, whose reply was lost with the connection.
    this.version = now.document.version;
    if (this.view.state.doc.eq(sent)) this.isUnsent.value = false;
    else this._later(EDIT_MS);
  }

  /** @param {number} ms */
  _later(ms) {
    clearTimeout(this._editTimer);
    if (!this.isClosed) this._editTimer = setTimeout(() => this._send(), ms);
  }

  /** The server reports the state of the document. @param {DocumentInfo} info */
  async _onInfo(info) {
    if (this.isClosed) return;
    if (info.disk === "same" && this.conflict.peek().startsWith("disk")) this.conflict.value = "";
    else if (info.disk !== "same" && !this.conflict.peek()) this.conflict.value = info.disk === "deleted" ? "disk_deleted" : "disk_changed";
    while (this._sending) await this._sending;
    // An edit of this window increases the version too; it is known when its reply has arrived.
    if (this.isClosed || info.version <= this.version || this.isUnsent.peek()) return;
    const { document: now, text } = await call("ide.read_document", { path: this.path }).catch(() => ({ document: null, text: "" }));
    if (now && !this.isClosed && !this.isUnsent.peek() && !this._sending) this.take(now.version, text);
  }

  /** Replace the text by that of the server, only where it differs, so that the cursor stays.
      @param {number} version @param {string} text */
  take(version, text) {
    const former = this.view.state.doc.toString();
    const next = this.eol === "\n" ? text : text.replaceAll(this.eol, "\n");
    let from = 0;
    const least = Math.min(former.length, next.length);
    while (from < least && former[from] === next[from]) from += 1;
    let same = 0;
    while (same < least - from && former[former.length - 1 - same] === next[next.length - 1 - same]) same += 1;
    const insert = next.slice(from, next.length - same).replaceAll("\n", this.eol);
    this._isTaking = true;
    try {
      this.view.dispatch({ changes: { from, to: former.length - same, insert: this.view.state.toText(insert) } });
    } finally {
      this._isTaking = false;
    }
    this.version = version;
    this.isUnsent.value = false;
    this.conflict.value = "";
    this.error.value = "";
  }

  /** Save the text in its file. `force` overwrites what another program has written. */
  async save(force = false) {
    this.error.value = "";
    if (force) this.conflict.value = "";
    await this._send();
    if (this.isUnsent.peek() || this.isClosed) return false;
    try {
      await call("ide.save_document", { path: this.path, version: this.version, force });
      this.conflict.value = "";
      return true;
    } catch (failure) {
      const { code, message, data } = /** @type {RpcError} */ (failure);
      if (code === "conflict") this.conflict.value = data?.reason || "window";
      else this.error.value = message;
      return false;
    }
  }

  /** Drop what was typed, and take the text of the server or of the file. @param {"ide.revert_document" | "ide.read_document"} method */
  async drop(method) {
    clearTimeout(this._editTimer);
    const { document: now, text } = await call(method, { path: this.path });
    this.take(now.version, text);
  }

  /** Keep what was typed here instead of what another window has typed. */
  async keep() {
    const { document: now } = await call("ide.read_document", { path: this.path });
    this.version = now.version;
    this.conflict.value = "";
    this.isUnsent.value = true;
    await this._send();
  }

  /** Format the text; other windows get it too. */
  async format() {
    await this._send();
    const { document: now, text } = await call("ide.format_document", { path: this.path });
    this.take(now.version, text);
  }

  /** Select a range and show it. @param {Range} range @param {boolean} [focus] */
  select({ start, end }, focus = true) {
    const { state } = this.view;
    const [anchor, head] = [offsetOf(state, start), offsetOf(state, end)];
    this.view.dispatch({ selection: { anchor, head }, effects: EditorView.scrollIntoView(anchor, { y: "center" }) });
    if (focus) this.view.focus();
  }
}
