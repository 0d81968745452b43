// The status of the server: how it runs, its activations and limits, and how busy it is, live.

import { call, state as connection, watch } from "../core/connection.js";
import { count, duration, size } from "../core/format.js";
import { html, useEffect, useRef, useState } from "../core/html.js";
import { active, questions, runs } from "../core/live.js";
import { link } from "../core/router.js";
import { methods, schema } from "../core/schema.js";
import { load, save } from "../core/storage.js";
import { Mounts } from "../status/mounts.js";
import { Chart } from "../ui/chart.js";
import { midnight, useCounts } from "../ui/run_filters.js";
import { rangeStart } from "../ui/run_history.js";
import { Ago, Notice, now } from "../ui/run_parts.js";
import { copy } from "../ui/toast.js";

/** A report of `health.watch`.
    @typedef {{status: string, uptime_s: number, versions: Record<string, string>, runs: Record<string, number>, limits: Record<string, number>,
      activations: {namespace: string, version: string, ok: boolean, detail: string}[], notices: {code: string, message: string, next: string, details: string[]}[],
      skipped?: {source: string, reason: string}[], mounts?: {namespace: string}[], server?: {pid: number, project: string, address: string, store: Record<string, any>}}} Report */
/** A measurement of `health.history`; `cpu` is a fraction of one core.
    @typedef {{at_ms: number, cpu?: number, rss_bytes?: number, runs_active?: number, calls_per_s?: number, events_per_s?: number}} Sample */

const INTERVAL_S = 2;
/** How often the server measures. */
const SAMPLE_MS = 10_000;
const HOUR_MS = 3_600_000;
/** The shortest time that a chart shows: a server that has just started has few values. */
const MIN_SPAN_MS = 300_000;
const MAX_SAMPLES = 50_000;
const RECORDING = { all: "Arguments and output", metadata: "Without arguments and output", off: "Off" };

/** The Status view. */
export function View() {
  const [report, setReport] = useState(/** @type {Report | null} */ (null));
  const [reportedAt, setReportedAt] = useState(0);
  const [refusal, setRefusal] = useState("");
  const [samples, addSamples, hasHistory] = useSamples();
  useEffect(() => watch("health.watch", { interval: INTERVAL_S }, {
    onEvent: (event) => {
      if (event.type !== "status") return;
      setReport(event);
      setReportedAt(Date.now());
      addSamples();
    },
    onRefused: (error) => setRefusal(error.message),
  }), []);
  if (refusal) return html`<h1>Status</h1><${Notice} title="The status is not available"><p>${refusal}</p><p>Log in with a token that has the scope <code>read</code>: <code>substrate token --link</code> prints one.</p><//>`;
  if (!report) return html`<h1>Status</h1><p class="dim" role="status">${connection.value === "open" ? "Loading …" : "Waiting for the server …"}</p>`;
  const isHealthy = report.status === "healthy";
  const skipped = report.skipped || [];
  return html`<header class="bar"><h1>Status</h1>
      <span class="outcome" data-kind=${isHealthy ? "done" : "failed"} role="status"><span aria-hidden="true">${isHealthy ? "✓" : "✕"}</span> ${isHealthy ? "Healthy" : "Degraded"}</span>
      <span class="dim">up <span title=${`${report.uptime_s} s`}>${duration(report.uptime_s * 1000)}</span></span>
      ${skipped.length ? html`<span class="outcome" data-kind="failed"><span aria-hidden="true">✕</span> ${skipped.length} ${skipped.length === 1 ? "plugin" : "plugins"} skipped</span>` : null}
      ${connection.value === "open" ? null : html`<span class="error">Last report <${Ago} at=${reportedAt} /></span>`}</header>
    ${report.notices.map((notice) => html`<section class="card status-notice" key=${notice.code} aria-label="Notice"><b>${notice.message}</b> ${notice.next}${notice.details.length ? html`<ul>${notice.details.map((each) => html`<li>${each}</li>`)}</ul>` : null}</section>`)}
    <div class="status-cards"><${Server} report=${report} /><${Runs} /></div>
    <${Activations} report=${report} />
    <${Mounts} />
    <${Charts} samples=${samples} hasHistory=${hasHistory} />
    <${Limits} limits=${report.limits} />`;
}

