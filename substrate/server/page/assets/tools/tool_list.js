// The list of tools by namespace, with a search field. Arrow keys move, Enter opens.

import { html, h, signal, useEffect, useRef, useState } from "../core/html.js";
import { go, link } from "../core/router.js";
import { load, save } from "../core/storage.js";
import { Notice } from "../ui/run_parts.js";
import { firstLine, groups, search, tagsOf, toolTitle, tools } from "./catalogue.js";

/** @typedef {import("./catalogue.js").Group} Group */
/** @typedef {import("./catalogue.js").Method} Method */

/** The search stays while other views are shown. */
const query = signal("");
/** Which groups are folded, by name; System is, until a person opens it. */
const folded = signal(load("tools.folded", /** @type {Record<string, boolean>} */ ({ System: true })));

/** The list. `onOpen` is called when a tool is opened by the keyboard. @param {{current: string | undefined, onOpen: () => void}} props */
export function ToolList({ current, onOpen }) {
  const list = useRef(/** @type {HTMLElement | null} */ (null));
  const [reached, setReached] = useState("");
  const found = search(groups.value, query.value);
  const count = found.reduce((sum, group) => sum + group.tools.length, 0);
  const isSearching = query.value.trim() !== "";
  const isOpen = (/** @type {Group} */ group) => isSearching || !folded.value[group.name];
  useEffect(() => {
    list.current?.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
  }, [current, groups.value]);

  const rows = () => /** @type {HTMLElement[]} */ ([...(list.current?.querySelectorAll("[data-row]") || [])]);
  const open = (name) => {
    go("tools", name);
    onOpen();
  };
  const fold = (name, value) => {
    folded.value = { ...folded.value, [name]: value };
    save("tools.folded", folded.value);
  };
  const onSearchKey = (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Enter" && found.length) open(found[0].tools[0].name);
    else if (event.key === "ArrowDown") (rows().find((row) => row.tagName === "A") || rows()[0])?.focus();
    else if (event.key === "Escape" && query.value) query.value = "";
    else return;
    event.preventDefault();
  };
  const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const all = rows();
    const at = all.indexOf(/** @type {HTMLElement} */ (document.activeElement));
    const row = all[at];
    if (!row) return;
    const target = { ArrowDown: at + 1, j: at + 1, ArrowUp: at - 1, k: at - 1, Home: 0, End: all.length - 1 }[event.key];
    if (target === -1) document.getElementById("tool-search")?.focus();
    else if (target !== undefined) all[Math.min(target, all.length - 1)].focus();
    else if (event.key === "Enter" && row.tagName === "A") open(row.dataset.row || "");
    else if (event.key === "ArrowLeft" && row.tagName === "A") all.slice(0, at).reverse().find((each) => each.tagName === "BUTTON")?.focus();
    else if (event.key === "ArrowLeft" || event.key === "ArrowRight") row.tagName === "BUTTON" && fold(row.dataset.row || "", event.key === "ArrowLeft");
    else return;
    event.preventDefault();
  };
  const first = found.find(isOpen)?.tools[0]?.name;
  const visible = new Set(found.flatMap((group) => [group.name, ...(isOpen(group) ? group.tools.map((tool) => tool.name) : [])]));
  const stop = [reached, current, first, found[0]?.name].find((name) => name !== undefined && visible.has(name));

  return html`<section class="tool-list" aria-label="All tools">
    <div class="bar">${h(current ? "h2" : "h1", {}, "Tools")}<span class="dim" role="status">${isSearching ? `${count} of ${tools.value.size} ${count === 1 ? "tool matches" : "tools match"}` : `${count} tools`}</span></div>
    <input type="search" id="tool-search" aria-label="Search tools" placeholder="Search names and descriptions …" autocomplete="off" spellcheck=${false} value=${query.value}
      onInput=${(event) => { query.value = event.target.value; }} onKeyDown=${onSearchKey} />
    <div class="tool-groups" ref=${list} onKeyDown=${onKeyDown} onFocusIn=${(event) => setReached(event.target.dataset.row || "")}>
      ${found.map((group) => html`<section key=${group.name} aria-label=${group.name}>
        <h3><button type="button" class="plain" data-row=${group.name} tabindex=${stop === group.name ? 0 : -1} aria-expanded=${isOpen(group) ? "true" : "false"} onClick=${() => fold(group.name, isOpen(group))}>
          <span aria-hidden="true">${isOpen(group) ? "▾" : "▸"}</span> ${group.name} <small class="cut">${group.about}</small><small>${group.tools.length}</small></button></h3>
        ${isOpen(group) ? html`<ul class="plain">${group.tools.map((tool) => html`<li key=${tool.name}><${ToolRow} tool=${tool} isCurrent=${tool.name === current} isStop=${stop === tool.name} /></li>`)}</ul>` : null}
      </section>`)}
      ${count ? null : html`<${Notice} title="No tool matches"><p>Search by a name, a title or words of a description.</p>
        <button type="button" onClick=${() => { query.value = ""; document.getElementById("tool-search")?.focus(); }}>Clear the search</button><//>`}
    </div></section>`;
}

/** @param {{tool: Method, isCurrent: boolean, isStop: boolean}} props */
function ToolRow({ tool, isCurrent, isStop }) {
  return html`<a class="tool-row" href=${link("tools", tool.name)} data-row=${tool.name} tabindex=${isStop ? 0 : -1} aria-current=${isCurrent ? "page" : null}>
    <span class="tool-head"><strong class="cut">${toolTitle(tool)}</strong> <${Tags} tool=${tool} isShort /></span>
    <small class="cut"><code>${tool.name}</code> ${firstLine(tool.description)}</small></a>`;
}

/** The short facts about a tool. @param {{tool: Method, isShort?: boolean}} props */
export function Tags({ tool, isShort = false }) {
  const tags = tagsOf(tool, isShort);
  if (!tags.length) return null;
  return html`<span class="tags">${tags.map(({ text, kind }) => html`<span key=${text} class="tag" data-kind=${kind}>${text}</span> `)}</span>`;
}
