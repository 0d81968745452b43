// One tool: what it does, its form, its call for other programs, and its last runs.

import { call, state } from "../core/connection.js";
import { html, useEffect, useMemo, useRef, useState } from "../core/html.js";
import { runs, version } from "../core/live.js";
import { go, link } from "../core/router.js";
import { load, save } from "../core/storage.js";
import { Form } from "../ui/form.js";
import { withoutSecrets } from "../ui/form_draft.js";
import { JsonTree } from "../ui/json_tree.js";
import { Markdown } from "../ui/markdown.js";
import { Ago, RunLink } from "../ui/run_parts.js";
import { title } from "../ui/title.js";
import { copy } from "../ui/toast.js";
import { toolTitle } from "./catalogue.js";
import { CopyAs } from "./copy_as.js";
import { startRun } from "./start_run.js";
import { Tags } from "./tool_list.js";

/** @typedef {import("./catalogue.js").Method} Method */
/** @typedef {import("../core/live.js").RunInfo} RunInfo */

const RECENT = 5;
const MAX_USED = 8;
/** What was typed and not yet sent, by tool; a visit to another view does not lose it. @type {Map<string, any>} */
const drafts = new Map();

/** Return where the form of a tool begins: the arguments of a run to edit, what was typed, or the last values. @param {Method} tool */
function beginning(tool) {
  const prefill = load("prefill", /** @type {{method: string, arguments: any} | null} */ (null));
  if (prefill?.method === tool.name) {
    save("prefill", undefined);
    return { value: withoutSecrets(prefill.arguments, tool.params), from: "The values of an earlier run." };
  }
  if (drafts.has(tool.name)) return { value: drafts.get(tool.name), from: "" };
  const last = load(`values.${tool.name}`, null);
  return { value: last || {}, from: last && Object.keys(last).length ? "The values of your last run." : "" };
}

/** A tool. `toFocus` counts requests to move the focus to its form. @param {{tool: Method, toFocus: number}} props */
export function Tool({ tool, toFocus }) {
  const element = useRef(/** @type {HTMLElement | null} */ (null));
  const [start, setStart] = useState(() => ({ ...beginning(tool), count: 0 }));
  const [value, setValue] = useState(start.value);
  const [busy, setBusy] = useState(false);
  const [faults, setFaults] = useState(/** @type {any[]} */ ([]));
  const [error, setError] = useState("");
  useEffect(() => {
    title.value = `${toolTitle(tool)} · Tools`;
    return () => { title.value = ""; };
  }, [tool]);
  useEffect(() => {
    if (toFocus) /** @type {HTMLElement | null | undefined} */ (element.current?.querySelector("form :is(input,textarea,select)") || element.current?.querySelector("h1"))?.focus();
  }, [toFocus]);

  const onChange = (next) => {
    drafts.set(tool.name, next);
    setValue(next);
  };
  const clear = () => {
    save(`values.${tool.name}`, undefined);
    setFaults([]);
    setError("");
    setStart(({ count }) => ({ value: {}, from: "", count: count + 1 }));
  };
  const run = async (given) => {
    setBusy(true);
    setError("");
    save(`values.${tool.name}`, withoutSecrets(given, tool.params));
    try {
      const number = await startRun(tool.name, given);
      save("tools.used", [tool.name, ...load("tools.used", []).filter((each) => each !== tool.name)].slice(0, MAX_USED));
      go("runs", number);
    } catch (failure) {
      setFaults(/** @type {any} */ (failure).faults || []);
      if (!/** @type {any} */ (failure).faults?.length) setError(/** @type {any} */ (failure).message);
      setBusy(false);
    }
  };
  const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !event.defaultPrevented) element.current?.querySelector("form")?.requestSubmit();
  };
  const isEmpty = Object.keys(value || {}).length === 0;
  return html`<article class="tool" ref=${element} onKeyDown=${onKeyDown}>
    <a class="back" href=${link("tools")}>‹ All tools</a>
    <header><h1 tabindex="-1">${toolTitle(tool)}</h1>
      <div class="bar"><code>${tool.name}</code><button type="button" class="plain small" onClick=${() => copy(tool.name)}>Copy<span class="unseen"> the name</span></button><${Tags} tool=${tool} /></div>
      <${Markdown} text=${tool.description} /></header>
    <div class="card">
      ${start.from ? html`<p class="dim">${start.from}</p>` : null}
      <${Form} key=${start.count} schema=${tool.params} value=${start.value} faults=${faults} busy=${busy} label=${`Run ${tool.name}`} submitLabel="Run" busyLabel="Starting…" idPrefix=${`tool-${tool.name}`} onSubmit=${run} onChange=${onChange}>
        <span class="dim keys"><kbd>Ctrl</kbd> <kbd>Enter</kbd></span><span class="grow"></span>
        ${isEmpty && !start.from ? null : html`<button type="button" class="plain" onClick=${clear}>Clear the form</button>`}<//>
      ${error ? html`<p class="error" role="alert">${error}</p>` : null}
    </div>
    <${RecentRuns} method=${tool.name} />
    <${CopyAs} tool=${tool} value=${value} />
    <${Schemas} tool=${tool} /></article>`;
}

/** The last runs of a method, followed live. @param {{method: string}} props */
function RecentRuns({ method }) {
  const [recorded, setRecorded] = useState(/** @type {RunInfo[]} */ ([]));
  const isOpen = state.value === "open";
  useEffect(() => {
    let isOver = false;
    if (isOpen) call("plexus.history", { method, limit: RECENT }).then((found) => isOver || setRecorded(found), () => {});
    return () => { isOver = true; };
  }, [method, isOpen]);
  const seen = version.value;
  const shown = useMemo(() => {
    const live = [...runs.values()].filter((run) => run.method === method);
    const all = new Map([...recorded, ...live].filter((run) => !run.system).map((run) => [run.run, run]));
    return [...all.values()].sort((one, two) => two.started_ms - one.started_ms).slice(0, RECENT);
  }, [recorded, seen, method]);
  return html`<section class="card recent" aria-label="Recent runs"><div class="bar"><h2>Recent runs</h2><span class="grow"></span>
      ${shown.length ? html`<a href=${`${link("runs")}?method=${encodeURIComponent(method)}`}>All runs of this tool</a>` : null}</div>
    ${shown.length ? html`<ul class="plain">${shown.map((run) => html`<li key=${run.run}><${RunLink} run=${run.run} known=${run} /> <small><${Ago} at=${run.started_ms} /></small></li>`)}</ul>`
      : html`<p class="dim">None yet. A run appears here as soon as it starts, from any client.</p>`}</section>`;
}

/** The schemas of a tool. @param {{tool: Method}} props */
function Schemas({ tool: { params, events, result } }) {
  const [isOpen, setOpen] = useState(false);
  const value = { params, ...(events ? { events } : {}), ...(result ? { result } : {}) };
  return html`<details class="card" onToggle=${(event) => event.target === event.currentTarget && setOpen(event.target.open)}><summary>Schema</summary>
    ${isOpen ? html`<${JsonTree} value=${value} open=${2} label="Schema" />` : null}</details>`;
}
