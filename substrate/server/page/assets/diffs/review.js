// The editors in which a person reviews a change: side by side or in one, what is chosen, what is edited,
// and the text that results. Nothing here talks to the server.

import { Compartment, EditorState, EditorView, MergeView, keymap, lineNumbers, unifiedMergeView } from "codemirror";
import { signal } from "../core/html.js";
import { revealInvisible, setup } from "../editor/setup.js";
import { choiceGutter, chunksOf, mark, marked } from "./marks.js";

/** @typedef {import("./marks.js").Chunk} Chunk */
/** @typedef {{old_start: number, old_lines: number, new_start: number, new_lines: number}} Hunk */
/** @typedef {{old: string, text: string, language: string, eol: string, hunks: Hunk[], titles: string[], isReadOnly?: boolean}} Change */
/** @typedef {{isSplit: boolean, isCollapsed: boolean, wrap: boolean}} Layout */
/** What a person has done so far. @typedef {{text: string, rejected: {from: number, to: number}[]}} Progress */

/** Bounds for the comparison, so that a large change does not stop the page. */
const COMPARISON = { scanLimit: 2000, timeout: 800 };
const COLLAPSED = { margin: 3, minSize: 6 };

/** The review of one change. */
export class Review {
  /** @param {Change} change @param {Progress | undefined} progress @param {(side: "new" | "old", line: number) => void} onLine a click on a line number, from 0 */
  constructor(change, progress, onLine) {
    this.change = change;
    this.onLine = onLine;
    this._text = progress?.text ?? change.text;
    /** The parts of the old text whose changes are left out. The old text never changes. */
    this.rejected = signal(progress?.rejected ?? []);
    /** The changes between the texts as they are now. @type {import("@preact/signals").Signal<readonly Chunk[]>} */
    this.chunks = signal([]);
    this.current = signal(0);
    this.isEdited = signal(this._text !== change.text);
    this.isEditing = signal(false);
    /** Commented lines, from 0. @type {{new: number[], old: number[]}} */
    this.commented = { new: [], old: [] };
    this._editable = new Compartment();
    /** @type {MergeView | null} */
    this._merge = null;
    /** The editor of the new text. @type {EditorView | null} */
    this.view = null;
    this._isMarking = false;
    this.isFinished = false;
  }

  /** What a person has done, to go on with it later. @returns {Progress} */
  get progress() {
    return { text: this.text, rejected: this.rejected.peek() };
  }

  /** Whether anything was chosen or edited. */
  get isTouched() {
    return this.isEdited.peek() || this.rejected.peek().length > 0;
  }

  /** The new text as it is edited, with all changes. */
  get text() {
    return this.view ? this.view.state.sliceDoc() : this._text;
  }

  /** Show the editors in an element. @param {HTMLElement} parent @param {Layout} layout */
  mount(parent, { isSplit, isCollapsed, wrap }) {
    const { change } = this;
    const collapse = isCollapsed ? { collapseUnchanged: COLLAPSED } : {};
    const shared = (/** @type {"new" | "old"} */ side, /** @type {string} */ title) => [
      EditorState.phrases.of({ "$ unchanged lines": "$ unchanged lines" }),
      setup({ language: change.language, label: title, eol: change.eol, wrap, numbers: lineNumbers({ domEventHandlers: { click: (view, line) => { this.onLine(side, view.state.doc.lineAt(line.from).number - 1); return true; } } }) }),
      marked,
    ];
    const readOnly = [EditorState.readOnly.of(true), EditorView.editable.of(false)];
    const extensions = [
      keymap.of([{ key: "Escape", run: () => { this.edit(false); return true; } }]),
      change.isReadOnly ? [] : choiceGutter((chunk) => !this._isRejected(chunk), (index) => this.toggle(index)),
      shared("new", change.titles[1]),
      this._editable.of(this.isEditing.peek() ? [] : readOnly),
      EditorView.updateListener.of((update) => this._onUpdate(update)),
    ];
    if (isSplit) {
      const a = { doc: change.old, extensions: [shared("old", change.titles[0]), readOnly] };
      this._merge = new MergeView({ a, b: { doc: this._text, extensions }, parent, gutter: false, diffConfig: COMPARISON, ...collapse });
      this.view = this._merge.b;
    } else {
      const original = EditorState.create({ doc: change.old, extensions: EditorState.lineSeparator.of(change.eol) }).doc;
      const merge = unifiedMergeView({ original, gutter: false, mergeControls: false, diffConfig: COMPARISON, ...collapse });
      const view = new EditorView({ doc: this._text, parent, extensions: [extensions, merge, EditorView.editorAttributes.of({ class: "cm-merge-b" })] });
      view.dom.classList.add("unified");
      this.view = view;
    }
    this._refresh();
    this.show(this.current.peek());
  }

