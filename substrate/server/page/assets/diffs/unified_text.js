// A unified diff as coloured text, for questions and for changes that wait in another process.

import { readable } from "../core/format.js";
import { html } from "../core/html.js";

const MAX_LINES = 2000;
const KINDS = { "+": "added", "-": "removed", "@": "place" };

/** @param {{text: string, cut: boolean}} props */
export function UnifiedText({ text, cut }) {
  const lines = text.split("\n");
  const shown = lines.slice(0, MAX_LINES);
  // The first two lines name the file, which is shown already.
  return html`<pre class="unified-text" tabindex="0" role="region" aria-label="Diff">${shown.slice(2).map((line) => html`<span class=${KINDS[line[0]] || null}>${readable(line)}${"\n"}</span>`)}</pre>
    ${cut || lines.length > MAX_LINES ? html`<p class="dim">This is not all of the change.</p>` : null}`;
}
