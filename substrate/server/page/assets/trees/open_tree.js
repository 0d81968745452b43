// One tree that is shown: its structure from the server, the previews of the rows in view, and the
// changes that anyone makes to it.

import { RpcError, call, stream, subscribe, watch, whenOpen } from "../core/connection.js";
import { signal } from "../core/html.js";
import { TreeModel, ancestors } from "./tree_model.js";

/** A tree up to this size is shown expanded. */
const MAX_EXPANDED = 5000;
/** Ids in one call, which is the limit of `arbor.node_preview`. */
const BATCH = 100;
/** Previews in memory. Older ones are loaded again when they come into view. */
const MAX_PREVIEWS = 4000;
const COLLECT_MS = 40;
/** Above this number of changes at a time, the structure is loaded again instead. */
const MAX_CHANGES = 2000;
const FRESH_MS = 4000;

/** A tree as the server describes it.
    @typedef {{tree_id: string, root: string, state: string, created_ms: number, updated_ms: number, seq: number,
      owner_id: string, ref_count: number, metadata?: Record<string, any> | null, scheduled_ms?: number, archived_ms?: number}} TreeInfo */

/** A node as the server describes it.
    @typedef {{tree_id: string, node_id: string, created_ms: number, position: number, parent?: string, content?: string, size?: number,
      handle?: {text: string, plugin: string, version: string, method: string}, metadata?: Record<string, any>, replaces?: string, replaced_by?: string}} NodeData */

/** Read a tree without its nodes. Throws RpcError. @param {string} id @returns {Promise<TreeInfo>} */
export async function readTree(id) {
  await whenOpen();
  return new Promise((resolve, reject) => {
    const end = subscribe("arbor.tree_get_skeleton", { tree_id: id }, {
      onItem: ({ result }) => {
        if (result.type === "error") reject(new RpcError(result.message, result.code, result.data));
        else if (result.type === "tree") {
          resolve(result);
          queueMicrotask(() => end());
        }
      },
      onError: reject,
    });
  });
}

/** A tree that is shown. Read `version` to be updated. */
export class OpenTree {
  /** @param {string} id */
  constructor(id) {
    this.id = id;
    this.model = new TreeModel();
    this.version = signal(0);
    /** @type {import("@preact/signals").Signal<TreeInfo | null>} */
    this.info = signal(null);
    /** @type {import("@preact/signals").Signal<Error | null>} */
    this.error = signal(null);
    this.isLoaded = signal(false);
    /** The nodes that were added or changed in the last seconds. @type {Set<string>} */
    this.fresh = new Set();
    /** @type {Map<string, NodeData>} */
    this._previews = new Map();
    /** @type {Set<string>} */
    this._wanted = new Set();
    /** @type {Set<string>} */
    this._loading = new Set();
    /** @type {{kind: string, node_id?: string}[]} */
    this._changes = [];
    this._isClosed = false;
    this._unwatch = () => {};
  }

  /** Load the structure, and follow the changes. */
  async open() {
    this.error.value = null;
    const before = this.model.root ? this.model : null;
    const model = new TreeModel();
    let shownAt = 0;
    let seq = 0;
    try {
      await stream("arbor.tree_get_skeleton", { tree_id: this.id }, (event) => {
        if (event.type === "tree") {
          this.info.value = event;
          seq = event.seq;
        } else if (event.type === "skeleton") event.nodes.forEach((/** @type {any} */ node) => model.put(node));
        if (before || performance.now() - shownAt < 250) return;
        // The first levels of a large tree are shown while the rest arrives.
        shownAt = performance.now();
        this.model = model;
        if (model.root) model.root.isOpen = true;
        this._update();
      });
    } catch (error) {
      this.error.value = /** @type {Error} */ (error);
      return;
    }
    if (this._isClosed) return;
    if (before) for (const node of model.nodes.values()) node.isOpen = before.nodes.get(node.id)?.isOpen || false;
    else if (model.nodes.size <= MAX_EXPANDED) model.openAll(true);
    if (model.root) model.root.isOpen = true;
    this.model = model;
    this._update();
    this.isLoaded.value = true;
    this._watch(seq);
  }

  close() {
    this._isClosed = true;
    this._unwatch();
  }

  /** Return the preview of a node if it is loaded; else request it. @param {string} id */
  preview(id) {
    const known = this._previews.get(id);
    if (!known && !this._loading.has(id)) {
      if (!this._wanted.size) setTimeout(() => this._load(), COLLECT_MS);
      this._wanted.add(id);
    }
    return known;
  }

