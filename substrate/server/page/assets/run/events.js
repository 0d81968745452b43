// Every item of a run: number, time, type and content. Items are read in pages, and only a short text
// of each is kept until it is opened.

import { call } from "../core/connection.js";
import { clock } from "../core/format.js";
import { html, signal, useEffect, useMemo, useRef, useState } from "../core/html.js";
import { setQuery } from "../core/router.js";
import { JsonTree } from "../ui/json_tree.js";
import { attempt } from "../ui/toast.js";
import { Scroller } from "./scroller.js";

/** @typedef {{seq: number, time: number, type: string, text: string}} Preview */

const PAGE = 100;
const MAX_PAGES = 12;
const PREVIEW = 300;

/** Return an item in short. @param {import("./rows.js").Item} item @returns {Preview} */
function previewOf({ seq, time_ms: time, event: { type, ...rest } }) {
  const names = Object.keys(rest);
  const only = names.length === 1 ? rest[names[0]] : undefined;
  const short = Object.fromEntries(names.map((name) => [name, typeof rest[name] === "string" ? rest[name].slice(0, PREVIEW) : rest[name]]));
  const text = typeof only === "string" ? JSON.stringify(only.slice(0, PREVIEW)) : names.length ? JSON.stringify(short) : "";
  return { seq, time, type, text: text.slice(0, PREVIEW) };
}

/** The items of a run in pages. `version` changes when a page was read. */
class ItemPages {
  /** @param {number} run */
  constructor(run) {
    this.version = signal(0);
    this._run = run;
    /** @type {Map<number, (Preview | undefined)[]>} */
    this._pages = new Map();
    this._isLoading = false;
    /** @type {[number, number]} */
    this._wanted = [0, 0];
  }

  /** @param {number} index */
  item(index) {
    return this._pages.get(Math.floor(index / PAGE))?.[index % PAGE];
  }

  /** Read the items from `first` to `last` that are not known. @param {number} first @param {number} last */
  async need(first, last) {
    this._wanted = [first, last];
    if (this._isLoading) return;
    this._isLoading = true;
    try {
      for (let missing = this._missing(); missing >= 0; missing = this._missing()) await this._load(missing);
    } catch {
      // The connection was lost; the next drawing requests them again.
    }
    this._isLoading = false;
  }

  _missing() {
    const [first, last] = this._wanted;
    for (let index = first; index < last; index += 1) if (this.item(index) === undefined) return index;
    return -1;
  }

  /** @param {number} index */
  async _load(index) {
    const number = Math.floor(index / PAGE);
    const page = this._pages.get(number) || [];
    const { items } = await call("plexus.items", { run: this._run, after: index, limit: PAGE - (index % PAGE) });
    let next = index;
    for (const item of items) {
      const preview = previewOf(item);
      // Items that are missing have one event, with the number of the last of them.
      for (; next < Math.min(item.seq, (number + 1) * PAGE); next += 1) page[next % PAGE] = { ...preview, seq: next + 1 };
    }
    if (next === index) page[index % PAGE] = { seq: index + 1, time: 0, type: "missing", text: "" };
    this._pages.delete(number);
    this._pages.set(number, page);
    for (const oldest of this._pages.keys()) {
      if (this._pages.size <= MAX_PAGES) break;
      this._pages.delete(oldest);
    }
    this.version.value += 1;
  }
}

/** The list of all items. @param {{log: import("./log.js").RunLog, isActive: boolean, seq: number}} props */
export function Events({ log, isActive, seq }) {
  const pages = useMemo(() => new ItemPages(log.run), [log]);
  const list = useRef(/** @type {import("./scroller.js").ScrollerHandle | null} */ (null));
  const [follows, setFollows] = useState(isActive && seq === 0);
  /** @type {[Map<number, any>, (opened: Map<number, any>) => void]} */
  const [opened, setOpened] = useState(new Map());
  log.version.value;
  pages.version.value;
  const toShow = useRef(0);
  useEffect(() => { toShow.current = seq; }, [seq]);
  useEffect(() => {
    if (!toShow.current || log.last < toShow.current) return;
    list.current?.show(toShow.current - 1);
    toShow.current = 0;
  }, [seq, log.version.value]);
  const toggle = (/** @type {number} */ number) => attempt(async () => {
    const next = new Map(opened);
    if (!next.delete(number)) {
      const { items } = await call("plexus.items", { run: log.run, after: number - 1, limit: 1 });
      next.set(number, items[0]?.event);
      setQuery({ line: String(number) });
    }
    setOpened(next);
  });
  const row = (/** @type {number} */ index) => {
    const known = pages.item(index);
    const event = opened.get(index + 1);
    return html`<div class="event" data-selected=${index + 1 === seq ? "true" : null}>
      <button type="button" class="plain event-line" aria-expanded=${event === undefined ? "false" : "true"} onClick=${() => toggle(index + 1)}><span class="seq">${index + 1}</span> <time>${known?.time ? clock(known.time) : ""}</time>
        <span class="tag">${known?.type ?? "…"}</span> <span class="cut">${known?.text ?? ""}</span></button>
      ${event === undefined ? null : html`<${JsonTree} value=${event} open=${2} label=${`Item ${index + 1}`} />`}</div>`;
  };
  return html`<div class="events"><${Scroller} count=${log.last} row=${row} stamp=${(/** @type {number} */ index) => opened.get(index + 1) ?? pages.item(index)} epoch=${seq} label="Every item with its number and time"
      follows=${follows} onFollow=${setFollows} handle=${list} onRange=${(/** @type {number} */ first, /** @type {number} */ last) => pages.need(first, last)} />
    ${log.last === 0 ? html`<p class="none">No events yet.</p>` : null}</div>`;
}
