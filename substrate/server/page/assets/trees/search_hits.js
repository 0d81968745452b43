// The nodes that contain a text: excerpts that link to them.

import { stream } from "../core/connection.js";
import { count } from "../core/format.js";
import { html, useEffect, useState } from "../core/html.js";
import { link } from "../core/router.js";
import { Ago } from "../ui/run_parts.js";

const PAGE = 100;

/** @typedef {{tree_id: string, node_id: string, excerpt: string, created_ms: number}} Hit */

/** The results of a search in one tree, or in all trees. `titleOf` returns the title of a tree.
    @param {{text: string, tree?: string, titleOf?: (tree: string) => string}} props */
export function SearchHits({ text, tree, titleOf }) {
  const [hits, setHits] = useState(/** @type {Hit[]} */ ([]));
  const [next, setNext] = useState(/** @type {number | null | undefined} */ (undefined));
  const [error, setError] = useState("");
  const load = async (/** @type {number | undefined} */ before, /** @type {() => boolean} */ isCurrent) => {
    try {
      const end = await stream("arbor.search", { text, limit: PAGE, ...(tree ? { tree_id: tree } : {}), ...(before ? { before } : {}) }, (event) => {
        if (event.type === "hits" && isCurrent()) setHits((known) => [...known, ...event.hits]);
      });
      if (isCurrent()) setNext(end.next ?? null);
    } catch (failure) {
      if (isCurrent()) setError(/** @type {Error} */ (failure).message);
    }
  };
  useEffect(() => {
    let isCurrent = true;
    setHits([]);
    setNext(undefined);
    setError("");
    load(undefined, () => isCurrent);
    return () => { isCurrent = false; };
  }, [text, tree]);
  const words = text.toLowerCase().split(/[^\p{L}\p{N}]+/u).filter(Boolean);
  return html`<section class="hits" aria-label="Search results">
    <p role="status">${error ? "" : next === undefined ? "Searching …" : `${count(hits.length)}${next ? "+" : ""} ${hits.length === 1 ? "node contains" : "nodes contain"} “${text}”${hits.length ? "." : ". Search for other or fewer words."}`}</p>
    ${error ? html`<p class="error" role="alert">${error} Search for other words, or try again.</p>` : null}
    <ul class="plain">${hits.map((hit) => html`<li key=${hit.node_id}><a href=${link("trees", hit.tree_id, hit.node_id)}>
      <span class="excerpt">${marked(hit.excerpt, words)}</span><small>${titleOf ? `${titleOf(hit.tree_id)} · ` : ""}<${Ago} at=${hit.created_ms} /></small></a></li>`)}</ul>
    ${next ? html`<button type="button" onClick=${() => load(next, () => true)}>More results</button>` : null}</section>`;
}

/** Return a text with the words marked. @param {string} text @param {string[]} words */
function marked(text, words) {
  if (!words.length) return text;
  const pattern = new RegExp(`(${words.map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("|")})`, "iu");
  return text.replace(/\s+/g, " ").split(pattern).map((part, index) => (index % 2 ? html`<mark>${part}</mark>` : part));
}
