// Asks for the reason of a rejection, which the program receives.

import { html, useLayoutEffect, useRef, useState } from "../core/html.js";

const MAX_CHARS = 4000;

/** @param {{comments: number, onReject: (reason: string) => void, onClose: () => void}} props */
export function RejectDialog({ comments, onReject, onClose }) {
  const dialog = useRef(/** @type {HTMLDialogElement | null} */ (null));
  const [reason, setReason] = useState("");
  useLayoutEffect(() => dialog.current?.showModal(), []); // now: the next keys are part of the reason
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    onReject(reason.trim());
  };
  const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) submit(event);
  };
  return html`<dialog ref=${dialog} class="reject" aria-labelledby="reject" onClose=${onClose}><form onSubmit=${submit}><h2 id="reject">Reject this change</h2>
    <label for="reason">Reason (optional)</label><textarea id="reason" rows="3" autofocus maxlength=${MAX_CHARS} placeholder="What should be different?" value=${reason} onInput=${(/** @type {any} */ event) => setReason(event.target.value)} onKeyDown=${onKeyDown}></textarea>
    <p class="dim">The program receives the reason${comments ? ` and ${comments === 1 ? "one comment" : `${comments} comments`}` : ""}. The file stays as it is.</p>
    <div class="bar"><button type="submit" class="danger">Reject <kbd>Ctrl Enter</kbd></button><button type="button" onClick=${() => dialog.current?.close()}>Cancel</button></div></form></dialog>`;
}
