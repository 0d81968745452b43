// The syntax of files by their language, for the editor.

import {
  GFM, Language, StreamLanguage, c, cpp, csharp, css, defineLanguageFacet, diff, dockerFile, go, html, java, javascript, json, kotlin, less, lua,
  markdownParser, properties, python, ruby, rust, sCSS, shell, swift, toml, typescript, xml, yaml,
} from "codemirror";

/** @typedef {import("codemirror").Extension} Extension */

const MODES = {
  python, javascript, javascriptreact: javascript, typescript, typescriptreact: typescript, json, jsonc: json, css, scss: sCSS, less, c, cpp, csharp, java, kotlin,
  html, vue: html, svelte: html, xml, yaml, toml, shellscript: shell, dockerfile: dockerFile, go, rust, ruby, lua, swift, diff, ini: properties, ignore: properties,
};
/** The languages that are made already. @type {Map<string, Extension>} */
const made = new Map();

/** Return the extension that colours a language; nothing for a language without colours.
    @param {string} name as the server names it @returns {Extension} */
export function syntaxOf(name) {
  const known = made.get(name);
  if (known) return known;
  /** @type {Extension} */
  let found = [];
  if (name === "markdown") found = new Language(defineLanguageFacet(), markdownParser.configure([GFM]), [], "markdown");
  else if (Object.hasOwn(MODES, name)) found = StreamLanguage.define(MODES[name]);
  made.set(name, found);
  return found;
}
