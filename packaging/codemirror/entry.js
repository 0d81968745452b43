// What the page uses of CodeMirror. bundle.py makes one module of it; the page imports it as "codemirror".

/** @typedef {import("@codemirror/state").Extension} Extension */
/** @typedef {import("@codemirror/state").Text} TextDocument */
/** @template T @typedef {import("@codemirror/state").StateEffectType<T>} EffectType */
/** @typedef {import("@codemirror/view").ViewUpdate} ViewUpdate */

export { Compartment, EditorSelection, EditorState, Prec, StateEffect, StateField } from "@codemirror/state";
export { Decoration, EditorView, GutterMarker, drawSelection, gutter, highlightActiveLine, highlightActiveLineGutter, highlightSpecialChars, keymap, lineNumbers } from "@codemirror/view";
export { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
export { highlightSelectionMatches, search, searchKeymap } from "@codemirror/search";
export { HighlightStyle, Language, StreamLanguage, bracketMatching, defineLanguageFacet, indentOnInput, indentUnit, syntaxHighlighting } from "@codemirror/language";
export { MergeView, getChunks, unifiedMergeView } from "@codemirror/merge";
export { tags } from "@lezer/highlight";
export { GFM, parser as markdownParser } from "@lezer/markdown";
export { c, cpp, csharp, java, kotlin } from "@codemirror/legacy-modes/mode/clike";
export { css, less, sCSS } from "@codemirror/legacy-modes/mode/css";
export { diff } from "@codemirror/legacy-modes/mode/diff";
export { dockerFile } from "@codemirror/legacy-modes/mode/dockerfile";
export { go } from "@codemirror/legacy-modes/mode/go";
export { javascript, json, typescript } from "@codemirror/legacy-modes/mode/javascript";
export { lua } from "@codemirror/legacy-modes/mode/lua";
export { properties } from "@codemirror/legacy-modes/mode/properties";
export { python } from "@codemirror/legacy-modes/mode/python";
export { ruby } from "@codemirror/legacy-modes/mode/ruby";
export { rust } from "@codemirror/legacy-modes/mode/rust";
export { shell } from "@codemirror/legacy-modes/mode/shell";
export { swift } from "@codemirror/legacy-modes/mode/swift";
export { toml } from "@codemirror/legacy-modes/mode/toml";
export { html, xml } from "@codemirror/legacy-modes/mode/xml";
export { yaml } from "@codemirror/legacy-modes/mode/yaml";
