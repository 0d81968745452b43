// One open question with the controls to answer it: in the inbox, above the list, in a run, in chat.

import { call } from "../core/connection.js";
import { clock, countdown, duration, readable, shortId, sourceOf } from "../core/format.js";
import { html, useId, useState } from "../core/html.js";
import { host, liveRun } from "../core/live.js";
import { link } from "../core/router.js";
import { Controls, useModule } from "./question_controls.js";
import { recordAnswer, settledOf } from "./question_log.js";
import { Ago, now } from "./run_parts.js";

/** @typedef {import("../core/live.js").Question} Question */

/** Send an answer; null declines. Throws RpcError. @param {Question} question @param {any} answer @param {string} [reason] */
async function respond(question, answer, reason) {
  if (question.request === "permit") {
    await call("approvals.respond", { approval_id: question.approval_id, approve: answer === true, ...(answer !== true && reason ? { message: reason } : {}) });
  } else await call("plexus.respond", { run: question.run, request: question.request, answer });
}

/** A question and its controls. `compact` folds everything but the message and the controls.
    @param {{question: Question, compact?: boolean}} props */
export function QuestionCard({ question, compact = false }) {
  // The key keeps what is typed with its question, whatever else changes.
  return html`<${Card} key=${question.approval_id} question=${question} compact=${compact} />`;
}

/** @param {{question: Question, compact: boolean}} props */
function Card({ question, compact }) {
  const heading = useId();
  const [error, setError] = useState("");
  const [isSending, setSending] = useState(false);
  const settled = settledOf(question.approval_id);
  const send = async (/** @type {any} */ answer, /** @type {string | undefined} */ reason) => {
    setError("");
    setSending(true);
    try {
      await respond(question, answer, reason);
      recordAnswer(question, answer);
    } catch (failure) {
      setError(/** @type {Error} */ (failure).message);
    } finally {
      setSending(false);
    }
  };
  return html`<section class=${`card question ${compact ? "compact" : ""}`} role="group" aria-labelledby=${heading} data-request=${question.request}>
    <header>${compact ? html`<span class="outcome" data-kind="asking"><span aria-hidden="true">?</span> Needs answer</span>` : null}
      <div class="grow"><h3 id=${heading}>${readable(question.message)}</h3><${Origin} question=${question} /></div></header>
    <${Facts} question=${question} compact=${compact} />
    ${settled ? html`<p class="settled">${settledText(settled)}</p>` : html`<div class="answer"><${Controls} question=${question} send=${send} isSending=${isSending} compact=${compact} /></div>`}
    ${error ? html`<p class="error" role="alert">${error}</p>` : null}
  </section>`;
}

/** Return how a question was closed, as a sentence. @param {import("./question_log.js").Settled} settled */
export function settledText({ outcome, answer, by, at_ms }) {
  const what = { answered: answer ? `Answered “${answer}”` : "Answered", declined: "Declined", expired: "Not answered in time" }[outcome] || (by ? "Closed" : "Answered or closed elsewhere");
  return `${what}${by ? (outcome === "closed" ? `: ${by}` : ` by ${by}`) : ""}, ${clock(at_ms).slice(0, 8)}`;
}

/** Which run asks, for whom, and how much time is left. @param {{question: Question}} props */
function Origin({ question }) {
  const info = liveRun(question.run);
  const { name, detail } = sourceOf({ ...info, client: question.client || info?.client }, host.value);
  const left = question.expires_ms ? question.expires_ms - now.value : undefined;
  return html`<small class="origin">${question.method ? html`<span>${question.method} · </span>` : null}<a href=${link("runs", question.run)}>run ${shortId(question.run)}</a>
    <span> · asked by ${name}${detail ? ` (${detail.replaceAll(" · ", ", ")})` : ""}</span>
    ${question.asked_ms ? html`<span> · <${Ago} at=${question.asked_ms} /></span>` : null}
    ${left === undefined ? null : html`<span title=${new Date(/** @type {number} */ (question.expires_ms)).toLocaleString()}> · ${left <= 0 ? "no time left" : left < 3_600_000 ? `${countdown(left)} left` : `${duration(left)} left`}</span>`}</small>`;
}

/** What the question is about: the input of a tool, details, and the arguments of the run. @param {{question: Question, compact: boolean}} props */
function Facts({ question, compact }) {
  const { details, arguments: given, summary, kind } = question;
  const isPermit = question.request === "permit";
  const isShown = kind === "visit" || kind === "diff"; // by the controls
  const hasArguments = isFilled(given) && !isPermit && kind !== "diff";
  const rest = isPermit ? details?.input : isShown ? undefined : details;
  const line = isPermit ? compact && inputLine(rest) : !compact && summary !== question.message && summary;
  return html`${line ? html`<p class="cut" title=${line}><code>${line}</code></p>` : null}
    ${isPermit && !compact ? html`<p>Tool <code>${details?.tool_name}</code></p>` : null}
    ${isFilled(rest) || hasArguments ? html`<div class="folds">
      ${isFilled(rest) ? html`<${Folded} title=${isPermit ? "Input" : "Details"} value=${rest} open=${!compact} />` : null}
      ${hasArguments ? html`<${Folded} title="Arguments" value=${given} open=${false} />` : null}</div>` : null}`;
}

/** Return the part of a tool's input that says most, in one line. @param {any} input */
function inputLine(input) {
  const value = input?.command ?? input?.file_path ?? input?.path ?? input?.url ?? Object.values(input || {})[0];
  return typeof value === "string" ? value : "";
}

/** @param {any} value */
function isFilled(value) {
  return value !== undefined && value !== null && (typeof value !== "object" || Object.keys(value).length > 0);
}

/** A value that is folded until it is opened. @param {{title: string, value: any, open: boolean}} props */
function Folded({ title, value, open }) {
  const [isOpen, setOpen] = useState(open);
  return html`<details open=${isOpen} onToggle=${(/** @type {any} */ event) => setOpen(event.target.open)}><summary>${title}</summary>${isOpen ? html`<${Tree} value=${value} />` : null}</details>`;
}

/** @param {{value: any}} props */
function Tree({ value }) {
  const module = useModule(() => import("./json_tree.js"));
  return module ? html`<${module.JsonTree} value=${value} open=${2} />` : html`<pre>${JSON.stringify(value, null, 2)}</pre>`;
}
