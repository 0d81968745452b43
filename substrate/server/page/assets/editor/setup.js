// How every editor of the page looks and behaves: colours, line ends, invisible characters, keys.

import {
  EditorState, EditorView, HighlightStyle, bracketMatching, defaultKeymap, drawSelection, highlightSelectionMatches, highlightSpecialChars, history, historyKeymap,
  keymap, lineNumbers, search, searchKeymap, syntaxHighlighting, tags,
} from "codemirror";
import { syntaxOf } from "./languages.js";

/** @typedef {import("codemirror").Extension} Extension */

// Characters that change the direction of text, that have no shape, or that look like nothing. A file
// could otherwise be read as something that it is not. A file with other line ends than "\n" shows "\r".
const INVISIBLE = /[\x00-\x08\x0a-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0d\ufeff\uffa0\ufff9-\ufffc\u{e0000}-\u{e0fff}]/gu;

/** Return the symbol of an invisible character, in letters that every font has. @param {number} code */
function symbolOf(code) {
  if (code < 256) return `\\x${code.toString(16).padStart(2, "0")}`;
  return code > 0xffff ? `\\u{${code.toString(16)}}` : `\\u${code.toString(16).padStart(4, "0")}`;
}

/** @param {number} code */
function symbolElement(code) {
  const element = document.createElement("span");
  element.className = "cm-specialChar";
  element.textContent = symbolOf(code);
  element.title = "Invisible character";
  return element;
}

/** Show the invisible characters in a text that is no part of an editor's document. @param {HTMLElement} root */
export function revealInvisible(root) {
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  const found = [];
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (node.parentElement?.className !== "cm-specialChar" && node.nodeValue && node.nodeValue.search(INVISIBLE) >= 0) found.push(/** @type {Text} */ (node));
  }
  for (const node of found) {
    /** @type {(string | Node)[]} */
    const parts = [];
    let at = 0;
    for (const match of node.data.matchAll(INVISIBLE)) {
      parts.push(node.data.slice(at, match.index), symbolElement(/** @type {number} */ (match[0].codePointAt(0))));
      at = match.index + match[0].length;
    }
    node.replaceWith(...parts, node.data.slice(at));
  }
}

const COLOURS = HighlightStyle.define([
  { tag: [tags.keyword, tags.modifier, tags.operatorKeyword], color: "light-dark(#7420a8, #dab3f5)" },
  { tag: [tags.string, tags.special(tags.string), tags.regexp, tags.monospace], color: "light-dark(#0b5a34, #8fdcb0)" },
  { tag: [tags.number, tags.bool, tags.null, tags.atom], color: "light-dark(#7a3e00, #f0bd77)" },
  { tag: [tags.comment, tags.meta, tags.quote], color: "light-dark(#464f5e, #b2bdce)", fontStyle: "italic" },
  { tag: [tags.definition(tags.variableName), tags.function(tags.variableName), tags.heading, tags.link, tags.url], color: "light-dark(#164a9e, #9cc0ff)" },
  { tag: [tags.typeName, tags.className, tags.standard(tags.variableName), tags.tagName, tags.attributeName, tags.propertyName], color: "light-dark(#0a5560, #83d6de)" },
  { tag: [tags.heading, tags.strong], fontWeight: "bold" },
  { tag: tags.emphasis, fontStyle: "italic" },
  { tag: tags.inserted, color: "light-dark(#0b5a34, #6fe0a8)" },
  { tag: tags.deleted, color: "light-dark(#8f1a12, #ffaaa3)" },
]);

