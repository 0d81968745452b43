// The title of the tab: what is shown, with the number of open questions first.

import { effect, signal } from "../core/html.js";
import { questions } from "../core/live.js";
import { place } from "../core/router.js";
import { viewOf } from "../core/views.js";

/** The title of the current view; empty for its name. Views set it, and reset it when they close. */
export const title = signal("");

/** Keep the title of the tab up to date. */
export function watchTitle() {
  effect(() => {
    const view = viewOf(place.value.view);
    const asked = questions.value.length;
    const text = title.value || (view ? view.title : "Not found");
    document.title = `${asked ? `(${asked}) ` : ""}${text} · Substrate`;
  });
}
