// What is known about a run beside its output: facts, its timeline, and its questions.

import { ACTIVE, clientName, clock, moment, readable, restartsOf, shortId, size, sourceOf } from "../core/format.js";
import { html } from "../core/html.js";
import { host, questions, seesQuestions } from "../core/live.js";
import { link } from "../core/router.js";
import { QuestionCard } from "../ui/question_card.js";
import { Ago, Took, now } from "../ui/run_parts.js";
import { copy } from "../ui/toast.js";
import { Timeline, barOf } from "./timeline.js";

/** @typedef {import("./run_info.js").RunDetails} RunDetails */
/** @typedef {import("../core/live.js").RunInfo} RunInfo */
/** @typedef {import("./log.js").RunLog} RunLog */

/** Bars in the timeline; the tab has all child runs. */
const MAX_BARS = 12;

/** Facts, timeline and closed questions. @param {{info: RunDetails, log: RunLog, childRuns: RunInfo[]}} props */
export function SidePanel({ info, log, childRuns }) {
  log.facts.value;
  const asked = [...log.questions.values()];
  const open = openQuestions(info, log);
  const bars = [barOf(info), ...asked.map((each) => ({ key: `ask ${each.event.request}`, label: readable(`ask: ${each.event.message}`), from: each.time, to: each.answeredAt ?? (ACTIVE.has(info.state) ? now.value : info.started_ms + (info.duration_ms || 0)), kind: "asking" })), ...childRuns.map(barOf)];
  const closed = asked.filter((each) => each.answered || !open.some((one) => one.request === each.event.request));
  return html`<aside class="run-side" aria-label="About this run">
    <section class="card"><h2 class="unseen">Facts</h2><${Facts} info=${info} /></section>
    ${bars.length > 1 ? html`<section class="card"><h2>Timeline</h2><${Timeline} bars=${bars.slice(0, MAX_BARS)} />${bars.length > MAX_BARS ? html`<small>${bars.length - MAX_BARS} more</small>` : null}</section>` : null}
    ${closed.map((each) => html`<section class="card asked-card" key=${each.event.request}><h2>${readable(each.event.message)}</h2><small>${closedText(each)}</small></section>`)}
  </aside>`;
}

/** Return the open questions of a run. Without the right to see all of them, its log has them.
    @param {RunDetails} info @param {RunLog} log @returns {import("../core/live.js").Question[]} */
function openQuestions(info, log) {
  if (!ACTIVE.has(info.state)) return [];
  if (seesQuestions.value) return questions.value.filter((each) => each.run === info.run);
  if (info.state !== "asking") return [];
  const last = [...log.questions.values()].filter((each) => !each.answered).pop();
  return last ? [{ ...last.event, approval_id: `${info.run}.${last.event.request}`, run: info.run }] : [];
}

/** The open questions of a run. @param {{info: RunDetails, log: RunLog}} props */
export function OpenQuestions({ info, log }) {
  log.facts.value;
  const open = openQuestions(info, log);
  return open.length ? html`<div class="run-questions">${open.map((each) => html`<${QuestionCard} key=${each.approval_id} question=${each} />`)}</div>` : null;
}

/** @param {{time: number, answered?: any, answeredAt?: number}} asked */
function closedText({ answered, answeredAt, time }) {
  if (!answered) return `Asked at ${clock(time).slice(0, 8)}; not answered.`;
  const { outcome, answer, by } = answered;
  const text = typeof answer === "boolean" ? (answer ? "yes" : "no") : typeof answer === "string" ? answer : JSON.stringify(answer ?? null);
  const what = outcome === "declined" ? "Declined" : outcome === "expired" ? "Not answered in time" : answer === undefined || answer === null ? "Answered" : `Answered “${text.length > 200 ? `${text.slice(0, 200)}…` : text}”`;
  return `${what}${by ? ` by ${clientName(by)}` : ""}, ${clock(answeredAt ?? time).slice(0, 8)}`;
}

/** Return the names of clients, each with their number. @param {string[]} clients */
function watchersText(clients) {
  /** @type {Map<string, number>} */
  const counts = new Map();
  for (const client of clients) counts.set(clientName(client), (counts.get(clientName(client)) || 0) + 1);
  return [...counts].map(([name, number]) => (number === 1 ? name : `${name} (${number})`)).join(", ");
}

/** @param {{info: RunDetails}} props */
function Facts({ info }) {
  const { name, detail } = sourceOf(info, host.value);
  const version = /[/ ]v?(\d[\w.]*)/.exec(info.client || "")?.[1];
  const folder = info.process?.project || info.project;
  /** @type {[string, any][]} */
  const facts = [
    ["Method", html`<a href=${link("tools", info.method)}><code>${info.method}</code></a>`],
    ["Run", html`<code title=${String(info.run)}>${shortId(info.run)}</code> <button type="button" class="plain small" aria-label="Copy the number of the run" onClick=${() => copy(String(info.run), "Copied the number of the run")}>Copy</button>`],
    ["Source", html`<span title=${info.client}>${name}${version ? ` ${version}` : ""}${detail ? ` · ${detail}` : ""}</span>`],
    ["Started", html`<span title=${moment(info.started_ms)}>${clock(info.started_ms).slice(0, 8)}</span> (<${Ago} at=${info.started_ms} />)`],
    ["Duration", html`<${Took} run=${info} />`],
  ];
  if (folder) facts.push(["Project", html`<code>${folder}</code>`]);
  if (info.arguments?.cwd) facts.push(["cwd", html`<code>${info.arguments.cwd}</code>`]);
  if (info.bytes !== undefined) facts.push(["Output", html`<span title=${`${info.bytes} bytes`}>${size(info.bytes)}</span>`]);
  if (ACTIVE.has(info.state) && info.watchers?.length) facts.push(["Watchers", watchersText(info.watchers)]);
  if (info.recorded === "metadata") facts.push(["Recorded", "without output"]);
  if (info.pinned) facts.push(["Kept until", "unpinned"]);
  else if (info.kept_until) facts.push(["Kept until", html`<span title=${moment(info.kept_until)}>${new Date(info.kept_until).toLocaleDateString(undefined, { day: "numeric", month: "short" })}</span> · pinned runs stay`]);
  if (restartsOf(info) > 0) facts.push(["Restarts", String(restartsOf(info))]);
  if (info.parent) facts.push(["Called by", html`<a href=${link("runs", info.parent)}>run ${shortId(info.parent)}</a>`]);
  if (info.principal && info.principal !== "local") facts.push(["Principal", info.principal]);
  return html`<dl class="facts">${facts.map(([term, value]) => html`<dt key=${`${term} term`}>${term}</dt><dd key=${term}>${value}</dd>`)}</dl>`;
}
