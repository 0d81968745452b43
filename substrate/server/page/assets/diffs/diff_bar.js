// The bar above a change: what it is, which change is shown, and the buttons that answer it.

import { clientName, readable } from "../core/format.js";
import { html } from "../core/html.js";
import { Counts } from "./waiting_list.js";

/** @param {{review: import("./review.js").Review, info: import("../files/ide.js").DiffInfo, isOpen: boolean, isSending: boolean,
      isSplit: boolean, acts: Record<string, () => unknown>, onAcceptAll: () => unknown}} props */
export function DiffBar({ review, info, isOpen, isSending, isSplit, acts, onAcceptAll }) {
  const total = review.chunks.value.length;
  const { chosen } = review;
  const isEdited = review.isEdited.value;
  const isPart = chosen < total;
  return html`<div class="bar pane-bar diff-bar"><h1 class="cut" title=${readable(info.path)}>${readable(info.path)}</h1>
    ${isOpen ? html`<span class="outcome" data-kind="asking">${clientName(info.client || undefined)} waits</span>` : null}
    <span class="dim"><${Counts} change=${info} /> · ${total ? `change ${review.current.value + 1} of ${total}` : "no difference"}</span>
    <span class="steps"><button type="button" class="plain" aria-label="Next change" onClick=${acts.j}>↓ <kbd>j</kbd></button><button type="button" class="plain" aria-label="Previous change" onClick=${acts.k}>↑ <kbd>k</kbd></button></span>
    <span class="bar choices"><button type="button" aria-pressed=${String(isSplit)} title="Both texts next to each other (u)" onClick=${acts.u}>Split</button>
    ${isOpen ? html`
      <button type="button" class="danger" disabled=${isSending} onClick=${acts.r}>Reject… <kbd>r</kbd></button>
      ${review.isEditing.value ? html`<button type="button" aria-pressed="true" onClick=${() => review.edit(false)}>Stop editing <kbd>Esc</kbd></button>` : html`<button type="button" onClick=${acts.e}>Edit <kbd>e</kbd></button>`}
      ${isEdited ? html`<button type="button" onClick=${() => review.revert()}>Undo all edits</button>` : null}
      <button type="button" class=${isPart ? "primary" : ""} disabled=${isSending || !isPart || !chosen} onClick=${acts.a}>Accept chosen${isPart ? html` (${chosen} of ${total}) <kbd>a</kbd>` : null}</button>
      <button type="button" class=${isPart ? "" : "primary"} disabled=${isSending} onClick=${onAcceptAll}>${isEdited ? "Accept edited" : "Accept all"}${isPart ? null : html` <kbd>a</kbd>`}</button>` : null}</span></div>`;
}
