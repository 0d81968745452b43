// A tree of any size: what is open is a list of rows, of which only those in view are in the page.
// Children come in pages when they are wanted.

import { h, newId } from "./dom.js";
import { VirtualList } from "./virtual.js";

const ROW = 28;

/** A node of the tree. `children` is null as long as nobody has asked for them. */
export class TreeNode {
  constructor(data, { leaf = false } = {}) {
    this.data = data;
    this.leaf = leaf;
    this.parent = null;
    this.children = null;
    this.next = null;
    this.expanded = false;
    this.loading = false;
    /** How far it is moved in, and on which level it really is. */
    this.depth = 0;
    this.level = 1;
    this.version = 0;
  }

  /** Put it below another. */
  add(child) {
    child.parent = this;
    this.children = this.children || [];
    this.children.push(child);
    this.leaf = false;
    return child;
  }
}

/** The tree. `label(node)` gives what stands in a row, `load(node, after)` a page of children:
    `{nodes, next}`. With `straight`, an only child stands right below its parent. */
export class Tree {
  constructor({ label, name, load = null, onSelect = () => {}, straight = false }) {
    this._label = label;
    this._load = load;
    this._onSelect = onSelect;
    this._straight = straight;
    this._prefix = newId("tree");
    this.roots = [];
    this.rows = [];
    this.active = null;
    this._list = new VirtualList({
      render: (index) => this._row(index),
      version: (index) => this._versionOf(index),
      guess: () => ROW, fixed: true, label: name, role: "tree", rowRole: "treeitem",
    });
    this.element = this._list.element;
    this.element.classList.add("tree");
    this.element.addEventListener("keydown", (event) => this._key(event));
    this.element.addEventListener("click", (event) => this._click(event));
  }

  /** Show other roots. */
  setRoots(roots) {
    this.roots = roots;
    this.active = null;
    this.refresh();
  }

  /** Something has changed: make the list of rows anew. */
  refresh() {
    const rows = [];
    const stack = [...this.roots].reverse();
    for (const root of this.roots) Object.assign(root, { depth: 0, level: 1 });
    while (stack.length) {
      const node = stack.pop();
      rows.push(node);
      if (!node.expanded || !node.children) continue;
      const only = this._straight && node.children.length === 1 && node.next === null && node.parent !== null;
      const depth = node.depth + (only ? 0 : 1);
      const level = node.level + 1;
      if (node.next !== null) stack.push(Object.assign(new TreeNode({ more: node }), { depth, level, parent: node }));
      for (let index = node.children.length - 1; index >= 0; index -= 1) {
        Object.assign(node.children[index], { depth, level });
        stack.push(node.children[index]);
      }
    }
    this.rows = rows;
    this._list.resize(rows.length);
  }

  /** Open a node, asking for its children first if nobody has. */
  async expand(node) {
    if (node.leaf) return;
    if (node.children === null && this._load) await this._page(node);
    node.expanded = Boolean(node.children && node.children.length);
    node.version += 1;
    this.refresh();
  }

  collapse(node) {
    node.expanded = false;
    node.version += 1;
    this.refresh();
  }

  /** Choose a node and make it visible. */
  select(node, tell = true) {
    const index = this.rows.indexOf(node);
    if (index < 0) return;
    const before = this.active;
    this.active = node;
    if (before) before.version += 1;
    node.version += 1;
    this._list.show(index);
    this.element.setAttribute("aria-activedescendant", this._id(index));
    if (tell) this._onSelect(node);
  }

  close() {
    this._list.close();
  }

  async _page(node) {
    if (node.loading) return;
    node.loading = true;
    node.version += 1;
    this._list.refresh();
    try {
      const { nodes, next } = await this._load(node, node.next);
      node.children = node.children || [];
      for (const child of nodes) node.add(child);
      node.next = next === undefined ? null : next;
      if (!node.children.length) node.leaf = true;
    } finally {
      node.loading = false;
      node.version += 1;
    }
    this.refresh();
  }

  _id(index) {
    return `${this._prefix}-${index}`;
  }

  _versionOf(index) {
    const node = this.rows[index];
    // Rows have no names of their own: another node in the same row is another version.
    node.mark = node.mark || newId("node");
    return `${node.mark}.${node.version}.${node.depth}.${node.leaf}`;
  }

  _row(index) {
    const node = this.rows[index];
    const { more } = node.data;
    if (more) this._page(more).catch(() => {});
    const isOpen = node.expanded && !node.leaf;
    const row = h("div", {
      class: "tree-row", role: "treeitem", id: this._id(index), "data-index": index, "aria-level": node.level,
      "aria-expanded": node.leaf || more ? null : String(isOpen), "aria-selected": String(node === this.active),
    }, h("span", { class: "twist", "aria-hidden": "true" }, node.leaf || more ? "" : node.loading ? "…" : isOpen ? "▾" : "▸"),
    more ? h("span", { class: "note" }, "more…") : this._label(node));
    row.style.paddingInlineStart = `${Math.min(node.depth, 40) * 16 + 4}px`;
    return row;
  }

  _click(event) {
    const row = event.target.closest("[data-index]");
    if (!row) return;
    const node = this.rows[Number(row.dataset.index)];
    if (!node || node.data.more) return;
    const twist = event.target.closest(".twist");
    this.select(node);
    if (twist || !node.expanded) this._toggle(node);
  }

  _toggle(node) {
    if (node.expanded) this.collapse(node);
    else this.expand(node).catch(() => {});
  }

  _key(event) {
    if (!this.rows.length || event.altKey || event.ctrlKey || event.metaKey) return;
    const index = this.active ? this.rows.indexOf(this.active) : -1;
    const page = Math.max(1, Math.floor(this.element.clientHeight / ROW) - 1);
    const to = (next) => this.select(this.rows[Math.min(this.rows.length - 1, Math.max(0, next))]);
    const node = this.active;
    const keys = {
      ArrowDown: () => to(index + 1),
      ArrowUp: () => to(index - 1),
      PageDown: () => to(index + page),
      PageUp: () => to(index - page),
      Home: () => to(0),
      End: () => to(this.rows.length - 1),
      ArrowRight: () => (node && !node.leaf && !node.expanded ? this.expand(node).catch(() => {}) : to(index + 1)),
      ArrowLeft: () => {
        if (node && node.expanded) this.collapse(node);
        else if (node && node.parent) this.select(node.parent);
      },
      Enter: () => node && this._toggle(node),
      " ": () => node && this._toggle(node),
    };
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  }
}
