// The structure of one tree: which nodes there are, which are expanded, and the rows that follow.
//
// It holds no contents, so that 100,000 nodes fit easily. Every walk is a loop: a conversation is a
// chain of thousands of levels, which would overflow the stack.

/** A node. `depth` and `row` are valid while the node is in `rows`.
    @typedef {{id: string, parent: TreeNode | null, children: TreeNode[], position: number, isExternal: boolean,
      isReplaced: boolean, isOpen: boolean, depth: number, row: number, place: number}} TreeNode */

/** What the server says of a node: an entry of `tree_get_skeleton` or of `node_preview`.
    @typedef {{node_id: string, position: number, parent?: string | null, kind?: string, replaced?: boolean,
      handle?: object, replaced_by?: string}} NodeInfo */

/** The nodes of a tree by id, and the visible rows. */
export class TreeModel {
  constructor() {
    /** @type {Map<string, TreeNode>} */
    this.nodes = new Map();
    /** @type {TreeNode | null} */
    this.root = null;
    /** The nodes whose ancestors are all expanded, from top to bottom. @type {TreeNode[]} */
    this.rows = [];
    /** Parents that got children since the last update: their children are not sorted. @type {Set<TreeNode>} */
    this._unsorted = new Set();
  }

  /** Add a node, or move and update a known one. Its parent may follow later. @param {NodeInfo} info */
  put(info) {
    const node = this._entry(info.node_id);
    node.position = info.position;
    node.isExternal = info.kind === "external" || Boolean(info.handle);
    node.isReplaced = Boolean(info.replaced || info.replaced_by);
    if (!info.parent) this.root = node;
    else if (node.parent?.id !== info.parent) {
      this._detach(node);
      node.parent = this._entry(info.parent);
      node.parent.children.push(node);
    }
    if (node.parent) this._unsorted.add(node.parent);
    return node;
  }

  /** Remove a node with everything below it. Returns its parent. @param {string} id */
  remove(id) {
    const node = this.nodes.get(id);
    if (!node || !node.parent) return null;
    const { parent } = node;
    this._detach(node);
    for (const each of subtree(node)) this.nodes.delete(each.id);
    return parent;
  }

  /** Sort new children and compute the rows. */
  update() {
    for (const node of this._unsorted) node.children.sort((one, two) => one.position - two.position);
    this._unsorted.clear();
    this.rows = [];
    const stack = this.root ? [this.root] : [];
    if (this.root) Object.assign(this.root, { depth: 0, place: 1 });
    while (stack.length) {
      const node = /** @type {TreeNode} */ (stack.pop());
      node.row = this.rows.push(node) - 1;
      if (!node.isOpen) continue;
      for (let index = node.children.length - 1; index >= 0; index -= 1) {
        const child = node.children[index];
        child.depth = node.depth + 1;
        child.place = index + 1;
        stack.push(child);
      }
    }
  }

  /** Expand or collapse all nodes. The root stays expanded. @param {boolean} isOpen */
  openAll(isOpen) {
    for (const node of this.nodes.values()) node.isOpen = isOpen;
    if (this.root) this.root.isOpen = true;
  }

  /** Return a node if it is in a row. @param {string} id */
  visible(id) {
    const node = this.nodes.get(id);
    return node && this.rows[node.row] === node ? node : null;
  }

  /** @param {string} id @returns {TreeNode} */
  _entry(id) {
    let node = this.nodes.get(id);
    if (!node) {
      node = { id, parent: null, children: [], position: 0, isExternal: false, isReplaced: false, isOpen: false, depth: 0, row: -1, place: 1 };
      this.nodes.set(id, node);
    }
    return node;
  }

  /** @param {TreeNode} node */
  _detach(node) {
    const siblings = node.parent?.children;
    if (siblings) siblings.splice(siblings.indexOf(node), 1);
    node.parent = null;
  }
}

/** Return the ancestors of a node, the root first. @param {TreeNode} node */
export function ancestors(node) {
  const found = [];
  for (let each = node.parent; each; each = each.parent) found.push(each);
  return found.reverse();
}

/** Return a node and all nodes below it. @param {TreeNode} node */
export function subtree(node) {
  const found = [node];
  for (let index = 0; index < found.length; index += 1) {
    for (const child of found[index].children) found.push(child);
  }
  return found;
}

/** Return the row that a key of a WAI-ARIA tree leads to, or null. Expanding and collapsing is up to the caller.
    @param {TreeModel} model @param {TreeNode | null} active @param {string} key @param {number} page */
export function rowAfter(model, active, key, page) {
  const last = model.rows.length - 1;
  const at = active ? active.row : -1;
  const rows = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: last, PageDown: at + page, PageUp: at - page };
  if (key in rows) return model.rows[Math.max(0, Math.min(last, rows[key]))] || null;
  if (!active) return null;
  if (key === "ArrowLeft") return active.parent;
  if (key === "ArrowRight") return active.children[0] || null;
  return null;
}
