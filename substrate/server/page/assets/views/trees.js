// The view of trees: the list, or one tree with the selected node beside it.

import { call, state as connection, stream } from "../core/connection.js";
import { count } from "../core/format.js";
import { html, useEffect, useMemo, useState } from "../core/html.js";
import { go, link, setQuery } from "../core/router.js";
import { NodePane, Confirm } from "../trees/node_pane.js";
import { OpenTree } from "../trees/open_tree.js";
import { SearchHits } from "../trees/search_hits.js";
import { STATES, TreeList } from "../trees/tree_list.js";
import { TreePane } from "../trees/tree_pane.js";
import { treeTitle } from "../trees/tree_title.js";
import { Ago, Notice } from "../ui/run_parts.js";
import { title } from "../ui/title.js";
import { attempt, toast } from "../ui/toast.js";

/** @typedef {import("../trees/open_tree.js").TreeInfo} TreeInfo */

const WIDE = matchMedia("(min-width: 901px)");

/** The trees. @param {{parts: string[], query: URLSearchParams}} props */
export function View({ parts, query }) {
  const [id, node = ""] = parts;
  return id ? html`<${TreeScreen} key=${id} id=${id} node=${node} query=${query} />` : html`<${TreeList} query=${query} />`;
}

/** @param {{id: string, node: string, query: URLSearchParams}} props */
function TreeScreen({ id, node, query }) {
  const tree = useMemo(() => new OpenTree(id), [id]);
  const searched = query.get("q") || "";
  useEffect(() => {
    tree.open();
    return () => tree.close();
  }, [tree]);
  const info = tree.info.value;
  const error = /** @type {any} */ (tree.error.value);
  useEffect(() => {
    if (error?.code === "lost" && connection.value === "open") tree.open();
  }, [error, connection.value]);
  const name = info ? treeTitle(info) : "";
  useEffect(() => {
    title.value = name;
    return () => { title.value = ""; };
  }, [name]);
  if (error && error.code !== "lost") {
    return html`<${Notice} title="This tree cannot be shown"><p>${error.message}</p><p><a class="button" href=${link("trees")}>Show all trees</a> <button type="button" onClick=${() => tree.open()}>Try again</button></p><//>`;
  }
  if (!info) return html`<p class="dim" role="status">Loading the tree …</p>`;
  const choose = (/** @type {string} */ chosen, /** @type {boolean} */ isFinal) => {
    if (isFinal) go("trees", id, chosen);
    // Moving through the rows makes no entry in the browser history. A narrow screen shows a node instead of the tree.
    else if (WIDE.matches) location.replace(link("trees", id, chosen));
  };
  const isWritable = info.state !== "archived";
  return html`<${TreeHead} tree=${tree} info=${info} name=${name} searched=${searched} />
    <div class="tree-split" data-shows=${node && !searched ? "node" : "tree"}>
      <section class="tree-side card" aria-label="Tree">
        ${searched ? html`<button type="button" class="small" onClick=${() => setQuery({ q: null })}>Back to the tree</button><${SearchHits} text=${searched} tree=${id} />`
    : html`<${TreeBar} tree=${tree} /><${TreePane} tree=${tree} chosen=${node} onChoose=${choose} />`}</section>
      <section class="node-side card" aria-label="Node" tabindex="0">
        <a class="button small back" href=${link("trees", id)}>← Tree</a>
        ${node ? html`<${NodePane} tree=${tree} id=${node} isWritable=${isWritable} />` : html`<${Notice} title="No node selected"><p>Select a node to read it, edit it or add to it.</p>
          ${isWritable ? html`<button type="button" onClick=${() => go("trees", id, info.root)}>Select the root</button>` : null}<//>`}</section></div>`;
}