  /** Expand or collapse nodes. @param {string[]} ids @param {boolean} isOpen */
  expand(ids, isOpen) {
    for (const id of ids) {
      const node = this.model.nodes.get(id);
      if (node) node.isOpen = isOpen;
    }
    this._update();
  }

  /** Expand or collapse all nodes. @param {boolean} isOpen */
  expandAll(isOpen) {
    this.model.openAll(isOpen);
    this._update();
  }

  /** Expand the ancestors of a node, so that it is in a row. @param {string} id */
  reveal(id) {
    const node = this.model.nodes.get(id);
    if (node && !this.model.visible(id)) this.expand(ancestors(node).map((each) => each.id), true);
  }

  /** Load the previews that were requested last; rows that were scrolled past are not loaded. */
  async _load() {
    const ids = [...this._wanted].slice(-BATCH);
    this._wanted.clear();
    if (this._isClosed || !ids.length) return;
    ids.forEach((id) => this._loading.add(id));
    try {
      this._remember(await this._read(ids));
    } catch {
      // A row without a preview requests it again when it is rendered the next time.
    } finally {
      ids.forEach((id) => this._loading.delete(id));
    }
    this.version.value += 1;
  }

  /** @param {string[]} ids @returns {Promise<NodeData[]>} */
  async _read(ids) {
    return (await call("arbor.node_preview", { tree_id: this.id, node_ids: ids })).nodes;
  }

  /** @param {NodeData[]} nodes */
  _remember(nodes) {
    for (const node of nodes) {
      this._previews.delete(node.node_id);
      this._previews.set(node.node_id, node);
    }
    for (const id of this._previews.keys()) {
      if (this._previews.size <= MAX_PREVIEWS) break;
      this._previews.delete(id);
    }
  }

  _update() {
    this.model.update();
    this.version.value += 1;
  }

  /** @param {number} seq */
  _watch(seq) {
    this._unwatch();
    let after = seq;
    // The getter makes a subscription after a loss continue after the last change that was seen.
    this._unwatch = watch("arbor.watch", { tree_id: this.id, get after() { return after; } }, {
      onEvent: (event) => {
        if (event.type !== "change") return;
        after = event.seq;
        if (!this._changes.length) setTimeout(() => this._apply(), COLLECT_MS);
        this._changes.push(event);
      },
      onRefused: (error) => { this.error.value = error; },
    });
  }

  async _apply() {
    const changes = this._changes.splice(0);
    if (this._isClosed) return;
    if (changes.length > MAX_CHANGES) {
      this._previews.clear();
      await this.open();
      return;
    }
    try {
      if (changes.some(({ kind }) => kind.startsWith("tree_"))) this.info.value = await readTree(this.id);
      await this._applyNodes(changes.filter(({ kind, node_id }) => node_id && kind.startsWith("node_")));
    } catch (error) {
      if (/** @type {any} */ (error).code !== "lost") this.error.value = /** @type {Error} */ (error);
    }
  }

  /** @param {{kind: string, node_id?: string}[]} changes */
  async _applyNodes(changes) {
    /** @type {Set<string>} */
    const ids = new Set();
    for (const { kind, node_id: id = "" } of changes) {
      if (kind !== "node_deleted") ids.add(id);
      else {
        const position = this.model.nodes.get(id)?.position;
        const parent = this.model.remove(id);
        // The previous version may be the current one again.
        parent?.children.filter((each) => each.position === position).forEach((each) => ids.add(each.id));
      }
    }
    const wanted = [...ids];
    for (let start = 0; start < wanted.length; start += BATCH) {
      const nodes = await this._read(wanted.slice(start, start + BATCH));
      this._remember(nodes);
      for (const node of nodes) this._applyNode(node);
    }
    this._update();
  }

  /** @param {NodeData} data */
  _applyNode(data) {
    const isNew = !this.model.nodes.has(data.node_id);
    const node = this.model.put(data);
    if (!isNew) return;
    // A node that appears below a leaf would be hidden in a parent that was never expandable.
    if (node.parent?.children.length === 1) node.parent.isOpen = true;
    const old = data.replaces ? this.model.nodes.get(data.replaces) : null;
    if (old) {
      old.isReplaced = true;
      this._previews.delete(old.id);
    }
    this.fresh.add(node.id);
    setTimeout(() => {
      this.fresh.delete(node.id);
      this.version.value += 1;
    }, FRESH_MS);
  }
}
