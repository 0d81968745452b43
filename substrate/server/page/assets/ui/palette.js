// The command palette: views, tools, runs and chat sessions, found by a few letters.

import { call } from "../core/connection.js";
import { html, signal, useEffect, useRef, useState } from "../core/html.js";
import { runs } from "../core/live.js";
import { link } from "../core/router.js";
import { methods } from "../core/schema.js";
import { offered } from "../core/views.js";
import { shortId } from "../core/format.js";

const MAX_RESULTS = 12;
const isOpen = signal(false);

/** Open the palette. */
export function openPalette() {
  isOpen.value = true;
}

/** @typedef {{kind: string, text: string, detail: string, href: string}} Entry */

/** @returns {Entry[]} */
function localEntries() {
  return [
    ...offered.peek().map((view) => ({ kind: "View", text: view.title, detail: `g ${view.key}`, href: link(view.name) })),
    ...[...methods.peek().values()].filter((each) => !each.role).map((each) => ({ kind: "Tool", text: each.name, detail: each.title || "", href: link("tools", each.name) })),
    ...[...runs.values()].filter((run) => !run.system).sort((one, two) => two.started_ms - one.started_ms).slice(0, 200).map((run) => ({ kind: "Run", text: run.summary || run.method, detail: `${run.method} · ${shortId(run.run)}`, href: link("runs", run.run) })),
  ];
}

/** Return how well an entry matches; 0 for not at all. @param {Entry} entry @param {string[]} words */
function score(entry, words) {
  const text = `${entry.text} ${entry.detail} ${entry.kind}`.toLowerCase();
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
  useEffect(() => {
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
  const found = [...localEntries(), ...sessions].map((entry) => ({ entry, points: score(entry, words) })).filter(({ points }) => points > 0)
    .sort((one, two) => two.points - one.points).slice(0, MAX_RESULTS).map(({ entry }) => entry);
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
    ${found.length ? null : html`<p class="empty">Nothing found. Search by the name of a tool, a command or a run number.</p>`}
  </dialog>`;
}
