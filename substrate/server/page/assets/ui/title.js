// The title of the tab: what is shown, with the number of open questions first.

import { readable } from "../core/format.js";
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
    const change = questions.value.find((each) => each.kind === "diff")?.details?.path;
    const text = title.value || (view ? view.title : "Not found");
    document.title = `${asked ? `(${asked}) ` : ""}${change ? `Review ${readable(change.slice(change.lastIndexOf("/") + 1))} · ` : ""}${text} · Substrate`;
  });
}
