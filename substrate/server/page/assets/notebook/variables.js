// The variables of a session, read after each evaluation.

import { call } from "../core/connection.js";
import { html, useEffect, useState } from "../core/html.js";

/** @typedef {{name: string, type: string, preview: string, shape?: number[], length?: number}} Variable */

/** @param {Variable} variable */
const extent = ({ shape, length }) => (shape ? shape.join(" × ") : length === undefined ? "" : String(length));

/** A table of the variables. `version` changes when they may have changed.
    @param {{session: string, version: string}} props */
export function Variables({ session, version }) {
  const [found, setFound] = useState(/** @type {{variables: Variable[], total: number} | null} */ (null));
  const [error, setError] = useState("");
  useEffect(() => {
    let isOver = false;
    call("python.variables", { session }).then(
      (answer) => { if (!isOver) { setFound(answer); setError(""); } },
      (failure) => { if (!isOver && failure.code !== "lost") setError(failure.message); },
    );
    return () => { isOver = true; };
  }, [session, version]);
  return html`<section class="card variables" aria-label="Variables"><h2>Variables ${found ? html`<small>${found.total}</small>` : null}</h2>
    ${error ? html`<p class="e-note">${error}</p>` : null}
    ${found && found.total === 0 ? html`<p class="none">None yet. Evaluate <code>x = 1</code>, for example.</p>` : null}
    ${found?.variables.length ? html`<div class="e-table" tabindex="0" role="region" aria-label="Variables"><table><thead><tr><th scope="col">Name</th><th scope="col">Type</th><th scope="col">Size</th><th scope="col">Value</th></tr></thead>
      <tbody>${found.variables.map((each) => html`<tr key=${each.name}><td><code>${each.name}</code></td><td>${each.type}</td><td>${extent(each)}</td><td class="preview" title=${each.preview}><code>${each.preview}</code></td></tr>`)}</tbody></table></div>` : null}</section>`;
}
