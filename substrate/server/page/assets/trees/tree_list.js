// The list of trees: states, filter by title, search in all texts, and a new tree.

import { call } from "../core/connection.js";
import { count, moment } from "../core/format.js";
import { html, useEffect, useState } from "../core/html.js";
import { go, link, setQuery } from "../core/router.js";
import { FixedList } from "../ui/fixed_list.js";
import { Ago, Notice } from "../ui/run_parts.js";
import { attempt } from "../ui/toast.js";
import { SearchHits } from "./search_hits.js";
import { treeTitle } from "./tree_title.js";

/** @typedef {import("./open_tree.js").TreeInfo} TreeInfo */

const PAGE = 500;
/** Trees are sorted by their last change here, so all of them are loaded, up to this number. */
const MAX_TREES = 10_000;
const ROW_PX = 46;
export const STATES = { active: "Active", scheduled_delete: "Scheduled for deletion", archived: "Archived" };

/** Load all trees with a method of arbor. @param {string} method @returns {Promise<TreeInfo[]>} */
async function loadAll(method) {
  /** @type {TreeInfo[]} */
  const found = [];
  let after;
  do {
    const page = await call(method, { limit: PAGE, ...(after ? { after } : {}) });
    found.push(...page.trees);
    after = page.next;
  } while (after && found.length < MAX_TREES);
  return found;
}

/** The trees. `?q=` searches their texts. @param {{query: URLSearchParams}} props */
export function TreeList({ query }) {
  const searched = query.get("q") || "";
  const [trees, setTrees] = useState(/** @type {TreeInfo[] | null} */ (null));
  const [error, setError] = useState("");
  const [text, setText] = useState(searched);
  const [state, setState] = useState("");
  const load = async () => {
    try {
      const found = (await Promise.all([loadAll("arbor.tree_list"), loadAll("arbor.tree_list_archived")])).flat();
      setTrees(found.sort((one, two) => two.updated_ms - one.updated_ms));
      setError("");
    } catch (failure) {
      setError(/** @type {Error} */ (failure).message);
    }
  };
  useEffect(() => {
    load();
    // There is no feed of all trees: a person who comes back sees what happened meanwhile.
    const onFocus = () => document.hidden || load();
    document.addEventListener("visibilitychange", onFocus);
    return () => document.removeEventListener("visibilitychange", onFocus);
  }, []);
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    setQuery({ q: text.trim() || null });
  };
  const titleOf = (/** @type {string} */ id) => {
    const tree = trees?.find((each) => each.tree_id === id);
    return tree ? treeTitle(tree) : id.slice(0, 8);
  };
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const shown = (trees || []).filter((tree) => (!state || tree.state === state) && (!words.length || words.every((word) => `${treeTitle(tree)} ${tree.tree_id}`.toLowerCase().includes(word))));
  return html`<header class="bar trees-head"><h1>Trees</h1><span class="dim">${trees ? count(trees.length) : ""}</span><span class="grow"></span>
      <form class="tree-search" role="search" onSubmit=${submit}><input type="search" aria-label="Filter trees by title; Enter searches all texts" placeholder="Filter titles, Enter searches texts …" value=${text}
        onInput=${(/** @type {any} */ event) => { setText(event.target.value); if (!event.target.value) setQuery({ q: null }); }} /></form></header>
    <div class="bar"><${States} trees=${trees || []} state=${state} onChoose=${setState} /><span class="grow"></span><${NewTree} /></div>
    ${error ? html`<${Notice} title="The trees could not be loaded"><p>${error}</p><button type="button" onClick=${load}>Try again</button><//>` : null}
    ${searched ? html`<${SearchHits} text=${searched} titleOf=${titleOf} />` : null}
    ${!searched && trees && !trees.length ? html`<${Notice} title="No trees yet"><p>Trees hold notes, outlines and conversations. Create one above, or start a chat: each session is a tree.</p><//>` : null}
    ${!searched && trees?.length && !shown.length ? html`<${Notice} title="No tree has this title"><p>Press Enter to search for “${text}” in the texts of all trees.</p><//>` : null}
    ${!searched && shown.length ? html`<${FixedList} class="tree-list card" label="Trees" count=${shown.length} height=${ROW_PX} keyOf=${(/** @type {number} */ index) => shown[index].tree_id} row=${(/** @type {number} */ index) => html`<${Entry} tree=${shown[index]} />`} />` : null}
    ${trees && trees.length >= MAX_TREES ? html`<p class="dim">The list is limited to ${count(MAX_TREES)} trees. Search to find others.</p>` : null}`;
}

/** @param {{tree: TreeInfo}} props */
function Entry({ tree }) {
  return html`<a class="tree-entry" href=${link("trees", tree.tree_id)} data-tree=${tree.tree_id}>
    <span class="what"><span class="cut">${treeTitle(tree)}</span><small class="cut">${tree.tree_id.slice(0, 8)} · created ${moment(tree.created_ms)}</small></span>
    ${tree.state === "active" ? null : html`<span class="tag">${STATES[tree.state]}</span>`}<small class="when"><${Ago} at=${tree.updated_ms} /></small></a>`;
}

/** @param {{trees: TreeInfo[], state: string, onChoose: (state: string) => void}} props */
function States({ trees, state, onChoose }) {
  const counts = Object.keys(STATES).map((each) => [each, trees.filter((tree) => tree.state === each).length]);
  return html`<div class="chips" role="group" aria-label="State">
    <button type="button" aria-pressed=${state ? "false" : "true"} onClick=${() => onChoose("")}>All</button>
    ${counts.map(([each, number]) => html`<button key=${each} type="button" aria-pressed=${state === each ? "true" : "false"} onClick=${() => onChoose(/** @type {string} */ (each))}>${STATES[each]} ${number}</button>`)}</div>`;
}

function NewTree() {
  const [title, setTitle] = useState("");
  const create = (/** @type {Event} */ event) => {
    event.preventDefault();
    attempt(async () => {
      const tree = await call("arbor.tree_create", title.trim() ? { metadata: { title: title.trim() } } : {});
      go("trees", tree.tree_id);
    });
  };
  return html`<form class="bar new-tree" onSubmit=${create}><input type="text" aria-label="Title of the new tree" placeholder="Title" value=${title} onInput=${(/** @type {any} */ event) => setTitle(event.target.value)} />
    <button type="submit">Create tree</button></form>`;
}
