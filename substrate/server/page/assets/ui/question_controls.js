// The controls that answer a question, by its kind. What is typed is kept by approval id.
//
// A choice that destroys something is outlined, comes last, and is never chosen in advance. No yes is
// highlighted: what looks harmless here, such as "Deploy?", may not be.

import { html, useEffect, useId, useState } from "../core/html.js";
import { link } from "../core/router.js";
import { drafts } from "./question_log.js";
import { toast } from "./toast.js";

/** @typedef {import("../core/live.js").Question} Question */
/** `send(answer)` answers; null declines. @typedef {(answer: any, reason?: string) => void} Send */
/** @typedef {{question: Question, send: Send, isSending: boolean, compact: boolean}} Props */

const DESTRUCTIVE = /\b(delet|remov|overwrit|forc|drop|eras|destroy|purg|wip|reset|discard|truncat|terminat|kill|uninstall|revok)\w*|\b(rm|rmdir|shred|mkfs)\b/i;

/** Return the destructive word of a text, or undefined. @param {unknown} text */
export function destructiveWord(text) {
  return DESTRUCTIVE.exec(String(text ?? ""))?.[0];
}

/** Whether a yes to this question destroys something. @param {Question} question */
export function isDestructive(question) {
  const details = question.details || {};
  if (details.destructive !== undefined) return Boolean(details.destructive);
  return Boolean(/** @type {any} */ (question).destructive || destructiveWord(question.message) || destructiveWord(details.tool_name) || (details.input && DESTRUCTIVE.test(JSON.stringify(details.input))));
}

/** A value that is kept while the question is open.
    @template T @param {Question} question @param {T} initial @returns {[T, (value: T) => void]} */
export function useDraft(question, initial) {
  const [value, setValue] = useState(() => drafts.get(question.approval_id) ?? initial);
  return [value, (next) => {
    drafts.set(question.approval_id, next);
    setValue(next);
  }];
}

/** Load a module when a component first needs it. @template T @param {() => Promise<T>} load @returns {T | null} */
export function useModule(load) {
  const [loaded, setLoaded] = useState(/** @type {any} */ (null));
  useEffect(() => {
    load().then((module) => setLoaded(module), () => toast("A part of the page could not be loaded. Reload the page."));
  }, []);
  return loaded;
}

/** The controls of a question. @param {Props} props */
export function Controls(props) {
  const { kind, request } = props.question;
  const Kind = request === "permit" ? Permit : { confirm: ConfirmControls, visit: Visit, prompt: Prompt, select: Choice, select_many: Choice, diff: Change }[kind] || Fields;
  return html`<${Kind} ...${props} />`;
}

/** @param {{send: Send, isSending: boolean}} props */
function Decline({ send, isSending }) {
  return html`<button type="button" disabled=${isSending} onClick=${() => send(null)}>Decline</button>`;
}

/** @param {Props} props */
function ConfirmControls({ question, send, isSending }) {
  const isDanger = isDestructive(question);
  const word = destructiveWord(question.message);
  const yes = html`<button type="button" class=${isDanger ? "danger" : null} disabled=${isSending} onClick=${() => send(true)}>${isDanger && word ? `Yes, ${word.toLowerCase()}` : "Yes"}</button>`;
  const no = html`<button type="button" disabled=${isSending} onClick=${() => send(false)}>No</button>`;
  return html`<div class="bar">${isDanger ? [no, yes] : [yes, no]}</div>`;
}

/** @param {Props} props */
function Permit({ question, send, isSending, compact }) {
  const [reason, setReason] = useDraft(question, "");
  return html`<div class="bar">
    ${compact ? null : html`<input type="text" class="grow" aria-label="Reason for denying" placeholder="Reason for denying (optional)" autocomplete="off" value=${reason} onInput=${(/** @type {any} */ event) => setReason(event.target.value)} />`}
    <button type="button" disabled=${isSending} onClick=${() => send(false, reason)}>Deny</button>
    <button type="button" class=${isDestructive(question) ? "danger" : null} disabled=${isSending} onClick=${() => send(true)}>Allow</button></div>`;
}

/** @param {Props} props */
function Visit({ question, send, isSending }) {
  const url = String(question.details?.url || "");
  const isSafe = /^https?:\/\//i.test(url);
  return html`<p class="visit">${isSafe ? html`<a href=${url} target="_blank" rel="noopener noreferrer">${url}</a>` : html`<code>${url}</code>`}</p>
    <div class="bar"><button type="button" class="primary" disabled=${isSending} onClick=${() => send(true)}>Done</button><${Decline} send=${send} isSending=${isSending} /></div>`;
}

