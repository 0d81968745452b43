// One node: its full content, metadata, path and versions, and what can be done with it.

import { call } from "../core/connection.js";
import { count, moment } from "../core/format.js";
import { html, useEffect, useState } from "../core/html.js";
import { go, link } from "../core/router.js";
import { load, save } from "../core/storage.js";
import { JsonTree } from "../ui/json_tree.js";
import { Markdown } from "../ui/markdown.js";
import { Ago, Notice } from "../ui/run_parts.js";
import { copy, toast } from "../ui/toast.js";
import { ancestors, subtree } from "./tree_model.js";

/** @typedef {import("./open_tree.js").OpenTree} OpenTree */
/** @typedef {import("./open_tree.js").NodeData} NodeData */
/** @typedef {import("./tree_model.js").TreeNode} TreeNode */

/** Ancestors in a path; those in between are left out. */
const PATH_ENDS = 3;
const MARKDOWN = "text/markdown";

/** Asks before something is deleted, in place. @param {{children: any, action: string, onYes: () => void, onNo: () => void}} props */
export function Confirm({ children, action, onYes, onNo }) {
  return html`<div class="confirm" role="alertdialog" aria-label=${action} onKeyDown=${(/** @type {KeyboardEvent} */ event) => event.key === "Escape" && onNo()}>
    <span class="grow">${children}</span><button type="button" onClick=${onNo}>Keep</button>
    <button type="button" class="danger" onClick=${onYes}>${action}</button></div>`;
}

