// The view of code analysis: start one, watch its files arrive, and read its report.

import { call } from "../core/connection.js";
import { count } from "../core/format.js";
import { html, useEffect, useState } from "../core/html.js";
import { liveRun } from "../core/live.js";
import { go, link, setQuery } from "../core/router.js";
import { load, save } from "../core/storage.js";
import { ChurnChart } from "../analysis/churn_chart.js";
import { FileTable } from "../analysis/file_table.js";
import { Graph } from "../analysis/graph.js";
import { Overview, Scores } from "../analysis/overview.js";
import { Project } from "../analysis/project.js";
import { Treemap } from "../analysis/treemap.js";
import { Feed } from "../run/feed.js";
import { startRun } from "../tools/start_run.js";
import { Notice, Outcome } from "../ui/run_parts.js";
import { attempt } from "../ui/toast.js";

const METHOD = "analysis.analyze_deep_context";
/** The page shows long lists in parts, so the report may be large. */
const MAX_BYTES = 1_000_000;
/** Earlier analyses that are listed. */
const EARLIER = 10;
const PERIODS = [30, 90, 365, 3650];
const GRAPHS = ["import-graph", "call-graph", "inheritance", "full-dependency"];
const PARTS = [
  { name: "files", title: "Files" }, { name: "map", title: "Map" }, { name: "graph", title: "Graph" },
  { name: "churn", title: "Churn" }, { name: "report", title: "Report" },
];

/** `#/analysis`, `#/analysis/RUN`. @param {{parts: string[], query: URLSearchParams}} props */
export function View({ parts: [run = ""], query }) {
  return /^\d+$/.test(run) ? html`<${Analysis} key=${run} run=${Number(run)} query=${query} />` : html`<${Start} />`;
}

function Start() {
  const [folder, setFolder] = useState(() => load("analysis.folder", "."));
  const [days, setDays] = useState(90);
  const [graph, setGraph] = useState(GRAPHS[0]);
  const [isBusy, setBusy] = useState(false);
  const [earlier, setEarlier] = useState(/** @type {import("../core/live.js").RunInfo[]} */ ([]));
  useEffect(() => {
    // Without a run store there are none.
    call("plexus.history", { method: METHOD, limit: EARLIER }).then(setEarlier, () => {});
  }, []);
  const start = () => attempt(async () => {
    setBusy(true);
    try {
      save("analysis.folder", folder);
      go("analysis", await startRun(METHOD, { project_path: folder || ".", period_days: days, dag_type: graph, max_bytes: MAX_BYTES }));
    } finally {
      setBusy(false);
    }
  });
  return html`<h1>Analysis</h1>
    <form class="card bar analysis-start" aria-label="New analysis" onSubmit=${(/** @type {Event} */ event) => { event.preventDefault(); start(); }}>
      <label class="grow">Folder <input type="text" spellcheck=${false} autocapitalize="off" value=${folder} onInput=${(/** @type {any} */ event) => setFolder(event.target.value)} /></label>
      <label>History <select value=${days} onChange=${(/** @type {any} */ event) => setDays(Number(event.target.value))}>${PERIODS.map((each) => html`<option key=${each} value=${each}>${count(each)} days</option>`)}</select></label>
      <label>Graph <select value=${graph} onChange=${(/** @type {any} */ event) => setGraph(event.target.value)}>${GRAPHS.map((each) => html`<option key=${each} value=${each}>${each}</option>`)}</select></label>
      <button type="submit" class="primary" disabled=${isBusy}>Analyze</button></form>
    ${earlier.length ? html`<section aria-label="Earlier analyses"><h2>Earlier analyses</h2><ul class="plain analysis-earlier">${earlier.map((each) => html`<li key=${each.run}><a href=${link("analysis", each.run)}><${Outcome} run=${each} /> ${each.summary || METHOD}</a> <small>${new Date(each.started_ms).toLocaleString()}</small></li>`)}</ul></section>`
      : html`<${Notice} title="No analysis yet"><p>Choose a folder. Every figure names what measured it, and what was not measured is absent.</p><//>`}`;
}

/** @param {{run: number, query: URLSearchParams}} props */
function Analysis({ run, query }) {
  const [{ project, feed }] = useState(() => {
    const made = new Project();
    return { project: made, feed: new Feed(run, made) };
  });
  useEffect(() => () => feed.stop(), []);
  project.version.value;
  const { report, terminal } = project;
  const state = terminal ? { ...terminal, state: terminal.type } : liveRun(run) || { state: "running" };
  const part = PARTS.find((each) => each.name === query.get("part")) || PARTS[0];
  const stop = () => attempt(() => call("plexus.cancel", { run, reason: "stopped in the browser" }));
  if (feed.state.value === "missing") return html`<${Notice} title="This analysis cannot be shown"><p>${feed.error}</p><p><a href=${link("analysis")}>Start another one</a></p><//>`;
  return html`<div class="bar"><h1><a href=${link("analysis")}>Analysis</a></h1> <span role="status"><${Outcome} run=${state} /></span>
      <span class="grow dim cut">${report ? report.metadata.project : ""} ${progressOf(project)}</span>
      <a href=${link("runs", run)}>Run</a>${terminal ? null : html`<button type="button" class="danger" onClick=${stop}>Stop</button>`}</div>
    ${terminal && terminal.type === "error" ? html`<p class="error" role="alert">${terminal.message}</p>` : null}
    ${report ? html`<${Scores} card=${report.quality_scorecard} />` : null}
    <div class="bar" role="group" aria-label="Part of the analysis">${PARTS.map((each) => html`<button type="button" key=${each.name} aria-pressed=${String(each === part)} onClick=${() => setQuery({ part: each.name })}>${each.title}</button>`)}</div>
    <${Part} name=${part.name} project=${project} query=${query} />`;
}

/** @param {Project} project */
function progressOf({ files, found, step, terminal }) {
  const measured = found === undefined ? `${count(files.size)} files measured` : `${count(files.size)} of ${count(found)} files measured`;
  return terminal || !step || step === "files measured" ? measured : `${measured}, ${step}`;
}

/** @param {{name: string, project: Project, query: URLSearchParams}} props */
function Part({ name, project, query }) {
  const { report } = project;
  if (name === "files") return html`<${FileTable} files=${[...project.files.values()]} query=${query} />`;
  if (!report) return html`<p class="none">${project.terminal ? "The analysis ended without a report." : "This part needs the whole project. It appears when all files are measured."}</p>`;
  const { analyses } = report;
  if (name === "map") return html`<${Treemap} root=${report.file_tree.root} formula=${report.hotspot_formula} query=${query} />`;
  if (name === "graph") return html`<${Graph} graph=${analyses.dag || { absent: "dag is not included" }} />`;
  if (name === "churn") return html`<${ChurnChart} churn=${analyses.churn_analysis || { absent: "churn is not included" }} />`;
  return html`<${Overview} report=${report} />`;
}