/** @param {{report: Report}} props */
function Server({ report }) {
  const { versions, server } = report;
  const store = server?.store;
  const rows = [["Version", versions.substrate], ["Address", server?.address || location.origin], ["Project", server?.project], ["Process", server ? `pid ${server.pid}` : undefined],
    ["Python", versions.python], ["SQLite", versions.sqlite], ["Mounts", report.mounts?.length ? report.mounts.map((each) => each.namespace).join(", ") : undefined],
    ["Run store", store ? store.path || store.database : undefined, store?.bytes === undefined ? undefined : html` <small title=${`${count(store.bytes)} bytes`}>${size(store.bytes)}</small>`],
    ["Recording", store ? RECORDING[store.recording] || store.recording : undefined],
    ["Retention", store && store.recording !== "off" ? `${store.retention_days} days${store.max_bytes ? `, at most ${size(store.max_bytes)}` : ""}` : undefined]];
  return html`<section class="card" aria-labelledby="server-title"><div class="bar"><h2 id="server-title" class="grow">Server</h2>
      <button type="button" class="small" onClick=${() => copy(JSON.stringify(report, null, 2), "The report was copied as JSON.")}>Copy report</button></div>
    <dl class="facts">${rows.filter(([, value]) => value !== undefined).map(([name, value, more]) => html`<dt>${name}</dt><dd>${value}${more}</dd>`)}</dl></section>`;
}

/** The numbers of the Runs view. */
function Runs() {
  const today = useCounts(midnight(), "today");
  const day = useCounts(rangeStart(""), "24h");
  const rows = [["Running", active.value.length, "?state=running"], ["Needs answer", questions.value.length, "?state=asking"], ["Failed, last 24 h", day.failed, "?state=failed"], ["Today", today.total, ""]];
  return html`<section class="card" aria-labelledby="runs-title"><h2 id="runs-title">Runs</h2>
    <dl class="status-counts">${rows.map(([name, value, query]) => html`<div><dt>${name}</dt><dd><a href=${`${link("runs")}${query}`} aria-label=${`${name}: ${value ?? "unknown"}`}>${value === undefined ? "–" : count(/** @type {number} */ (value))}</a></dd></div>`)}</dl></section>`;
}

/** Return the samples, a function that adds those since the last report, and whether the server keeps a
    history. @returns {[Sample[], () => void, boolean]} */
function useSamples() {
  const [samples, setSamples] = useState(/** @type {Sample[]} */ ([]));
  const loadedAt = useRef(0);
  const isKept = methods.value.has("health.history");
  const merge = (/** @type {Sample[]} */ more) => setSamples((known) => {
    const last = known.length ? known[known.length - 1].at_ms : 0;
    return [...known, ...more.filter((each) => each.at_ms > last)].slice(-MAX_SAMPLES);
  });
  const add = () => {
    if (schema.peek() === null) return;
    if (!methods.peek().has("health.history")) merge([liveSample()]);
    else if (Date.now() - loadedAt.current > SAMPLE_MS) {
      // After a pause, such as a closed laptop, everything that was missed is loaded.
      const since_s = Math.min(86_400, Math.ceil((Date.now() - loadedAt.current + 2 * SAMPLE_MS) / 1000));
      loadedAt.current = Date.now();
      call("health.history", { since_s }).then((found) => merge(found.samples), () => { loadedAt.current = 0; });
    }
  };
  return [samples, add, isKept];
}

let before = { at: 0, items: 0 };

/** Measure what the page knows itself, for a server that keeps no history. @returns {Sample} */
function liveSample() {
  const at = Date.now();
  const items = [...runs.values()].reduce((sum, run) => sum + run.last_seq, 0);
  const seconds = (at - before.at) / 1000;
  const rate = before.at && seconds < 60 ? Math.max(0, items - before.items) / seconds : undefined;
  before = { at, items };
  return { at_ms: at, runs_active: active.peek().length, events_per_s: rate };
}

