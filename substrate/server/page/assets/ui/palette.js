// The command palette: views, tools, runs and chat sessions, found by a few letters.

import { call } from "../core/connection.js";
import { html, signal, useLayoutEffect, useRef, useState } from "../core/html.js";
import { runs } from "../core/live.js";
import { link } from "../core/router.js";
import { methods } from "../core/schema.js";
import { offered } from "../core/views.js";
import { outcomeOf, shortId } from "../core/format.js";
import { titleOf } from "./run_parts.js";

const MAX_RESULTS = 12;
/** Runs that are offered before anything is typed. */
const RECENT = 4;
const isOpen = signal(false);

/** Open the palette. */
export function openPalette() {
  isOpen.value = true;
}

/** `also` is searched too. @typedef {{kind: string, text: string, detail: string, href: string, also?: string}} Entry */

/** @returns {Entry[]} */
function localEntries() {
  return [
    ...offered.peek().map((view) => ({ kind: "View", text: view.title, detail: `g ${view.key}`, href: link(view.name) })),
    ...[...methods.peek().values()].filter((each) => !each.role).map((each) => ({ kind: "Tool", text: each.name, detail: each.title || "", href: link("tools", each.name) })),
    ...[...runs.values()].filter((run) => !run.system).sort((one, two) => two.started_ms - one.started_ms).slice(0, 200).map((run) => ({ kind: "Run", text: titleOf(run), detail: runDetail(run), href: link("runs", run.run), also: String(run.run) })),
  ];
}

/** @param {import("../core/live.js").RunInfo} run */
function runDetail(run) {
  const { symbol, text } = outcomeOf(run);
  return `${symbol} ${text} · ${run.method} · ${shortId(run.run)}`;
}

/** Return what is offered before anything is typed: the views and the last runs. @param {Entry[]} entries */
function firstEntries(entries) {
  return [...entries.filter((each) => each.kind === "View"), ...entries.filter((each) => each.kind === "Run").slice(0, RECENT)];
}

/** An entry that searches the recorded runs, which are not known here. @param {string} text @returns {Entry} */
function searchEntry(text) {
  return { kind: "Runs", text: `Search all runs for “${text}”`, detail: "commands and output", href: `${link("runs")}?${new URLSearchParams({ q: text, range: "all" })}` };
}

/** Return how well an entry matches; 0 for not at all. @param {Entry} entry @param {string[]} words */
function score(entry, words) {
  const text = `${entry.text} ${entry.detail} ${entry.kind} ${entry.also || ""}`.toLowerCase();
  if (!words.every((word) => text.includes(word))) return 0;
  return words.length && entry.text.toLowerCase().startsWith(words[0]) ? 2 : 1;
}

/** The dialog of the palette. */
export function Palette() {
  const dialog = useRef(/** @type {HTMLDialogElement | null} */ (null));
  const [text, setText] = useState("");
  const [chosen, setChosen] = useState(0);
  const [sessions, setSessions] = useState(/** @type {Entry[]} */ ([]));
  const open = isOpen.value;
  // Before the next key: what is typed after Ctrl-K belongs to the search.
  useLayoutEffect(() => {
    if (!open) return;
    setText("");
    setChosen(0);
    dialog.current?.showModal();
    if (offered.peek().some((view) => view.name === "chat")) {
      call("chat.list").then((/** @type {any} */ found) => setSessions((found.sessions || found).map((/** @type {any} */ each) => ({ kind: "Chat", text: each.name, detail: each.model || "", href: link("chat", each.id || each.name) }))), () => {});
    }
  }, [open]);
  if (!open) return html`<dialog class="palette" ref=${dialog}></dialog>`;
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const all = [...localEntries(), ...sessions];
  const matches = words.length === 0 ? firstEntries(all) : all.map((entry) => ({ entry, points: score(entry, words) })).filter(({ points }) => points > 0)
    .sort((one, two) => two.points - one.points).slice(0, MAX_RESULTS - 1).map(({ entry }) => entry);
  const found = words.length === 0 ? matches : [...matches, searchEntry(text.trim())];
  const close = () => dialog.current?.close();
  const choose = (/** @type {Entry | undefined} */ entry) => {
    if (!entry) return;
    close();
    location.hash = entry.href;
  };
  const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
    const moves = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (moves) setChosen((index) => Math.max(0, Math.min(found.length - 1, index + moves)));
    else if (event.key === "Enter") choose(found[chosen]);
    else if (event.key === "Escape") close(); // in a search field it would only clear the text
    else return;
    event.preventDefault();
  };
  return html`<dialog class="palette" ref=${dialog} aria-label="Command palette" onClose=${() => { isOpen.value = false; }}>
    <input type="search" role="combobox" aria-expanded="true" aria-controls="palette-results" aria-label="Search tools, runs and sessions" placeholder="Search tools, runs and sessions …" autocomplete="off"
      aria-activedescendant=${found.length ? `palette-${chosen}` : null} value=${text} autofocus
      onInput=${(/** @type {any} */ event) => { setText(event.target.value); setChosen(0); }} onKeyDown=${onKeyDown} />
    <ul id="palette-results" role="listbox" aria-label="Results">${found.map((entry, index) => html`
      <li key=${entry.href} id=${`palette-${index}`} role="option" aria-selected=${index === chosen ? "true" : "false"} onClick=${() => choose(entry)} onMouseMove=${() => setChosen(index)}>
        <small class="kind">${entry.kind}</small> <span>${entry.text}</span> <small>${entry.detail}</small></li>`)}</ul>
    ${matches.length ? null : html`<p class="empty">Nothing found. Search by the name of a tool, a command or a run number.</p>`}
  </dialog>`;
}
