// What a review adds to an editor: the current change, changes that are not chosen, commented lines,
// and a column that chooses changes with the mouse.

import { Decoration, EditorView, GutterMarker, StateEffect, StateField, getChunks, gutter } from "codemirror";

/** @typedef {{fromA: number, toA: number, fromB: number, toB: number, endA: number, endB: number}} Chunk */

/** @type {import("codemirror").EffectType<any>} */
const setMarks = StateEffect.define();
const marks = StateField.define({
  create: () => Decoration.none,
  update(known, transaction) {
    let next = known.map(transaction.changes);
    for (const each of transaction.effects) if (each.is(setMarks)) next = each.value;
    return next;
  },
  provide: (field) => EditorView.decorations.from(field),
});

/** The extension that shows marks. */
export const marked = marks;

const LINES = { current: Decoration.line({ class: "cm-currentChange" }), rejected: Decoration.line({ class: "cm-notChosen" }), commented: Decoration.line({ class: "cm-commented" }) };

/** Mark the lines of chunks, and commented lines (from 0).
    @param {EditorView} view @param {"a" | "b"} side @param {{current: Chunk | undefined, rejected: Chunk[], commented: number[]}} what */
export function mark(view, side, { current, rejected, commented }) {
  const { doc } = view.state;
  /** @type {any[]} */
  const found = [];
  const add = (/** @type {keyof typeof LINES} */ kind, /** @type {number} */ from, /** @type {number} */ to) => {
    for (let at = from; at <= Math.min(to, doc.length);) {
      const line = doc.lineAt(at);
      found.push(LINES[kind].range(line.from));
      at = line.to + 1;
    }
  };
  for (const each of current ? [current] : []) if (side === "a" ? each.toA > each.fromA : each.toB > each.fromB) add("current", side === "a" ? each.fromA : each.fromB, side === "a" ? each.endA : each.endB);
  if (side === "b") for (const each of rejected) if (each.toB > each.fromB) add("rejected", each.fromB, each.endB);
  for (const line of new Set(commented)) if (line < doc.lines) found.push(LINES.commented.range(doc.line(line + 1).from));
  view.dispatch({ effects: setMarks.of(Decoration.set(found, true)) });
}

class ChoiceMarker extends GutterMarker {
  /** @param {boolean} isChosen */
  constructor(isChosen) {
    super();
    this.isChosen = isChosen;
  }

  /** @param {any} other */
  eq(other) {
    return other.isChosen === this.isChosen;
  }

  toDOM() {
    const element = document.createElement("span");
    element.textContent = this.isChosen ? "☑" : "☐";
    element.title = this.isChosen ? "This change is accepted; click to leave it out" : "This change is left out; click to accept it";
    return element;
  }
}

const CHOSEN = new ChoiceMarker(true);
const LEFT_OUT = new ChoiceMarker(false);

/** Return the changes of an editor. @param {EditorView} view @returns {readonly Chunk[]} */
export function chunksOf(view) {
  return getChunks(view.state)?.chunks || [];
}

/** A column with a box at the first line of each change. @param {(chunk: Chunk) => boolean} isChosen @param {(index: number) => void} onToggle */
export function choiceGutter(isChosen, onToggle) {
  const indexAt = (/** @type {EditorView} */ view, /** @type {{from: number, to: number}} */ line) => {
    const chunks = chunksOf(view);
    let [low, high] = [0, chunks.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (Math.min(chunks[middle].fromB, view.state.doc.length) < line.from) low = middle + 1;
      else high = middle;
    }
    return low < chunks.length && Math.min(chunks[low].fromB, view.state.doc.length) <= line.to ? low : -1;
  };
  return gutter({
    class: "cm-chooseGutter",
    lineMarker: (view, line) => {
      const index = indexAt(view, line);
      return index < 0 ? null : isChosen(chunksOf(view)[index]) ? CHOSEN : LEFT_OUT;
    },
    lineMarkerChange: (update) => update.transactions.some((each) => each.effects.length > 0),
    domEventHandlers: {
      click(view, line) {
        const index = indexAt(view, line);
        if (index >= 0) onToggle(index);
        return index >= 0;
      },
    },
  });
}
