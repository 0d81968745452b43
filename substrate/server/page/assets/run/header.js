// The header of a run: what it is, how it ended, and what can be done with it.

import { call } from "../core/connection.js";
import { ACTIVE, readable } from "../core/format.js";
import { html, useLayoutEffect, useRef, useState } from "../core/html.js";
import { go, link } from "../core/router.js";
import { save } from "../core/storage.js";
import { startRun } from "../tools/start_run.js";
import { Outcome, titleOf } from "../ui/run_parts.js";
import { attempt, copy, toast } from "../ui/toast.js";
import { areComplete } from "./run_info.js";

/** @typedef {import("./run_info.js").RunDetails} RunDetails */

/** Characters of an argument beside the title, and of a long title. */
const MAX_VALUE = 80;
const MAX_TITLE = 20_000;

/** @param {{info: RunDetails, refresh: () => void}} props */
export function Header({ info, refresh }) {
  const [isBusy, setBusy] = useState(false);
  // What is shown may be older than the record, which has the arguments soon after the start.
  const recorded = async () => (await call("plexus.inspect", { run: info.run })).arguments;
  const fillIn = (/** @type {any} */ given) => {
    save("prefill", { method: info.method, arguments: given || {} });
    go("tools", info.method);
  };
  const edit = () => attempt(async () => fillIn(await recorded()));
  const again = () => attempt(async () => {
    setBusy(true);
    try {
      const given = await recorded();
      if (areComplete(given)) go("runs", await startRun(info.method, given));
      else {
        toast("The recorded arguments have no secrets or are incomplete. Fill in the form.");
        fillIn(given);
      }
    } finally {
      setBusy(false);
    }
  });
  const pin = () => attempt(async () => {
    await call("plexus.pin", { run: info.run, pinned: !info.pinned });
    toast(info.pinned ? "Unpinned. The run is deleted when its retention ends." : "Pinned. The run is kept until it is unpinned.");
    refresh();
  });
  const stop = () => attempt(() => call("plexus.cancel", { run: info.run, reason: "stopped in the browser" }));
  return html`<header class="run-head">
    <div class="run-title"><a class="dim" href=${link("runs")}>Runs</a><span class="dim" aria-hidden="true">/</span>
      <${Names} info=${info} /> <span role="status"><${Outcome} run=${info} /></span></div>
    <div class="bar actions">
      <button type="button" onClick=${again} disabled=${isBusy}>Re-run</button>
      <button type="button" onClick=${edit}>Edit…</button>
      <button type="button" onClick=${pin} aria-pressed=${info.pinned ? "true" : "false"}>${info.pinned ? "Unpin" : "Pin"}</button>
      <button type="button" onClick=${() => copy(location.href.replace(/&?token=[^&]*/, ""), "Copied the link to this run")}>Share</button>
      ${ACTIVE.has(info.state) ? html`<button type="button" class="danger" onClick=${stop} disabled=${info.state === "cancelling"}>Stop</button>` : null}
    </div></header>`;
}

/** What the run does: its command or main argument, which can be unfolded, and the other arguments.
    @param {{info: RunDetails}} props */
function Names({ info }) {
  const heading = useRef(/** @type {HTMLElement | null} */ (null));
  const [isOpen, setOpen] = useState(false);
  const [isCut, setCut] = useState(false);
  const name = titleOf(info);
  const { whole, others } = argumentsOf(info, name);
  useLayoutEffect(() => {
    const element = heading.current;
    if (!element || isOpen) return undefined;
    const measure = () => setCut(whole !== name || element.scrollWidth > element.clientWidth || element.scrollHeight > element.clientHeight + 1);
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    measure();
    return () => observer.disconnect();
  }, [name, whole, isOpen]);
  const more = [name === info.method ? "" : info.method, ...others].filter(Boolean).join(" · ");
  return html`<div class="names" data-open=${isOpen ? "true" : null}>
    <div class="named"><h1 ref=${heading} title=${isOpen ? null : name}>${isOpen ? whole : name}</h1>
      ${isCut || isOpen ? html`<button type="button" class="plain small" aria-expanded=${isOpen ? "true" : "false"} onClick=${() => setOpen(!isOpen)}>${isOpen ? "Show less" : "Show all"}</button>` : null}</div>
    ${more ? html`<small class="cut" title=${more}>${more}</small>` : null}</div>`;
}

/** Return the whole argument that a title is the beginning of, and the other arguments as short texts.
    @param {RunDetails} info @param {string} name @returns {{whole: string, others: string[]}} */
function argumentsOf(info, name) {
  const given = info.arguments;
  if (!given || typeof given !== "object") return { whole: name, others: [] };
  const start = name.endsWith("...") ? name.slice(0, -3) : name;
  const entries = Object.entries(given);
  const main = entries.find(([, value]) => typeof value === "string" && readable(value.slice(0, MAX_TITLE)).split(/\s+/).join(" ").trim().startsWith(start));
  // Without a text among the arguments, the title names all of them.
  if (!main) return { whole: name, others: [] };
  const others = entries.filter((each) => each !== main).map(([key, value]) => {
    const text = readable(typeof value === "string" ? value : JSON.stringify(value));
    return `${key}=${text.length > MAX_VALUE ? `${text.slice(0, MAX_VALUE)}…` : text}`;
  });
  const whole = readable(String(main[1])).trim();
  return { whole: whole.length > MAX_TITLE ? `${whole.slice(0, MAX_TITLE)}…` : whole, others };
}
