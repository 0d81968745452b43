// The output of a run: its rows in a list, and what can be done with them.

import { clock, count } from "../core/format.js";
import { html, useEffect, useMemo, useRef, useState } from "../core/html.js";
import { link, setQuery } from "../core/router.js";
import { load, save } from "../core/storage.js";
import { Markdown } from "../ui/markdown.js";
import { announce, attempt, toast } from "../ui/toast.js";
import { EventView } from "./event_view.js";
import { copyOutput, downloadOutput } from "./export.js";
import { LineText } from "./line_view.js";
import { isErrorRow } from "./rows.js";
import { Scroller } from "./scroller.js";
import { Search, findError } from "./search.js";

/** @typedef {import("./log.js").RunLog} RunLog */
/** @typedef {import("./rows.js").Row} Row */

const SEARCH_PAUSE_MS = 200;

/** The content of a row. @param {{row: Row, pattern: RegExp | null, column: number}} props */
export function RowView({ row, pattern, column }) {
  if (typeof row === "string") return html`<${LineText} parts=${[{ text: row, style: null }]} marks=${{ pattern, column }} />`;
  if ("parts" in row) return html`<${LineText} parts=${row.parts} marks=${{ pattern, column }} />`;
  const inner = row.kind === "event" ? html`<${EventView} event=${row.event} />` : row.kind === "text" ? html`<${Markdown} text=${row.text} />` : html`<${EventView} event=${{ type: "thinking", text: row.text }} />`;
  return html`<div class=${`block ${column >= 0 ? "found" : ""}`}>${inner}</div>`;
}

/** The output. It opens at a line, at the end with `opensAtEnd`, or at the start.
    @param {{log: RunLog, feed: import("./feed.js").Feed, isActive: boolean, opensAtEnd: boolean, line: number}} props */
