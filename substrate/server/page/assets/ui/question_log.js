// The questions that were closed lately: what was answered, by whom and when. Those of the server since
// its start, and those that were closed while a tab of this browser was open, of other processes too.
// The log of a run has the same about its own questions, for longer.

import { call } from "../core/connection.js";
import { ACTIVE, clientName } from "../core/format.js";
import { effect, signal } from "../core/html.js";
import { questions, runs } from "../core/live.js";
import { load, save } from "../core/storage.js";

/** @typedef {import("../core/live.js").Question} Question */
/** `outcome` is "answered", "declined", "expired", or "closed" if it is not known.
    @typedef {{approval_id: string, run: number, method: string, message: string, outcome: string,
      answer: string, by: string, at_ms: number}} Settled */

const SETTING = "answered";
const MAX_ENTRIES = 50;
/** Items at the end of a run among which the answer is looked for. */
const LAST_ITEMS = 50;

/** The closed questions, newest first. @type {import("@preact/signals").Signal<Settled[]>} */
export const settled = signal(load(SETTING, []));
/** What was typed or chosen in open questions, by approval id. It survives updates and other views. @type {Map<string, any>} */
export const drafts = new Map();

/** Add what the server knows about closed questions. What this browser has recorded says more. */
export async function loadSettled() {
  const { approvals } = await call("approvals.closed", { limit: MAX_ENTRIES });
  const own = settled.peek();
  const known = new Map(own.map((each) => [each.approval_id, each]));
  const others = approvals.filter((/** @type {any} */ each) => (known.get(each.approval_id)?.outcome ?? "closed") === "closed").map((/** @type {any} */ each) => ({
    approval_id: each.approval_id, run: each.run, method: each.method, message: each.message, outcome: each.outcome,
    answer: each.answer === undefined || each.answer === null ? "" : answerText(each.answer, null), by: each.by ? clientName(each.by) : each.outcome === "closed" ? "the run has ended" : "", at_ms: each.closed_ms }));
  const replaced = new Set(others.map((/** @type {Settled} */ each) => each.approval_id));
  settled.value = [...own.filter((each) => !replaced.has(each.approval_id)), ...others].sort((one, two) => two.at_ms - one.at_ms).slice(0, MAX_ENTRIES);
}

// What another tab has recorded.
addEventListener("storage", (event) => {
  if (event.key === `substrate.${SETTING}`) settled.value = load(SETTING, []);
});

/** Forget all closed questions, when the session ends. */
export function forgetSettled() {
  save(SETTING, undefined);
}

/** @param {Settled} entry */
function add(entry) {
  const others = settled.peek().filter((each) => each.approval_id !== entry.approval_id);
  settled.value = [entry, ...others].slice(0, MAX_ENTRIES);
  save(SETTING, settled.value);
}

/** Return the place where a question is answered. @param {Question} question */
export function placeOf({ kind, details, run }) {
  return kind === "diff" && details?.diff ? ["files", "diff", details.diff] : ["runs", run];
}

/** Return an answer as text. Secrets are not stored. @param {unknown} answer @param {any} schema */
function answerText(answer, schema) {
  if (schema?.format === "password" || schema?.writeOnly) return "••••";
  if (typeof answer === "boolean") return answer ? "yes" : "no";
  if (schema?.properties?.decision && answer && typeof answer === "object") return decisionText(answer);
  const parts = answer && typeof answer === "object" && !Array.isArray(answer) ? Object.entries(answer).map(([name, value]) => `${name}: ${typeof value === "object" ? JSON.stringify(value) : value}`) : [answer].flat();
  const text = parts.join(", ");
  return text.length > 200 ? `${text.slice(0, 200)}…` : text;
}

/** @param {any} answer about a change of a file */
function decisionText({ decision, text, hunks, reason }) {
  return `${decision}${text === undefined ? "" : " with edits"}${hunks ? ` ${hunks.length} changes` : ""}${reason ? `: ${reason}` : ""}`.slice(0, 200);
}

/** Return the closed question of this id, if it was closed here; updates the caller. @param {string} id */
export function settledOf(id) {
  return settled.value.find((each) => each.approval_id === id);
}

/** Record that a question was answered in this page; null declines. @param {Question} question @param {unknown} answer */
export function recordAnswer(question, answer) {
  drafts.delete(question.approval_id);
  const { approval_id, run, method = "", message } = question;
  const isDeclined = answer === null;
  add({ approval_id, run, method, message, outcome: isDeclined ? "declined" : "answered", answer: isDeclined ? "" : answerText(answer, question.schema), by: "you, in this browser", at_ms: Date.now() });
}

/** Return the item of a run that records how a question was closed, if it is among the last ones.
    @param {Question} question @returns {Promise<{time_ms: number, event: any} | undefined>} */
async function findAnswer({ run, request }) {
  const after = Math.max(0, (runs.get(run)?.last_seq || 0) - LAST_ITEMS);
  const { items } = await call("plexus.items", { run, after, limit: 2 * LAST_ITEMS });
  return items.findLast((/** @type {any} */ { event }) => event.type === "answered" && event.request === request);
}

/** Record that a question was closed elsewhere, with what the server knows about it. Returns whether
    something was typed here. @param {Question} question */
async function recordClosed(question) {
  const { approval_id, run, method = "", message } = question;
  const isAnsweredHere = () => settled.peek().some((each) => each.approval_id === approval_id);
  const known = await findAnswer(question).catch(() => undefined);
  // The event that closes a question may arrive before the reply to the answer of this page.
  if (isAnsweredHere()) return false;
  const hadDraft = drafts.delete(approval_id);
  const info = runs.get(run);
  const reason = info && !ACTIVE.has(info.state) ? "the run has ended" : "";
  const by = known ? (known.event.by ? clientName(known.event.by) : "") : reason;
  const answer = known?.event.answer ?? null;
  add({ approval_id, run, method, message, outcome: known?.event.outcome || "closed", answer: answer === null ? "" : answerText(answer, question.schema), by, at_ms: known?.time_ms || Date.now() });
  return hadDraft;
}

/** Call `onOpened` for each new question, and `onClosed` for each that was closed elsewhere, with
    whether something was typed here; records the closed ones.
    @param {(question: Question) => void} onOpened @param {(question: Question, hadDraft: boolean) => void} onClosed */
export function watchQuestions(onOpened, onClosed) {
  /** @type {Map<string, Question>} */
  let known = new Map();
  effect(() => {
    const now = new Map(questions.value.map((each) => [each.approval_id, each]));
    for (const [id, question] of now) if (!known.has(id)) onOpened(question);
    for (const [id, question] of known) {
      if (!now.has(id)) recordClosed(question).then((hadDraft) => onClosed(question, hadDraft));
    }
    known = now;
  });
}
