// The rows of a tree: indentation that shows the depth, expanding, and the keys of a WAI-ARIA tree.

import { count } from "../core/format.js";
import { html, useEffect, useRef, useState } from "../core/html.js";
import { FixedList } from "../ui/fixed_list.js";
import { rowAfter } from "./tree_model.js";

/** @typedef {import("./open_tree.js").OpenTree} OpenTree */
/** @typedef {import("./tree_model.js").TreeNode} TreeNode */

const ROW_PX = 28;
/** Each level is indented by a full step down to this depth; deeper levels by a small one, with a number. */
const FULL_LEVELS = 12;
const MAX_DEEP_LEVELS = 30;
/** How long a row must be active before its node is shown, so that holding a key loads one node. */
const SETTLE_MS = 150;
const KEYS = { j: "ArrowDown", k: "ArrowUp" };

const idOf = (/** @type {TreeNode} */ node) => `node-${node.id}`;

/** The tree. `onChoose(id, isFinal)` is called when a row is opened, or with false when it became active.
    @param {{tree: OpenTree, chosen: string, onChoose: (id: string, isFinal: boolean) => void}} props */
export function TreePane({ tree, chosen, onChoose }) {
  const [activeId, setActive] = useState(chosen);
  const timer = useRef(/** @type {ReturnType<typeof setTimeout> | undefined} */ (undefined));
  const { model } = tree;
  tree.version.value;
  useEffect(() => {
    if (!chosen || !tree.isLoaded.value) return;
    tree.reveal(chosen);
    setActive(chosen);
  }, [chosen, tree.isLoaded.value]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const active = model.visible(activeId);
  const activate = (/** @type {TreeNode} */ node) => {
    setActive(node.id);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => onChoose(node.id, false), SETTLE_MS);
  };
  const open = (/** @type {TreeNode} */ node) => {
    clearTimeout(timer.current);
    setActive(node.id);
    onChoose(node.id, true);
  };
  const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
    const list = /** @type {HTMLElement} */ (event.target);
    if (list.getAttribute("role") !== "tree" || event.ctrlKey || event.metaKey || event.altKey) return;
    const key = KEYS[event.key] || event.key;
    const hasChildren = active && active.children.length > 0;
    if (key === "Enter" && active) open(active);
    else if (active && hasChildren && (key === " " || (key === "ArrowRight" && !active.isOpen) || (key === "ArrowLeft" && active.isOpen))) tree.expand([active.id], !active.isOpen);
    else if (active && key === "*") tree.expand((active.parent?.children || [active]).map((each) => each.id), true);
    else {
      const next = rowAfter(model, active, key, Math.max(1, Math.floor(list.clientHeight / ROW_PX) - 1));
      if (!next) return;
      activate(next);
    }
    event.preventDefault();
  };
  const row = (/** @type {number} */ index) => html`<${Row} tree=${tree} node=${model.rows[index]} isActive=${model.rows[index] === active} version=${tree.version.value}
    onOpen=${open} onToggle=${(/** @type {TreeNode} */ node) => tree.expand([node.id], !node.isOpen)} />`;
  return html`<div class="tree-pane" onKeyDown=${onKeyDown}>
    <${FixedList} class="tree" role="tree" label="Nodes of the tree" count=${model.rows.length} height=${ROW_PX} row=${row}
      keyOf=${(/** @type {number} */ index) => model.rows[index].id} show=${active ? active.row : undefined} idOf=${(/** @type {number} */ index) => idOf(model.rows[index])} /></div>`;
}

/** @param {{tree: OpenTree, node: TreeNode, isActive: boolean, onOpen: (node: TreeNode) => void, onToggle: (node: TreeNode) => void}} props */
function Row({ tree, node, isActive, onOpen, onToggle }) {
  const { depth, children, isOpen } = node;
  const toggle = (/** @type {Event} */ event) => {
    event.stopPropagation();
    onToggle(node);
  };
  const { tag, text } = rowText(tree, node);
  const deep = Math.min(depth - FULL_LEVELS, MAX_DEEP_LEVELS);
  return html`<div class="tree-row" id=${idOf(node)} role="treeitem" data-depth=${depth} data-fresh=${tree.fresh.has(node.id) ? "" : null} data-replaced=${node.isReplaced ? "" : null}
    aria-level=${depth + 1} aria-setsize=${node.parent ? node.parent.children.length : 1} aria-posinset=${node.place} aria-selected=${isActive ? "true" : "false"}
    aria-expanded=${children.length ? String(isOpen) : null} onClick=${() => onOpen(node)}>
    <span class="indent" style=${{ "--levels": Math.min(depth, FULL_LEVELS) }}></span>
    ${deep > 0 ? html`<span class="indent deep" style=${{ "--levels": deep }}></span>` : null}
    <span class="twist" aria-hidden="true" onClick=${children.length ? toggle : undefined}>${children.length ? (isOpen ? "▾" : "▸") : ""}</span>
    ${deep > 0 ? html`<small class="depth">depth ${count(depth)}</small>` : null}
    ${tag ? html`<span class="tag">${tag}</span>` : null}<span class="text cut">${text}</span>
    ${node.isReplaced ? html`<small>old version</small>` : null}
    ${children.length > 1 || (children.length && !isOpen) ? html`<small class="children" title=${`${count(children.length)} children`}>${count(children.length)}</small>` : null}
  </div>`;
}

/** @param {OpenTree} tree @param {TreeNode} node */
function rowText(tree, node) {
  if (!node.parent) return { tag: "", text: String(tree.info.value?.metadata?.title || "Root") };
  const preview = tree.preview(node.id);
  if (!preview) return { tag: "", text: "…" };
  const kind = preview.metadata?.kind || preview.metadata?.role || (preview.handle ? "handle" : "");
  return { tag: typeof kind === "string" ? kind : "", text: (preview.content ?? preview.handle?.text ?? "").replace(/\s+/g, " ").trim() || "(empty)" };
}