export function Output({ log, feed, isActive, opensAtEnd, line }) {
  const list = useRef(/** @type {import("./scroller.js").ScrollerHandle | null} */ (null));
  const input = useRef(/** @type {HTMLInputElement | null} */ (null));
  const [follows, setFollows] = useState(opensAtEnd && line === 0);
  const [wraps, setWraps] = useState(() => load("run.wrap", false));
  const [text, setText] = useState("");
  const [saving, setSaving] = useState("");
  /** @type {[Search | null, (search: Search | null) => void]} */
  const [search, setSearch] = useState(/** @type {Search | null} */ (null));
  const toShow = useRef(line);
  log.version.value;
  const step = search?.changed.value ?? 0;

  useEffect(() => { toShow.current = line; }, [line]);
  useEffect(() => {
    if (!toShow.current || log.count < toShow.current) return;
    list.current?.show(toShow.current - 1);
    toShow.current = 0;
  }, [line, log.version.value]);
  useEffect(() => {
    if (!text) {
      setSearch(null);
      return undefined;
    }
    /** @type {Search | null} */
    let made = null;
    const timer = setTimeout(() => {
      made = new Search(log, text, list.current?.first() ?? 0);
      setSearch(made);
    }, SEARCH_PAUSE_MS);
    return () => {
      clearTimeout(timer);
      made?.stop();
    };
  }, [text]);
  useEffect(() => { search?.resume(); }, [search, log.version.value]);
  useEffect(() => {
    if (search && search.row >= 0) list.current?.show(search.row);
  }, [search, search?.current]);

  const move = (/** @type {number} */ by) => {
    search?.move(by);
    if (search?.count) announce(`Match ${search.current + 1} of ${search.count}`);
  };
  const nextError = () => attempt(async () => {
    const from = selected.current >= 0 ? selected.current : (list.current?.first() ?? 0) - 1;
    const found = await findError(log, from);
    if (found < 0) toast("No errors found");
    else {
      selected.current = found;
      setQuery({ line: String(found + 1) });
    }
  });
  /** The row of the last error that was shown. */
  const selected = useRef(-1);
  const toEnd = () => {
    list.current?.toEnd();
  };
  useEffect(() => {
    const onKey = (/** @type {KeyboardEvent} */ event) => {
      if (event.key === "F3" && search) {
        event.preventDefault();
        move(event.shiftKey ? -1 : 1);
      }
      const target = /** @type {HTMLElement} */ (event.target);
      if (event.key !== "f" || event.ctrlKey || event.metaKey || event.altKey || target.closest("input,textarea,select,dialog,[contenteditable]")) return;
      event.preventDefault();
      toEnd();
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, [search]);

  const pattern = search?.pattern ?? null;
  const epoch = useMemo(() => ({}), [pattern, step, wraps, line]);
  const row = (/** @type {number} */ index) => {
    const known = log.row(index);
    const time = log.timeOf(index);
    const href = `${link("runs", log.run)}?line=${index + 1}`;
    const onClick = (/** @type {Event} */ event) => {
      event.preventDefault();
      setQuery({ line: index + 1 === line ? null : String(index + 1) });
    };
    const isStderr = known !== undefined && typeof known !== "string" && "parts" in known && known.parts.some((part) => part.style?.error);
    const hasFailed = known !== undefined && typeof known !== "string" && "kind" in known && isErrorRow(known);
    return html`<div class="line" data-stderr=${isStderr ? "true" : null} data-error=${hasFailed ? "true" : null} data-selected=${index + 1 === line ? "true" : null} title=${time ? `${clock(time)}${isStderr ? ", standard error" : ""}` : null}>
      <a class="number" href=${href} onClick=${onClick} tabindex="-1" aria-label=${`Line ${index + 1}`}>${index + 1}</a>
      ${known === undefined ? html`<span class="text dim">…</span>` : html`<${RowView} row=${known} pattern=${pattern} column=${search?.row === index ? search.column : -1} />`}</div>`;
  };
  const toggleWrap = () => {
    save("run.wrap", !wraps);
    setWraps(!wraps);
  };
  const isLoading = feed.state.value === "loading" && feed.read.value < 1;
  return html`<div class="output" data-terminal=${log.isTerminal ? "true" : null} data-wrap=${wraps ? "true" : null}>
    <div class="tools-bar" role="toolbar" aria-label="Output">
      <span class="find"><input type="search" ref=${input} aria-label="Search the output" placeholder="Search output" value=${text} onInput=${(/** @type {any} */ event) => setText(event.target.value)}
        onKeyDown=${(/** @type {KeyboardEvent} */ event) => event.key === "Enter" && (event.preventDefault(), move(event.shiftKey ? -1 : 1))} />
        ${search ? html`<span class="matches" role="status" title=${search.isRunning ? "Searching…" : null}>${search.count ? `${count(search.current + 1)}/${count(search.count)}${search.isCut ? "+" : ""}` : search.isRunning ? "…" : "0/0"}</span>
          <button type="button" class="plain" aria-label="Previous match" title="Previous match (Shift Enter)" onClick=${() => move(-1)}>↑</button><button type="button" class="plain" aria-label="Next match" title="Next match (Enter)" onClick=${() => move(1)}>↓</button>` : null}</span>
      <button type="button" class="plain" onClick=${nextError} title="Show the next line of standard error or with an error">Next error</button>
      <button type="button" class="plain" aria-pressed=${wraps ? "true" : "false"} onClick=${toggleWrap}>Wrap</button>
      <button type="button" class="plain" onClick=${() => attempt(() => copyOutput(log))}>Copy</button>
      <button type="button" class="plain" disabled=${saving !== ""} onClick=${() => attempt(() => downloadOutput(log, setSaving)).then(() => setSaving(""))}>${saving ? `Download ${saving}` : "Download"}</button>
      ${isActive ? html`<button type="button" class="plain" aria-pressed=${follows ? "true" : "false"} onClick=${() => (follows ? setFollows(false) : toEnd())} title="Follow the end (f)">${follows ? html`<span aria-hidden="true">●</span> Following` : "Follow"}</button>`
      : html`<button type="button" class="plain" onClick=${toEnd} title="Show the end (f)">To the end</button>`}
    </div>
    ${isLoading ? html`<progress class="loading" max="1" value=${feed.read.value} aria-label="Loading the output"></progress>` : null}
    ${log.count === 0 && !isLoading ? html`<p class="none">${isActive ? "No output yet." : feed.state.value === "lost" ? "Not loaded yet." : "This run has no output."}</p>` : null}
    <${Scroller} count=${log.count} row=${row} stamp=${(/** @type {number} */ index) => log.row(index)} epoch=${epoch} label="Output" follows=${follows} onFollow=${setFollows} handle=${list}
      onRange=${(/** @type {number} */ first, /** @type {number} */ last) => log.need(first, last)} />
  </div>`;
}