/** @param {{samples: Sample[], hasHistory: boolean}} props */
function Charts({ samples, hasHistory }) {
  const [hours, setHours] = useState(load("status.hours", 1));
  const choose = (/** @type {number} */ value) => {
    setHours(value);
    save("status.hours", value);
  };
  const last = samples.length ? samples[samples.length - 1].at_ms : now.value;
  const span = Math.min(hours * HOUR_MS, Math.max(MIN_SPAN_MS, last - (samples[0]?.at_ms ?? last)));
  const chart = (/** @type {string} */ title, /** @type {keyof Sample} */ name, /** @type {(value: number) => string} */ format) => html`<${Chart} title=${title} format=${format} to=${Math.max(last, now.value - 5000)} span=${span} isWhole=${name === "runs_active"}
    points=${samples.filter((each) => each[name] !== undefined && each[name] !== null).map((each) => ({ at: each.at_ms, value: each[name] }))} missing=${hasHistory ? "No values yet: the server measures every 10 seconds." : "This server does not report it."} />`;
  return html`<section aria-labelledby="load-title" class="status-load"><div class="bar"><h2 id="load-title">Load</h2><span class="chips" role="group" aria-label="Range">
      ${[1, 24].map((each) => html`<button key=${each} type="button" aria-pressed=${hours === each ? "true" : "false"} onClick=${() => choose(each)}>${each} h</button>`)}</span>
      ${hasHistory ? null : html`<span class="dim">This server keeps no history: the charts begin when this view was opened.</span>`}</div>
    <div class="charts">${chart("CPU", "cpu", percent)}${chart("Memory", "rss_bytes", size)}${chart("Runs in this process", "runs_active", amount)}${chart("Events per second", "events_per_s", rate)}</div></section>`;
}

const amount = (/** @type {number} */ value) => (Number.isInteger(value) ? count(value) : value.toFixed(1));
const percent = (/** @type {number} */ value) => `${amount(Math.round(value * 1000) / 10)} %`;
const rate = (/** @type {number} */ value) => `${value >= 100 ? count(Math.round(value)) : amount(value)} /s`;

/** @param {{report: Report}} props */
function Activations({ report }) {
  const names = [...methods.value.keys()];
  const badge = (/** @type {boolean} */ isOk, /** @type {string} */ text) => html`<span class="outcome" data-kind=${isOk ? "done" : "failed"}><span aria-hidden="true">${isOk ? "✓" : "✕"}</span> ${text}</span>`;
  return html`<section class="card" aria-labelledby="activations-title"><h2 id="activations-title">Activations</h2>
    <div class="status-table" tabindex="0" role="region" aria-labelledby="activations-title"><table><thead><tr><th scope="col">Namespace</th><th scope="col">Version</th><th scope="col">Methods</th><th scope="col">Health</th><th scope="col">Details</th></tr></thead>
      <tbody>${(report.skipped || []).map(({ source, reason }) => html`<tr key=${source} class="bad"><td><code>${source}</code></td><td></td><td></td><td>${badge(false, "Skipped")}</td><td>${reason} <small>Fix the plugin, check it with <code>substrate check</code>, and restart the server.</small></td></tr>`)}
      ${report.activations.map(({ namespace, version, ok, detail }) => html`<tr key=${namespace} class=${ok ? "" : "bad"}><td><code>${namespace}</code></td><td>${version}</td>
        <td>${names.filter((name) => name.startsWith(`${namespace}.`) && !name.slice(namespace.length + 1).includes(".")).length}</td><td>${badge(ok, ok ? "Healthy" : "Failed")}</td><td>${detail === "ok" ? "" : detail}</td></tr>`)}</tbody></table></div></section>`;
}

/** @param {{limits: Record<string, number>}} props */
function Limits({ limits }) {
  const [text, setText] = useState("");
  const words = text.toLowerCase().split(/[\s_]+/).filter(Boolean);
  const found = Object.entries(limits).filter(([name]) => words.every((word) => name.includes(word)));
  return html`<details class="card limits"><summary><h2>Limits</h2> <span class="dim">${count(Object.keys(limits).length)}</span></summary>
    <input type="search" aria-label="Search limits" placeholder="Search limits …" value=${text} onInput=${(/** @type {any} */ event) => setText(event.target.value)} />
    ${found.length ? html`<table><thead><tr><th scope="col">Limit</th><th scope="col">Value</th></tr></thead><tbody>${found.map(([name, value]) => html`<tr key=${name}><td><code>${name}</code></td><td title=${String(value)}>${limitText(name, value)}</td></tr>`)}</tbody></table>`
    : html`<p class="dim">No limit has this name. Clear the search to see all.</p>`}
    <p class="dim">To change one, set <code>limits.run_s</code> in <code>substrate.toml</code> or <code>SUBSTRATE_LIMITS__RUN_S</code> in the environment, for example, and restart the server.</p></details>`;
}

/** @param {string} name @param {number} value */
function limitText(name, value) {
  if (name.endsWith("_per_s")) return `${count(value)} per second`;
  if (name.endsWith("_bytes")) return size(value);
  if (name.endsWith("_s")) return value === 0 ? "0 s" : duration(value * 1000);
  return count(value);
}