const DELETED = "light-dark(#f6b8b3, #632624)";
const INSERTED = "light-dark(#a3dcbb, #154b34)";
const THEME = EditorView.theme({
  "&": { backgroundColor: "var(--panel)", color: "var(--text)", fontSize: "13px" },
  "&.cm-focused": { outline: "none" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.55" },
  ".cm-content": { caretColor: "var(--text)", padding: "4px 0" },
  ".cm-content:focus-visible": { outline: "none" },
  ".cm-cursor": { borderLeftColor: "var(--text)" },
  "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": { background: "light-dark(#c9dcff, #2b4373)" },
  ".cm-gutters": { backgroundColor: "var(--panel)", color: "var(--dim)", border: "0" },
  ".cm-activeLine": { backgroundColor: "light-dark(#f1f5fb, #1b2431)" },
  ".cm-specialChar": { color: "var(--bad)", border: "1px solid currentColor", borderRadius: "3px", padding: "0 2px", margin: "0 1px", fontSize: "11px", unicodeBidi: "isolate", direction: "ltr" },
  ".cm-selectionMatch": { backgroundColor: "light-dark(#e8ecf4, #2c3648)" },
  ".cm-searchMatch": { backgroundColor: "var(--match)" },
  ".cm-panels": { backgroundColor: "var(--back)", color: "var(--text)" },
  ".cm-panels-top": { borderBottom: "1px solid var(--line)" },
  ".cm-panel.cm-search input:not([type=checkbox])": { width: "auto", display: "inline-block" },
  ".cm-panel.cm-search label": { fontSize: "12.5px" },
  ".cm-panel .cm-button": { background: "var(--panel)", border: "1px solid var(--line)", borderRadius: "6px", fontSize: "12.5px", minHeight: "28px" },
  ".cm-panel .cm-textfield": { fontSize: "12.5px", minHeight: "28px", padding: "3px 8px", borderColor: "var(--line)" },
  // What is changed, word by word.
  "&.cm-merge-a .cm-changedLine, .cm-deletedChunk": { backgroundColor: "var(--bad-back)" },
  "&.cm-merge-b .cm-changedLine": { backgroundColor: "var(--good-back)" },
  "&.cm-merge-a .cm-changedText, .cm-deletedChunk .cm-deletedText": { background: `${DELETED} !important`, borderRadius: "2px" },
  "&.cm-merge-b .cm-changedText": { background: `${INSERTED} !important`, borderRadius: "2px" },
  ".cm-deletedChunk": { paddingLeft: "0" },
  ".cm-deletedChunk .cm-deletedLine": { padding: "0 2px 0 6px" },
  "& .cm-collapsedLines": { color: "var(--dim) !important", background: "var(--back) !important", borderBlock: "1px solid var(--line)", fontFamily: "system-ui, sans-serif", fontSize: "12.5px", padding: "2px 12px" },
  ".cm-collapsedLines:before": { content: "'⋯' !important" },
  ".cm-collapsedLines:after": { content: "'' !important" },
  ".cm-currentChange": { boxShadow: "inset 3px 0 var(--accent)" },
  "&.cm-merge-b .cm-notChosen, &.cm-merge-b .cm-notChosen .cm-changedText": { background: "var(--grey-back) !important", textDecoration: "line-through" },
  ".cm-chooseGutter": { width: "22px", cursor: "pointer", textAlign: "center", color: "var(--accent)" },
  ".cm-commented": { backgroundImage: "linear-gradient(var(--warn), var(--warn))", backgroundSize: "3px 100%", backgroundPosition: "right", backgroundRepeat: "no-repeat" },
  ".cm-problem": { textDecoration: "underline wavy var(--warn)", textUnderlineOffset: "3px" },
  ".cm-problem[data-severity=Error]": { textDecorationColor: "var(--bad)" },
});

/** Return the extensions of an editor. `label` is what screen readers call it. Line ends stay as they
    are: a text has one kind, and other ones are characters in it.
    @param {{language: string, label: string, eol: string, wrap: boolean, numbers?: Extension}} options @returns {Extension} */
export function setup({ language, label, eol, wrap, numbers = lineNumbers() }) {
  return [
    EditorState.lineSeparator.of(eol),
    EditorState.allowMultipleSelections.of(false),
    EditorView.contentAttributes.of({ "aria-label": label, tabindex: "0", spellcheck: "false" }),
    numbers,
    highlightSpecialChars({ specialChars: INVISIBLE, render: symbolElement }),
    drawSelection(),
    history(),
    bracketMatching(),
    highlightSelectionMatches(),
    search({ top: true }),
    syntaxHighlighting(COLOURS),
    syntaxOf(language),
    keymap.of([...defaultKeymap, ...historyKeymap, ...searchKeymap]),
    wrap ? EditorView.lineWrapping : [],
    THEME,
  ];
}

/** Return the line end of texts: "\r\n" only if every line of them has it. @param {...string} texts */
export function lineEndOf(...texts) {
  return texts.some((text) => text.includes("\r\n")) && texts.every((text) => !/(?<!\r)\n/.test(text)) ? "\r\n" : "\n";
}
