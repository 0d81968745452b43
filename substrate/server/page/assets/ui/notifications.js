// Tells people about new questions: screen readers at once, and the desktop while the tab is hidden.

import { readable } from "../core/format.js";
import { html, signal } from "../core/html.js";
import { go } from "../core/router.js";
import { load, save } from "../core/storage.js";
import { placeOf, watchQuestions } from "./question_log.js";
import { announce, toast } from "./toast.js";

const SETTING = "notify";
const isSupported = "Notification" in globalThis;
const isWanted = signal(load(SETTING, false));
const permission = signal(isSupported ? Notification.permission : "denied");
/** The notifications that are shown, by approval id. @type {Map<string, Notification>} */
const shown = new Map();

/** Watch the questions for as long as the page is open. */
export function startNotifications() {
  watchQuestions(
    (question) => {
      announce(readable(`Question: ${question.message}`));
      if (document.hidden) show(question);
    },
    (question, hadDraft) => {
      shown.get(question.approval_id)?.close();
      shown.delete(question.approval_id);
      if (hadDraft) toast(readable(`No longer open: “${question.message}”`));
    },
  );
}

/** @param {import("../core/live.js").Question} question */
function show(question) {
  if (!isWanted.peek() || !isSupported || Notification.permission !== "granted") return;
  try {
    // Several tabs show it once: a notification with the same tag replaces the other.
    const made = new Notification(readable(question.message), { body: question.method || "", tag: question.approval_id, icon: "/page/icon.svg" });
    made.onclick = () => {
      window.focus();
      go(...placeOf(question));
      made.close();
    };
    shown.set(question.approval_id, made);
  } catch {
    // Browsers of phones allow notifications of service workers only.
  }
}

async function toggle() {
  if (isWanted.value) isWanted.value = false;
  else {
    permission.value = await Notification.requestPermission();
    isWanted.value = permission.value === "granted";
  }
  save(SETTING, isWanted.value);
}

/** The button that switches desktop notifications on and off. */
export function NotifyButton() {
  if (!isSupported) return null;
  if (permission.value === "denied") return html`<small>The browser blocks notifications of this page. Allow them in its site settings.</small>`;
  const isOn = isWanted.value && permission.value === "granted";
  return html`<button type="button" aria-pressed=${isOn ? "true" : "false"} onClick=${toggle}>${isOn ? "Notifications are on" : "Notify me about questions"}</button>`;
}
