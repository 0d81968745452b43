// The tree of the workspace. Folders are read when they are opened; what .gitignore excludes is hidden.

import { call } from "../core/connection.js";
import { readable } from "../core/format.js";
import { html, signal, useEffect, useRef, useState } from "../core/html.js";
import { link } from "../core/router.js";
import { load, save } from "../core/storage.js";
import { fileLink } from "./places.js";

/** @typedef {{name: string, path: string, kind: "folder" | "file" | "link" | "other", size: number | null, ignored: boolean}} Entry */
/** @typedef {{entries: Entry[], more: number, error?: string}} Folder */
/** A row: an entry and its depth, or a remark about a folder. @typedef {{entry?: Entry, text?: string, depth: number, key: string}} Row */

const SETTING = "files.expanded";
const MAX_EXPANDED = 200;

/** The folders that were read, by path. @type {import("@preact/signals").Signal<Map<string, Folder>>} */
const folders = signal(new Map());
/** @type {import("@preact/signals").Signal<Set<string>>} */
const expanded = signal(new Set(load(SETTING, [])));
const showsIgnored = signal(load("files.ignored", false));

/** Read a folder again. @param {string} path */
async function read(path) {
  /** @type {Folder} */
  let found;
  try {
    found = await call("ide.list_folder", { path, ignored: showsIgnored.peek() });
  } catch (failure) {
    found = { entries: [], more: 0, error: /** @type {Error} */ (failure).message };
  }
  folders.value = new Map(folders.peek()).set(path, found);
}

/** Read all folders again that are shown. */
export function refreshTree() {
  return Promise.all(["", ...expanded.peek()].map(read));
}

/** @param {string} path @param {boolean} isOpen */
function expand(path, isOpen) {
  const next = new Set(expanded.peek());
  if (isOpen) next.add(path);
  else for (const each of next) if (each === path || each.startsWith(`${path}/`)) next.delete(each);
  expanded.value = next;
  save(SETTING, [...next].slice(-MAX_EXPANDED));
  if (isOpen) read(path);
}

/** @param {string} path @param {number} depth @param {Row[]} rows */
function addRows(path, depth, rows) {
  const folder = folders.value.get(path);
  if (!folder) {
    rows.push({ text: "Loading …", depth, key: `${path} loading` });
    return rows;
  }
  if (folder.error) rows.push({ text: folder.error, depth, key: `${path} error` });
  for (const entry of folder.entries) {
    rows.push({ entry, depth, key: entry.path });
    if (entry.kind === "folder" && expanded.value.has(entry.path)) addRows(entry.path, depth + 1, rows);
  }
  if (folder.more) rows.push({ text: `${folder.more} more entries are not listed`, depth, key: `${path} more` });
  if (!folder.entries.length && !folder.error) rows.push({ text: "empty", depth, key: `${path} empty` });
  return rows;
}

/** `chosen` is the path of the file that is shown. @param {{chosen: string}} props */
export function Tree({ chosen }) {
  const [query, setQuery] = useState("");
  useEffect(() => {
    refreshTree();
    // Files change while the person works elsewhere.
    addEventListener("focus", refreshTree);
    return () => removeEventListener("focus", refreshTree);
  }, []);
  useEffect(() => {
    const folder = chosen.slice(0, Math.max(0, chosen.lastIndexOf("/")));
    if (!chosen) return;
    // The file that is shown is in the tree, also if it is new.
    folder.split("/").forEach((_, at, parts) => folder && expand(parts.slice(0, at + 1).join("/"), true));
    if (!folders.peek().get(folder)?.entries.some((each) => each.path === chosen)) read(folder);
  }, [chosen]);
  const toggleIgnored = (/** @type {any} */ event) => {
    showsIgnored.value = event.target.checked;
    save("files.ignored", showsIgnored.value);
    refreshTree();
  };
  return html`<div class="file-search"><input type="search" aria-label="Find files by name" placeholder="Find a file …" value=${query} onInput=${(/** @type {any} */ event) => setQuery(event.target.value)} />
      <button type="button" class="small" aria-label="Read the folders again" title="Read the folders again" onClick=${refreshTree}>↻</button></div>
    ${query.trim() ? html`<${Found} query=${query} />` : html`<${Rows} chosen=${chosen} />`}
    <label class="check"><input type="checkbox" checked=${showsIgnored.value} onChange=${toggleIgnored} /> <small>Show ignored files</small></label>`;
}

