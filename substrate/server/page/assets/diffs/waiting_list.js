// The changes that wait for an answer, as links.

import { clientName, readable } from "../core/format.js";
import { html } from "../core/html.js";
import { diffs } from "../files/ide.js";
import { diffLink, nameOf } from "../files/places.js";
import { Ago } from "../ui/run_parts.js";

/** `chosen` is the change that is shown. @param {{chosen: string}} props */
export function WaitingList({ chosen }) {
  const waiting = [...diffs.value.values()];
  if (!waiting.length) return null;
  return html`<section class="waiting card" aria-label="Changes to review"><h2>${waiting.length === 1 ? "One change waits" : `${waiting.length} changes wait`}</h2>
    <ul class="plain">${waiting.map((each) => html`<li key=${each.diff}><a href=${diffLink(each.diff)} aria-current=${each.diff === chosen ? "page" : null} title=${readable(each.path)}><strong class="cut">${nameOf(each.path)}</strong>
      <small><${Counts} change=${each} /> · ${clientName(each.client || undefined)} · <${Ago} at=${each.asked_ms} /></small></a></li>`)}</ul></section>`;
}

/** The numbers of lines. @param {{change: {added: number, removed: number}}} props */
export function Counts({ change: { added, removed } }) {
  return html`<span class="counts"><span class="plus">+${added}</span> <span class="minus">−${removed}</span></span>`;
}
