// Comments on lines of a change. They are stored, and the program receives them with a rejection.

import { call } from "../core/connection.js";
import { clientName, readable } from "../core/format.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "../core/html.js";
import { Ago } from "../ui/run_parts.js";
import { attempt } from "../ui/toast.js";

/** @typedef {{comment: string, side: "new" | "old", line: number, text: string, by: string | null, at_ms: number}} Comment */
/** A line, from 0. @typedef {{side: "new" | "old", line: number}} Place */

const MAX_CHARS = 4000;

/** @param {Place} place */
function placeText({ side, line }) {
  return `${side === "old" ? "old line" : "line"} ${line + 1}`;
}

/** `place` is the line that a new comment is about, or null. `onChange` gets the new list.
    @param {{diff: string, path: string, comments: Comment[], place: Place | null, isOpen: boolean, onPlace: (place: Place | null) => void,
      onShow: (place: Place) => void, onChange: (comments: Comment[]) => void}} props */
export function Comments({ diff, path, comments, place, isOpen, onPlace, onShow, onChange }) {
  const resolve = (/** @type {Comment} */ each) => attempt(async () => {
    await call("ide.uncomment", { diff, comment: each.comment });
    onChange(comments.filter((other) => other.comment !== each.comment));
  });
  const add = (/** @type {string} */ text) => attempt(async () => {
    const made = await call("ide.comment", { diff, text, ...place });
    onChange([...comments.filter((each) => each.comment !== made.comment), made]);
    onPlace(null);
  });
  return html`<section class="diff-comments" aria-label="Comments">
    ${comments.length ? html`<ul class="plain">${comments.map((each) => html`<li key=${each.comment} class="card comment"><button type="button" class="plain" title="Show this line" onClick=${() => onShow(each)}>${placeText(each)}</button>
      <p class="grow">${readable(each.text)}</p><small>${each.by ? `${clientName(each.by)} · ` : ""}<${Ago} at=${each.at_ms} /></small>
      <button type="button" onClick=${() => resolve(each)}>Resolve</button></li>`)}</ul>` : null}
    ${place ? html`<${CommentForm} key=${`${place.side} ${place.line}`} place=${place} isOpen=${isOpen} onAdd=${add} onCancel=${() => onPlace(null)} />` : null}
    <${Earlier} diff=${diff} path=${path} /></section>`;
}

/** @param {{place: Place, isOpen: boolean, onAdd: (text: string) => Promise<unknown>, onCancel: () => void}} props */
function CommentForm({ place, isOpen, onAdd, onCancel }) {
  const [text, setText] = useState("");
  const [isSending, setSending] = useState(false);
  const field = useRef(/** @type {HTMLTextAreaElement | null} */ (null));
  useLayoutEffect(() => field.current?.focus(), []); // now: the next keys are part of the comment
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    if (!text.trim() || isSending) return;
    setSending(true);
    await onAdd(text.trim());
    setSending(false);
  };
  const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Escape") onCancel();
    else if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    else submit(event);
    event.preventDefault();
  };
  return html`<form class="card comment" onSubmit=${submit}><span class="dim">${placeText(place)}</span>
    <textarea class="grow" rows="1" ref=${field} maxlength=${MAX_CHARS} aria-label=${`Comment on ${placeText(place)}`} placeholder=${isOpen ? "The program receives it if you reject the change" : "It is stored with the change"} value=${text} onInput=${(/** @type {any} */ event) => setText(event.target.value)} onKeyDown=${onKeyDown}></textarea>
    <button type="submit" class="primary" disabled=${!text.trim() || isSending}>Comment</button><button type="button" onClick=${onCancel}>Cancel</button></form>`;
}

/** Comments on earlier changes of the same file. @param {{diff: string, path: string}} props */
function Earlier({ diff, path }) {
  const [found, setFound] = useState(/** @type {{diff: string, outcome: string | null, at_ms: number, comments: Comment[]}[]} */ ([]));
  useEffect(() => {
    call("ide.diff_comments", { path }).then((/** @type {any[]} */ all) => setFound(all.filter((each) => each.diff !== diff)), () => {});
  }, [diff, path]);
  if (!found.length) return null;
  return html`<details class="earlier"><summary>Comments on earlier changes of this file (${found.reduce((sum, each) => sum + each.comments.length, 0)})</summary>
    <ul class="plain">${found.flatMap((each) => each.comments.map((comment) => html`<li key=${comment.comment}><span class="dim">${placeText(comment)}</span> ${readable(comment.text)} <small>${each.outcome ? `${each.outcome} · ` : ""}<${Ago} at=${comment.at_ms} /></small></li>`))}</ul></details>`;
}