/** @param {{tree: OpenTree}} props */
function TreeBar({ tree }) {
  tree.version.value;
  const nodes = tree.model.nodes.size;
  return html`<div class="bar tree-bar"><span class="dim grow" role="status">${tree.isLoaded.value ? `${count(nodes)} ${nodes === 1 ? "node" : "nodes"}` : `Loading … ${count(nodes)} nodes`}</span>
    <button type="button" class="small" onClick=${() => tree.expandAll(true)}>Expand all</button><button type="button" class="small" onClick=${() => tree.expandAll(false)}>Collapse all</button></div>`;
}

/** @param {{tree: OpenTree, info: TreeInfo, name: string, searched: string}} props */
function TreeHead({ tree, info, name, searched }) {
  const [mode, setMode] = useState(/** @type {"" | "rename" | "delete"} */ (""));
  const [text, setText] = useState("");
  const [searchText, setSearch] = useState(searched);
  const { tree_id: id, state } = info;
  const rename = (/** @type {Event} */ event) => {
    event.preventDefault();
    attempt(async () => {
      tree.info.value = await call("arbor.tree_update_metadata", { tree_id: id, metadata: { ...info.metadata, title: text.trim() } });
      setMode("");
    });
  };
  const remove = () => attempt(async () => {
    tree.info.value = await call("arbor.tree_delete", { tree_id: id });
    setMode("");
    toast("The tree is scheduled for deletion. Restore keeps it.");
  });
  const restore = () => attempt(async () => {
    await call("arbor.tree_claim", { tree_id: id });
    tree.info.value = { ...info, state: "active" };
  });
  const search = (/** @type {Event} */ event) => {
    event.preventDefault();
    setQuery({ q: searchText.trim() || null });
  };
  return html`<header class="bar trees-head"><span class="crumbs"><a href=${link("trees")}>Trees</a> /</span>
      ${mode === "rename" ? html`<form class="bar" onSubmit=${rename}><input type="text" aria-label="Title of the tree" autofocus value=${text} onInput=${(/** @type {any} */ event) => setText(event.target.value)} onKeyDown=${(/** @type {KeyboardEvent} */ event) => event.key === "Escape" && setMode("")} />
          <button type="submit" class="primary" disabled=${!text.trim()}>Save title</button><button type="button" onClick=${() => setMode("")}>Cancel</button></form>`
    : html`<h1 class="cut">${name}</h1>${state === "active" ? null : html`<span class="tag">${STATES[state]}</span>`}<small>updated <${Ago} at=${info.updated_ms} /></small>`}
      <span class="grow"></span>
      <form class="tree-search tree-actions" role="search" onSubmit=${search}><input type="search" aria-label="Search in this tree" placeholder="Search in this tree …" value=${searchText}
        onInput=${(/** @type {any} */ event) => { setSearch(event.target.value); if (!event.target.value) setQuery({ q: null }); }} /></form>
      <span class="bar tree-actions">${state === "archived" || mode === "rename" ? null : html`<button type="button" onClick=${() => { setText(name); setMode("rename"); }}>Rename</button>`}
        <button type="button" onClick=${() => attempt(() => download(id, name))}>Export</button>
        ${state === "active" ? html`<button type="button" class="danger" onClick=${() => setMode("delete")}>Delete</button>` : null}
        ${state === "scheduled_delete" ? html`<button type="button" onClick=${restore}>Restore</button>` : null}</span></header>
    ${mode === "delete" ? html`<${Confirm} action="Delete tree" onYes=${remove} onNo=${() => setMode("")}>Delete “${name}” with its ${count(tree.model.nodes.size)} nodes? It is scheduled for deletion first, and can be restored until it is archived.<//>` : null}`;
}

/** Download a tree as JSON Lines. @param {string} id @param {string} name */
async function download(id, name) {
  /** @type {string[]} */
  const parts = [];
  await stream("arbor.tree_export", { tree_id: id }, (event) => event.type === "content" && parts.push(event.text));
  const url = URL.createObjectURL(new Blob(parts, { type: "application/jsonl" }));
  const anchor = document.createElement("a");
  anchor.href = url;
  anchor.download = `${name.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 60) || id}.jsonl`;
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