/** @param {{chosen: string}} props */
function Rows({ chosen }) {
  const rows = addRows("", 0, []);
  const entries = rows.flatMap((row) => (row.entry ? [row.entry] : []));
  const [focused, setFocused] = useState("");
  const list = useRef(/** @type {HTMLUListElement | null} */ (null));
  const active = [focused, chosen].find((path) => entries.some((each) => each.path === path)) ?? entries[0]?.path;
  const move = (/** @type {string | undefined} */ path) => {
    if (path === undefined) return;
    setFocused(path);
    requestAnimationFrame(() => /** @type {HTMLElement | null} */ (list.current?.querySelector("[tabindex='0']"))?.focus());
  };
  const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
    const at = entries.findIndex((each) => each.path === active);
    const entry = entries[at];
    if (!entry || event.ctrlKey || event.metaKey || event.altKey) return;
    const isFolder = entry.kind === "folder";
    const isOpen = expanded.peek().has(entry.path);
    const moves = { ArrowDown: at + 1, j: at + 1, ArrowUp: at - 1, k: at - 1, Home: 0, End: entries.length - 1 };
    if (event.key in moves) move(entries[Math.max(0, Math.min(entries.length - 1, moves[event.key]))].path);
    else if (event.key === "ArrowRight" && isFolder && !isOpen) expand(entry.path, true);
    else if (event.key === "ArrowRight" && isFolder) move(entries[at + 1]?.path);
    else if (event.key === "ArrowLeft" && isFolder && isOpen) expand(entry.path, false);
    else if (event.key === "ArrowLeft") move(entry.path.includes("/") ? entry.path.slice(0, entry.path.lastIndexOf("/")) : undefined);
    else if (event.key === "Enter" || event.key === " ") open(entry);
    else return;
    event.preventDefault();
  };
  if (!entries.length) return html`<p class="dim">${rows.map(({ text }) => text)}</p>`;
  return html`<ul class="file-tree plain" role="tree" aria-label="Files of the workspace" ref=${list} onKeyDown=${onKeyDown}>${rows.map(({ entry, text, depth, key }) => (entry
    ? html`<li key=${key} class="file-row" data-depth=${Math.min(depth, 12)} data-kind=${entry.kind} data-ignored=${entry.ignored ? "" : null} role="treeitem" aria-level=${depth + 1} aria-selected=${String(entry.path === chosen)}
        aria-expanded=${entry.kind === "folder" ? String(expanded.value.has(entry.path)) : null} tabindex=${entry.path === active ? "0" : "-1"} title=${readable(entry.path)}
        onClick=${() => { setFocused(entry.path); open(entry); }}><span class="cut">${readable(entry.name)}${entry.kind === "link" ? " ↪" : ""}</span></li>`
    : html`<li key=${key} class="file-row dim" data-depth=${Math.min(depth, 12)} role="none">${text}</li>`))}</ul>`;
}

/** @param {Entry} entry */
function open(entry) {
  if (entry.kind === "folder") expand(entry.path, !expanded.peek().has(entry.path));
  else location.hash = fileLink(entry.path);
}

/** @param {{query: string}} props */
function Found({ query }) {
  const [found, setFound] = useState(/** @type {{paths: string[], more: boolean} | null} */ (null));
  const [error, setError] = useState("");
  useEffect(() => {
    let isOver = false;
    const timer = setTimeout(() => call("ide.find_files", { query: query.trim().slice(0, 200) }).then(
      (result) => isOver || (setFound(result), setError("")),
      (failure) => isOver || setError(failure.message),
    ), 120);
    return () => {
      isOver = true;
      clearTimeout(timer);
    };
  }, [query]);
  if (error) return html`<p class="error" role="alert">${error}</p>`;
  if (!found) return html`<p class="dim" role="status">Searching …</p>`;
  if (!found.paths.length) return html`<p class="dim" role="status">No file has these letters in its path. <a href=${link("files")}>Show all</a></p>`;
  return html`<ul class="file-tree plain" aria-label="Found files">${found.paths.map((path) => html`<li key=${path}><a class="file-row cut" href=${fileLink(path)} title=${readable(path)}>${readable(path)}</a></li>`)}
    ${found.more ? html`<li class="dim">More files match. Type more letters.</li>` : null}</ul>`;
}
