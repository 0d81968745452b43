// Short messages in a corner of the page, and what screen readers announce.

import { html, signal } from "../core/html.js";

const SHOWN_MS = 5000;
/** @type {import("@preact/signals").Signal<{id: number, text: string}[]>} */
const toasts = signal([]);
const announcement = signal("");
let lastId = 0;

/** Show a short message for some seconds. @param {string} text */
export function toast(text) {
  lastId += 1;
  const id = lastId;
  toasts.value = [...toasts.value.slice(-4), { id, text }];
  announce(text);
  setTimeout(() => {
    toasts.value = toasts.value.filter((each) => each.id !== id);
  }, SHOWN_MS);
}

/** Have screen readers announce a text. @param {string} text */
export function announce(text) {
  announcement.value = text;
}

/** Copy a text, and confirm it. @param {string} text @param {string} [what] */
export async function copy(text, what = "Copied") {
  try {
    await navigator.clipboard.writeText(text);
    toast(what);
  } catch {
    toast("The browser does not allow copying here.");
  }
}

/** Run an action of a person; an error becomes a message. @param {() => unknown} action */
export async function attempt(action) {
  try {
    return await action();
  } catch (error) {
    toast(error instanceof Error ? error.message : String(error));
    return undefined;
  }
}

/** The messages and the announcement. */
export function Toasts() {
  return html`
    <div class="toasts">${toasts.value.map(({ id, text }) => html`<div class="toast" key=${id}>${text}</div>`)}</div>
    <div class="unseen" aria-live="polite">${announcement.value}</div>`;
}