  unmount() {
    this._text = this.text;
    if (this._merge) this._merge.destroy();
    else this.view?.destroy();
    this._merge = null;
    this.view = null;
  }

  /** @param {import("codemirror").ViewUpdate} update */
  _onUpdate(update) {
    if (update.docChanged) this.isEdited.value = update.state.sliceDoc() !== this.change.text;
    if (!this._isMarking) queueMicrotask(() => this._refresh());
  }

  /** Take over the changes of the editors, and mark them. */
  _refresh() {
    const { view } = this;
    if (!view) return;
    if (!this._merge) requestAnimationFrame(() => this._revealDeleted());
    const chunks = chunksOf(view);
    if (chunks === this.chunks.peek()) return;
    this.chunks.value = chunks;
    this.current.value = Math.max(0, Math.min(this.current.peek(), chunks.length - 1));
    this.redraw();
  }

  /** Deleted lines in a single editor are no part of its document, so it shows them as they are. */
  _revealDeleted() {
    for (const each of this.view?.dom.querySelectorAll(".cm-deletedChunk:not([data-revealed])") || []) {
      const element = /** @type {HTMLElement} */ (each);
      element.dataset.revealed = "";
      revealInvisible(element);
    }
  }

  /** Mark the lines again. */
  redraw() {
    if (!this.view) return;
    const chunks = this.chunks.peek();
    const current = chunks[this.current.peek()];
    const rejected = chunks.filter((each) => this._isRejected(each));
    this._isMarking = true;
    try {
      mark(this.view, "b", { current, rejected, commented: this.commented.new });
      if (this._merge) mark(this._merge.a, "a", { current, rejected: [], commented: this.commented.old });
    } finally {
      this._isMarking = false;
    }
  }

  /** @param {Chunk} chunk */
  _isRejected({ fromA, endA }) {
    return this.rejected.peek().some(({ from, to }) => fromA <= to && endA >= from);
  }

  /** Whether a change is accepted, by its index; updates the caller. @param {number} index */
  isChosen(index) {
    this.rejected.value;
    const chunk = this.chunks.value[index];
    return chunk !== undefined && !this._isRejected(chunk);
  }

  /** The number of changes that are accepted; updates the caller. */
  get chosen() {
    this.rejected.value;
    return this.chunks.value.filter((each) => !this._isRejected(each)).length;
  }

  /** Choose a change, or leave it out. @param {number} index */
  toggle(index) {
    const chunk = this.chunks.peek()[index];
    if (!chunk || this.isFinished) return;
    const others = this.rejected.peek().filter(({ from, to }) => !(chunk.fromA <= to && chunk.endA >= from));
    this.rejected.value = this._isRejected(chunk) ? others : [...others, { from: chunk.fromA, to: chunk.endA }];
    this.current.value = index;
    this.redraw();
  }

  /** Go to a change. @param {number} index */
  show(index) {
    const chunks = this.chunks.peek();
    const at = Math.max(0, Math.min(index, chunks.length - 1));
    this.current.value = at;
    this.redraw();
    const { view } = this;
    if (!view || !chunks[at]) return;
    const position = Math.min(chunks[at].fromB, view.state.doc.length);
    const scroll = () => this.view === view && view.dispatch({ effects: EditorView.scrollIntoView(position, { y: "center" }) });
    scroll();
    requestAnimationFrame(scroll); // the heights of lines that were not drawn yet are known now
  }

