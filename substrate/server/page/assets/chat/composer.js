// The composer: the next message with its attachments. What is typed stays here until the server has
// stored it; an error is shown above it, and the text remains.

import { html, useLayoutEffect, useRef } from "../core/html.js";
import { attempt } from "../ui/toast.js";
import { AttachmentList, addFiles, tooLarge } from "./attachments.js";
import { draftOf } from "./drafts.js";

/** @typedef {import("./conversation.js").Conversation} Conversation */

const EXCERPT = 60;
/** Characters past which the field has its full height: a browser needs seconds to measure a long text. */
const MAX_MEASURED = 10_000;
/** On-screen keyboards have no Shift+Enter, so there Enter begins a new line. */
const isTouch = () => matchMedia("(pointer: coarse)").matches;

/** @type {Promise<void>} */
let attaching = Promise.resolve();

/** Attach files to the draft of a conversation, after those that are still being read.
    @param {Conversation} conversation @param {File[]} files */
export function attach(conversation, files) {
  const draft = draftOf(conversation.name);
  attaching = attaching.then(async () => {
    const { list, errors } = await addFiles(draft.files.peek(), files);
    draft.setFiles(list);
    // A later file that is accepted does not hide why an earlier one was refused.
    if (errors.length) draft.error.value = new Error(errors.join(" "));
  });
  return attaching;
}

/** `isOver` tells that files are dragged over the conversation.
    @param {{conversation: Conversation, isOver: boolean, onModel: () => void}} props */
export function Composer({ conversation, isOver, onModel }) {
  const draft = draftOf(conversation.name);
  const field = useRef(/** @type {HTMLTextAreaElement | null} */ (null));
  const picker = useRef(/** @type {HTMLInputElement | null} */ (null));
  const text = draft.text.value;
  const error = draft.error.value;
  const isSending = draft.isSending.value;
  const isBusy = conversation.turn.value !== null && !isSending;
  useLayoutEffect(() => {
    const element = field.current;
    if (!element) return;
    if (text.length > MAX_MEASURED) element.style.height = "38vh";
    else {
      element.style.height = "auto";
      element.style.height = `${element.scrollHeight + 2}px`;
    }
  }, [text]);
  useLayoutEffect(() => {
    if (!isTouch()) field.current?.focus({ preventScroll: true });
  }, [conversation]);
  const submit = () => {
    send(conversation);
    field.current?.focus();
  };
  const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
    if (event.key !== "Enter" || event.isComposing || event.shiftKey) return;
    if (isTouch() && !event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    submit();
  };
  const onPaste = (/** @type {ClipboardEvent} */ event) => {
    const files = [...(event.clipboardData?.files || [])];
    if (!files.length) return;
    event.preventDefault();
    attach(conversation, files);
  };
  const other = draft.others.value[0];
  return html`<form class="composer" aria-label="New message" onSubmit=${(/** @type {Event} */ event) => { event.preventDefault(); submit(); }}>
    ${error ? html`<div class="composer-error" role="alert"><p class="error">${error.message}</p>
      ${["missing_key", "unknown_model", "not_installed", "bad_key"].includes(error.code) ? html`<button type="button" class="small" onClick=${onModel}>Choose another model</button>` : null}
      ${text ? html`<small>Your message is kept.</small>` : null}</div>` : null}
    ${other ? html`<div class="other-draft"><small class="grow cut">Another draft of this session: “${other.text.slice(0, EXCERPT)}${other.text.length > EXCERPT ? "…" : ""}”</small>
      <button type="button" class="small" onClick=${() => draft.take(other.owner)}>Use it</button><button type="button" class="small danger" onClick=${() => draft.discard(other.owner)}>Delete it</button></div>` : null}
    ${draft.isStored.value ? null : html`<p class="error">This browser cannot store the draft: it is lost if you reload the page.</p>`}
    <${AttachmentList} files=${draft.files.value} onRemove=${(/** @type {number} */ index) => draft.setFiles(draft.files.peek().filter((_, each) => each !== index))} />
    <textarea ref=${field} rows="1" aria-label="Your message" placeholder=${isTouch() ? "Write a message" : "Write a message (Enter sends, Shift+Enter adds a line)"} value=${text} readOnly=${isSending}
      onInput=${(/** @type {any} */ event) => draft.setText(event.target.value)} onKeyDown=${onKeyDown} onPaste=${onPaste}></textarea>
    <div class="bar"><button type="button" class="small" onClick=${() => picker.current?.click()}>Attach</button>
      <input ref=${picker} type="file" multiple hidden aria-label="Attach files" onChange=${async (/** @type {any} */ event) => { const files = [...event.target.files]; event.target.value = ""; await attach(conversation, files); }} />
      <small class="grow">${isOver ? "Drop the files to attach them." : isTouch() ? "" : "Drop or paste files to attach them."}</small>
      ${isBusy ? html`<button type="button" class="danger" onClick=${() => attempt(() => conversation.stop())}>Stop</button>`
        : html`<button type="submit" class="primary" disabled=${isSending || !text.trim()}>${isSending ? "Sending…" : "Send"}</button>`}</div>
  </form>`;
}

/** Send the draft of a conversation. @param {Conversation} conversation */
async function send(conversation) {
  const draft = draftOf(conversation.name);
  const [text, files] = [draft.text.peek(), draft.files.peek()];
  if (!text.trim() || draft.isSending.peek()) return;
  const problem = conversation.turn.peek() ? "The answer is still in progress. Send this when it has ended, or press Stop." : tooLarge(text, files);
  if (problem) {
    draft.error.value = new Error(problem);
    return;
  }
  draft.error.value = null;
  draft.isSending.value = true;
  try {
    await conversation.send(text, files, draft.key);
    draft.clear();
  } catch (error) {
    draft.error.value = error;
    // If the connection was lost, the message may have arrived: the same key cannot send it twice.
    if (/** @type {any} */ (error).code !== "lost") draft.renewKey();
  } finally {
    draft.isSending.value = false;
  }
}