/** A node of a tree. @param {{tree: OpenTree, id: string, isWritable: boolean}} props */
export function NodePane({ tree, id, isWritable }) {
  tree.version.value;
  const [data, setData] = useState(/** @type {NodeData | null} */ (null));
  const [error, setError] = useState("");
  const [mode, setMode] = useState(/** @type {"" | "edit" | "add" | "delete"} */ (""));
  const place = tree.model.nodes.get(id);
  const isReplaced = place?.isReplaced;
  useEffect(() => {
    let isCurrent = true;
    setError("");
    call("arbor.node_get", { tree_id: tree.id, node_id: id }).then((found) => isCurrent && setData(found), (failure) => isCurrent && setError(failure.message));
    return () => { isCurrent = false; };
  }, [id, isReplaced, Boolean(place)]);
  useEffect(() => setMode(""), [id]);
  if (error) return html`<${Notice} title="This node cannot be shown"><p>${error}</p><a class="button" href=${link("trees", tree.id)}>Show the tree</a><//>`;
  if (!data || data.node_id !== id) return html`<p class="dim" role="status">Loading …</p>`;
  const isRoot = !data.parent;
  const run = async (/** @type {() => Promise<any>} */ action) => {
    try {
      await action();
      setMode("");
    } catch (failure) {
      toast(/** @type {Error} */ (failure).message);
    }
  };
  const edit = (/** @type {string} */ text) => run(async () => {
    const changed = data.handle ? { handle: text } : { content: text };
    const made = await call("arbor.node_edit", { tree_id: tree.id, node_id: id, ...changed, metadata: data.metadata });
    go("trees", tree.id, made.node_id);
  });
  const add = (/** @type {string} */ text) => run(async () => {
    const made = await call("arbor.node_create_text", { tree_id: tree.id, parent: id, content: text });
    tree.expand([id], true);
    go("trees", tree.id, made.node_id);
  });
  const remove = () => run(async () => {
    const { count: deleted } = await call("arbor.node_delete", { tree_id: tree.id, node_id: id });
    toast(`${deleted === 1 ? "The node was" : `${count(deleted)} nodes were`} deleted.`);
    go("trees", tree.id, ...(data.parent ? [data.parent] : []));
  });
  const below = place ? subtree(place).length - 1 : 0;
  return html`<article class="node" aria-label="Selected node">
    ${place ? html`<${Path} tree=${tree} node=${place} />` : null}
    ${isWritable ? html`<div class="bar">
      <button type="button" class="small" onClick=${() => setMode("add")}>Add child</button>
      ${isRoot || data.replaced_by ? null : html`<button type="button" class="small" onClick=${() => setMode("edit")}>Edit</button>`}
      ${isRoot ? null : html`<button type="button" class="small danger" onClick=${() => setMode("delete")}>Delete</button>`}</div>` : null}
    ${mode === "delete" ? html`<${Confirm} action="Delete node" onYes=${remove} onNo=${() => setMode("")}>Delete this node${below ? html` and the <b>${count(below)}</b> nodes below it` : null}?<//>` : null}
    ${mode === "add" ? html`<${TextForm} label="Text of the new child" action="Add child" onSave=${add} onCancel=${() => setMode("")} />` : null}
    ${mode === "edit" ? html`<${TextForm} label=${data.handle ? "Handle" : "Text"} text=${data.handle?.text ?? data.content ?? ""} action="Save new version" onSave=${edit} onCancel=${() => setMode("")}
      note=${below ? `This makes a new version. The ${count(below)} nodes below stay with the old one.` : "This makes a new version. The old one stays visible."} />` : null}
    ${mode === "edit" ? null : html`<${Body} data=${data} tree=${tree} />`}
    <${Facts} data=${data} tree=${tree} node=${place} />
    ${data.metadata ? html`<section class="metadata"><h3>Metadata</h3><${JsonTree} value=${data.metadata} open=${2} /></section>` : null}
  </article>`;
}

/** @param {{tree: OpenTree, node: TreeNode}} props */
function Path({ tree, node }) {
  const path = ancestors(node);
  const left = path.length > 2 * PATH_ENDS + 1 ? path.length - 2 * PATH_ENDS : 0;
  const shown = left ? [...path.slice(0, PATH_ENDS), null, ...path.slice(-PATH_ENDS)] : path;
  const nameOf = (/** @type {TreeNode} */ each) => {
    const preview = each.parent ? tree.preview(each.id) : null;
    return each.parent ? (preview?.content ?? preview?.handle?.text ?? "…").trim().split("\n", 1)[0].slice(0, 40) || "(empty)" : "Root";
  };
  return html`<nav class="path" aria-label="Path">${shown.map((each) => (each
    ? html`<a key=${each.id} href=${link("trees", tree.id, each.id)}>${nameOf(each)}</a><span aria-hidden="true"> / </span>`
    : html`<span key="gap" class="dim">… ${count(left)} more </span><span aria-hidden="true"> / </span>`))}<span class="dim">depth ${count(path.length)}</span></nav>`;
}

/** The content, as text or as Markdown. @param {{data: NodeData, tree: OpenTree}} props */
function Body({ data, tree }) {
  const type = data.metadata?.media_type;
  const [isMarkdown, setMarkdown] = useState(type === MARKDOWN || load("trees.markdown", false));
  const [resolved, setResolved] = useState("");
  useEffect(() => {
    setResolved("");
    if (data.handle) call("arbor.read_node", { tree: tree.id, node: data.node_id }).then((found) => setResolved(found.text || ""), () => {});
  }, [data.node_id]);
  const text = data.handle ? resolved : data.content ?? "";
  if (!data.parent && !text) return html`<p class="dim">The root of the tree. Its text is empty; the nodes below hold the texts.</p>`;
  const choose = (/** @type {boolean} */ value) => {
    setMarkdown(value);
    if (type !== MARKDOWN) save("trees.markdown", value || undefined);
  };
  return html`<section class="body"><div class="bar">
      <span class="chips" role="group" aria-label="Show as">
        <button type="button" aria-pressed=${isMarkdown ? "false" : "true"} onClick=${() => choose(false)}>Text</button>
        <button type="button" aria-pressed=${isMarkdown ? "true" : "false"} onClick=${() => choose(true)}>Markdown</button></span>
      <span class="grow dim">${count(text.length)} characters</span>
      <button type="button" class="small" onClick=${() => copy(text, "The text was copied.")}>Copy text</button></div>
    ${data.handle ? html`<p><span class="tag">handle</span> <code>${data.handle.text}</code></p>` : null}
    ${isMarkdown ? html`<div class="content-text"><${Markdown} text=${text} /></div>` : html`<pre class="content-text">${text}</pre>`}</section>`;
}

/** @param {{data: NodeData, tree: OpenTree, node?: TreeNode}} props */
function Facts({ data, tree, node }) {
  const version = (/** @type {string} */ id, /** @type {string} */ text) => html`<a href=${link("trees", tree.id, id)}>${text}</a>`;
  return html`<dl class="facts">
    <dt>Node</dt><dd><code>${data.node_id}</code> <button type="button" class="plain" onClick=${() => copy(data.node_id, "The id was copied.")}>Copy id</button></dd>
    <dt>Created</dt><dd title=${moment(data.created_ms)}><${Ago} at=${data.created_ms} /></dd>
    ${node ? html`<dt>Children</dt><dd>${count(node.children.length)}</dd>` : null}
    ${data.replaced_by ? html`<dt>Version</dt><dd>Old version. ${version(data.replaced_by, "Show the next version")}</dd>` : null}
    ${data.replaces ? html`<dt>Replaces</dt><dd>${version(data.replaces, "Show the previous version")}</dd>` : null}</dl>`;
}

/** @param {{label: string, text?: string, action: string, note?: string, onSave: (text: string) => void, onCancel: () => void}} props */
function TextForm({ label, text = "", action, note, onSave, onCancel }) {
  const [value, setValue] = useState(text);
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    onSave(value);
  };
  const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) submit(event);
    else if (event.key === "Escape") onCancel();
  };
  return html`<form class="field" onSubmit=${submit}><label for="node-text">${label}</label>
    <textarea id="node-text" rows="8" autofocus value=${value} onInput=${(/** @type {any} */ event) => setValue(event.target.value)} onKeyDown=${onKeyDown}></textarea>
    ${note ? html`<small>${note}</small>` : null}
    <div class="bar"><button type="submit" class="primary" disabled=${value === text}>${action}</button><button type="button" onClick=${onCancel}>Cancel</button></div></form>`;
}