  /** Return the first line of the current change, from 0, and its side. @returns {{side: "new" | "old", line: number}} */
  get place() {
    const chunk = this.chunks.peek()[this.current.peek()];
    if (!chunk || !this.view) return { side: "new", line: 0 };
    if (chunk.toB > chunk.fromB || !this._merge) return { side: "new", line: this.view.state.doc.lineAt(Math.min(chunk.fromB, this.view.state.doc.length)).number - 1 };
    return { side: "old", line: this._merge.a.state.doc.lineAt(chunk.fromA).number - 1 };
  }

  /** Show a line. @param {"new" | "old"} side @param {number} line from 0 */
  showLine(side, line) {
    const view = side === "old" ? this._merge?.a : this.view;
    if (view && line < view.state.doc.lines) view.dispatch({ effects: EditorView.scrollIntoView(view.state.doc.line(line + 1).from, { y: "center" }) });
  }

  /** Begin or end editing the new text. @param {boolean} isOn */
  edit(isOn) {
    const { view } = this;
    if (!view || this.isEditing.peek() === isOn || this.isFinished) return;
    this.isEditing.value = isOn;
    view.dispatch({ effects: this._editable.reconfigure(isOn ? [] : [EditorState.readOnly.of(true), EditorView.editable.of(false)]) });
    const chunk = this.chunks.peek()[this.current.peek()];
    if (isOn && chunk) view.dispatch({ selection: { anchor: Math.min(chunk.fromB, view.state.doc.length) } });
    view.focus();
  }

  /** The change is answered: nothing can be chosen or edited any more. */
  finish() {
    this.edit(false);
    this.isFinished = true;
  }

  /** Drop all edits. */
  revert() {
    const { view, change } = this;
    view?.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: view.state.toText(change.text) } });
  }

  /** Return the text that results: edited, and with the old text where a change is left out. */
  get result() {
    const { view, change } = this;
    if (!view || !this.rejected.peek().length) return this.text;
    const old = EditorState.create({ doc: change.old, extensions: EditorState.lineSeparator.of(change.eol) });
    const { state } = view;
    const parts = [];
    let at = 0;
    for (const chunk of this.chunks.peek()) {
      if (!this._isRejected(chunk)) continue;
      parts.push(state.sliceDoc(at, Math.min(chunk.fromB, state.doc.length)), old.sliceDoc(chunk.fromA, Math.min(chunk.toA, old.doc.length)));
      at = Math.min(chunk.toB, state.doc.length);
    }
    return parts.join("") + state.sliceDoc(at);
  }

  /** Return the answer that accepts the result: the numbers of hunks where they say the same, else the text.
      @returns {{hunks?: number[], text?: string}} */
  get answer() {
    const { result, change } = this;
    if (result === change.text) return {};
    const hunks = this.isEdited.peek() ? null : this._hunks(result);
    return hunks ? { hunks } : { text: result };
  }

  /** Return the hunks of the server that lead to a text; null if none do. @param {string} result */
  _hunks(result) {
    const { old, text, hunks } = this.change;
    const [before, after] = [linesOf(old), linesOf(text)];
    const starts = [0];
    for (const line of before) starts.push(starts[starts.length - 1] + line.length);
    const scale = this.change.eol.length - 1; // offsets of editors count a line end as one character
    const chosen = hunks.flatMap(({ old_start: first, old_lines: count }, number) => {
      const from = starts[first] - scale * first;
      const to = Math.max(from, starts[first + count] - scale * (first + count) - 1);
      return this.rejected.peek().some((each) => from <= each.to && to >= each.from) ? [] : [number];
    });
    const parts = [];
    let at = 0;
    for (const number of chosen) {
      const hunk = hunks[number];
      parts.push(...before.slice(at, hunk.old_start), ...after.slice(hunk.new_start, hunk.new_start + hunk.new_lines));
      at = hunk.old_start + hunk.old_lines;
    }
    return [...parts, ...before.slice(at)].join("") === result ? chosen : null;
  }
}

/** Return the lines of a text with their ends. @param {string} text */
function linesOf(text) {
  return text.match(/[^\n]*\n|[^\n]+$/g) || [];
}
