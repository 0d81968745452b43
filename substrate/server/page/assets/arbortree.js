// One tree of arbor, read in pieces and kept as it is while others change it.
//
// A small tree comes with one call. Of a large one, children are read when their parent is opened,
// a page at a time.

import { h } from "./dom.js";
import { eventsOf } from "./events.js";
import { call, post, watchAll } from "./rpc.js";
import { Tree, TreeNode } from "./tree.js";

/** A tree up to this size is read at once, and then it is known which nodes have children. */
const AT_ONCE = 2000;
const PAGE = 500;
/** Past so many changes at a time, what is open is read again as a whole. */
const ONE_BY_ONE = 50;
const FRESH_MS = 3000;

export class ArborTree {
  constructor(tree, { onSelect, onNote }) {
    this._id = tree;
    this._note = onNote;
    this._nodes = new Map();
    this._stop = new AbortController();
    this._changes = [];
    this._seen = 0;
    this._tree = new Tree({
      name: "The tree's nodes", straight: true,
      label: (node) => nodeLabel(node.data, this._title),
      load: (node, after) => this._children(node, after),
      onSelect: (node) => onSelect(node.data),
    });
    this.element = this._tree.element;
  }

  /** Read it, and follow what happens to it. */
  async open() {
    const { tree, nodes, whole } = await this._beginning();
    this._title = (tree.metadata && tree.metadata.title) || null;
    if (whole) this._build(nodes);
    else {
      const root = await call("arbor.node_get", { tree_id: this._id, node_id: tree.root });
      const node = this._enter(root);
      this._tree.setRoots([node]);
      await this._tree.expand(node);
    }
    this._size = whole ? `${nodes.length} nodes` : `more than ${AT_ONCE} nodes, read as they are opened`;
    this._say();
    this._follow(tree.seq);
  }

  close() {
    this._stop.abort();
    this._tree.close();
  }

  _say() {
    this._note(`${this._size}${this._seen ? `, ${this._seen} changes since` : ""}`);
  }

  /** The tree itself, and all of its nodes if there are not too many. */
  async _beginning() {
    const abort = new AbortController();
    this._stop.signal.addEventListener("abort", () => abort.abort());
    const message = { jsonrpc: "2.0", id: 1, method: "arbor.tree_get", params: { tree_id: this._id } };
    const response = await post(message, "text/event-stream", abort.signal);
    let tree = null;
    const nodes = [];
    for await (const { data } of eventsOf(response)) {
      if (data.error) throw new Error(data.error.message);
      const event = data.params ? data.params.result : {};
      if (event.type === "tree") tree = event;
      else if (event.type === "nodes") nodes.push(...event.nodes);
      else if (event.type === "error") throw new Error(event.message);
      else if (event.type === "complete") return { tree, nodes, whole: true };
      if (nodes.length > AT_ONCE) {
        abort.abort();
        break;
      }
    }
    return { tree, nodes: [], whole: false };
  }

  _build(nodes) {
    for (const data of nodes) this._enter(data);
    let root = null;
    for (const data of [...nodes].sort((one, other) => one.position - other.position)) {
      const node = this._nodes.get(data.node_id);
      if (data.parent) this._nodes.get(data.parent).add(node);
      else root = node;
    }
    for (const node of this._nodes.values()) {
      node.leaf = !node.children;
      node.expanded = !node.leaf;
    }
    this._tree.setRoots(root ? [root] : []);
  }

  _enter(data) {
    const node = new TreeNode(data);
    this._nodes.set(data.node_id, node);
    return node;
  }

  async _children(node, after) {
    const page = await call("arbor.node_get_children", {
      tree_id: this._id, node_id: node.data.node_id, limit: PAGE, ...(after === null ? {} : { after }),
    }, this._stop.signal);
    const fresh = page.nodes.filter((data) => !this._nodes.has(data.node_id));
    return { nodes: fresh.map((data) => this._enter(data)), next: page.next };
  }

  // --- what others do ---------------------------------------------------------------------------

  _follow(seq) {
    let after = seq;
    // Each time it goes on after the last change that was heard of.
    const calls = [["arbor.watch", { tree_id: this._id, get after() { return after; } }]];
    watchAll(calls, (_, event) => {
      if (event.type !== "change") return;
      after = event.seq;
      this._changes.push(event);
      if (this._changes.length === 1) setTimeout(() => this._apply(), 150);
    }, { signal: this._stop.signal });
  }

  async _apply() {
    const changes = this._changes.splice(0);
    this._seen += changes.length;
    this._say();
    try {
      const moved = changes.filter((change) => change.node_id && change.kind.startsWith("node_"));
      if (moved.length > ONE_BY_ONE) await this._again();
      else for (const change of moved) await this._change(change);
    } catch (error) {
      if (!this._stop.signal.aborted) this._note(error.message);
    }
    this._tree.refresh();
  }

  async _change({ kind, node_id: id }) {
    const known = this._nodes.get(id);
    if (known && kind !== "node_created") this._remove(known);
    if (kind === "node_deleted") return;
    if (known && kind === "node_created") return;
    let data;
    try {
      data = await call("arbor.node_get", { tree_id: this._id, node_id: id });
    } catch {
      return; // it is gone again already; the next change says so
    }
    const parent = data.parent && this._nodes.get(data.parent);
    if (!parent) return;
    // Of children that nobody has read, or not to the end, there is nothing to be added to.
    const isKnown = parent.children === null ? parent.leaf : parent.next === null;
    parent.leaf = false;
    parent.version += 1;
    if (kind === "node_edited" || data.replaces) {
      const old = this._nodes.get(data.replaces);
      if (old) {
        old.data = { ...old.data, replaced_by: id };
        old.version += 1;
      }
    }
    if (!isKnown) return;
    const node = this._enter(data);
    node.leaf = !known || known.leaf;
    if (known) Object.assign(node, { children: known.children, expanded: known.expanded, next: known.next });
    for (const child of node.children || []) child.parent = node;
    parent.add(node);
    parent.children.sort((one, other) => one.data.position - other.data.position);
    parent.expanded = true;
    this._flash(node);
  }

  _flash(node) {
    node.data = { ...node.data, fresh: true };
    setTimeout(() => {
      node.data = { ...node.data, fresh: false };
      node.version += 1;
      this._tree.refresh();
    }, FRESH_MS);
  }

  _remove(node) {
    const siblings = node.parent && node.parent.children;
    if (siblings) {
      siblings.splice(siblings.indexOf(node), 1);
      if (!siblings.length && node.parent.next === null) node.parent.leaf = true;
      node.parent.version += 1;
    }
    const gone = [node];
    while (gone.length) {
      const each = gone.pop();
      this._nodes.delete(each.data.node_id);
      gone.push(...(each.children || []));
    }
  }

  /** Read again what is open at the top. */
  async _again() {
    const [root] = this._tree.roots;
    this._nodes.clear();
    this._nodes.set(root.data.node_id, root);
    Object.assign(root, { children: null, next: null, leaf: false, expanded: false });
    root.version += 1;
    await this._tree.expand(root);
  }
}

function nodeLabel(data, title) {
  const kind = data.metadata && data.metadata.kind;
  const text = data.content || (data.handle ? data.handle.text : data.size ? `(${data.size} characters)` : data.parent ? "(empty)" : title || "root");
  return [
    kind ? h("span", { class: "tag" }, String(kind)) : null,
    h("span", { class: `said${data.fresh ? " fresh" : ""}${data.replaced_by ? " replaced" : ""}` }, text.slice(0, 300).replace(/\s+/g, " ")),
  ];
}