/** A change of a file: the view of changes shows it. @param {Props} props */
function Change({ question, send, isSending, compact }) {
  const { diff, unified, cut } = question.details || {};
  // What was chosen and edited in the view of changes is kept in the same place.
  const [progress, setProgress] = useDraft(question, /** @type {any} */ ({}));
  const { reason = "" } = progress;
  const setReason = (/** @type {string} */ text) => setProgress({ ...drafts.get(question.approval_id), reason: text });
  return html`${compact ? null : html`<${Unified} text=${unified} cut=${cut} />`}
    <div class="bar">${compact ? null : html`<input type="text" class="grow" aria-label="Reason for rejecting" placeholder="Reason for rejecting (optional)" autocomplete="off" value=${reason} onInput=${(/** @type {any} */ event) => setReason(event.target.value)} />`}
    <button type="button" class="danger" disabled=${isSending} onClick=${() => send({ decision: "reject", ...(reason ? { reason } : {}) })}>Reject</button>
    <button type="button" disabled=${isSending} onClick=${() => send({ decision: "accept" })}>Accept</button>
    <a class="button primary-link" href=${link("files", "diff", diff)}>Review the change</a></div>`;
}

/** @param {{text: string, cut: boolean}} props */
function Unified(props) {
  const module = useModule(() => import("../diffs/unified_text.js"));
  return module ? html`<${module.UnifiedText} ...${props} />` : null;
}

/** @param {Props} props */
function Prompt({ question, send, isSending }) {
  const [text, setText] = useDraft(question, question.default ?? "");
  const isSecret = question.schema?.format === "password" || question.schema?.writeOnly;
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    if (!isSending) send(text);
  };
  return html`<form class="bar" onSubmit=${submit}>
    <input type=${isSecret ? "password" : "text"} class="grow" aria-label=${question.message} autocomplete="off" value=${text} onInput=${(/** @type {any} */ event) => setText(event.target.value)} />
    <button type="submit" class="primary" disabled=${isSending}>Answer</button><${Decline} send=${send} isSending=${isSending} /></form>`;
}

/** @param {Props} props */
function Choice({ question, send, isSending }) {
  const isMany = question.kind === "select_many";
  const name = useId();
  const schema = question.schema || {};
  const listed = question.options || (schema.enum || schema.items?.enum || []).map((/** @type {string} */ value) => ({ value, label: value }));
  const isDanger = (/** @type {any} */ option) => Boolean(option.destructive ?? destructiveWord(option.label));
  const options = [...listed.filter((option) => !isDanger(option)), ...listed.filter(isDanger)];
  const preset = [question.default ?? []].flat().filter((value) => !options.some((option) => option.value === value && isDanger(option)));
  const [chosen, setChosen] = useDraft(question, preset);
  const choose = (/** @type {string} */ value, /** @type {boolean} */ isOn) => setChosen(isMany ? (isOn ? [...chosen, value] : chosen.filter((/** @type {string} */ each) => each !== value)) : [value]);
  const destroys = options.some((option) => isDanger(option) && chosen.includes(option.value));
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    if (!isSending) send(isMany ? chosen : chosen[0]);
  };
  return html`<form onSubmit=${submit}>
    <div class="choices" role=${isMany ? "group" : "radiogroup"} aria-label=${question.message}>${options.map((option) => html`<label key=${option.value} class=${`check ${isDanger(option) ? "danger" : ""}`}>
      <input type=${isMany ? "checkbox" : "radio"} name=${name} value=${option.value} checked=${chosen.includes(option.value)} onChange=${(/** @type {any} */ event) => choose(option.value, event.target.checked)} /> ${option.label}</label>`)}</div>
    <div class="bar"><button type="submit" class=${destroys ? "danger" : "primary"} disabled=${isSending || (!isMany && !chosen.length)}>Answer</button><${Decline} send=${send} isSending=${isSending} /></div></form>`;
}

/** @param {Props} props */
function Fields({ question, send, isSending }) {
  const module = useModule(() => import("./form.js"));
  if (!module) return null;
  return html`<${module.Form} schema=${question.schema || {}} value=${drafts.get(question.approval_id) ?? question.default} submitLabel="Answer" busy=${isSending} label=${question.message}
      onChange=${(/** @type {any} */ value) => drafts.set(question.approval_id, value)} onSubmit=${(/** @type {any} */ value) => send(value)}><${Decline} send=${send} isSending=${isSending} /><//>`;
}
