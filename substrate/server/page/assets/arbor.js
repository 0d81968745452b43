// The view of arbor's trees: a list, each drawn as a tree that opens where it is wanted, live.

import { ArborTree } from "./arbortree.js";
import { button, h, moment, replace, trouble } from "./dom.js";
import { jsonTree } from "./jsontree.js";
import { link } from "./router.js";
import { call } from "./rpc.js";

const PAGE = 100;

/** Show the trees, and the one that is named. */
export function showArbor(parts, place) {
  const list = h("ul", { class: "plain chooser" });
  const main = h("section", { class: "pane main", tabindex: "0", "aria-label": "The tree" });
  const note = h("div");
  place.append(h("div", { class: "split" },
    h("div", { class: "pane side" }, h("h1", {}, "Trees"), note, list), main));
  let open = null;
  let shown = null;
  const mark = () => {
    for (const each of list.querySelectorAll("a")) {
      if (each.dataset.tree === shown) each.setAttribute("aria-current", "true");
      else each.removeAttribute("aria-current");
    }
  };
  const show = (tree) => {
    shown = tree || null;
    if (open) open.close();
    open = null;
    mark();
    if (!tree) replace(main, h("p", { class: "note" }, "Choose a tree."));
    else {
      open = new TreeView(tree);
      replace(main, open.element);
    }
  };
  const more = async (after) => {
    try {
      const page = await call("arbor.tree_list", { limit: PAGE, ...(after ? { after } : {}) });
      list.append(...page.trees.map(treeEntry));
      if (!list.childElementCount) replace(note, h("p", {}, "There are no trees yet. ", h("a", { href: link("explore", "arbor.tree_create") }, "Make one"), "."));
      if (page.next) {
        const next = h("li", {}, button("More trees", () => {
          next.remove();
          more(page.next);
        }, { class: "small" }));
        list.append(next);
      }
      mark();
    } catch (error) {
      replace(note, trouble(error));
    }
  };
  more(null);
  show(parts[0]);
  const leave = () => open && open.close();
  leave.update = (next) => {
    show(next[0]);
    return true;
  };
  return leave;
}

function treeEntry(tree) {
  const title = (tree.metadata && tree.metadata.title) || tree.tree_id;
  return h("li", {}, h("a", { href: link("arbor", tree.tree_id), "data-tree": tree.tree_id },
    h("span", { class: "name" }, String(title)), h("span", { class: "about" }, `${tree.state === "active" ? "" : `${tree.state}, `}changed ${moment(tree.updated_ms)}`)));
}

/** One tree, and the node that was chosen in it. */
class TreeView {
  constructor(tree) {
    this._detail = h("div", { class: "detail", role: "region", "aria-label": "The chosen node", tabindex: "0" }, h("p", { class: "note" }, "Choose a node to see all of it."));
    this._note = h("p", { class: "note", role: "status" }, "Reading…");
    this._tree = new ArborTree(tree, {
      onSelect: (node) => this._show(node),
      onNote: (text) => { this._note.textContent = text; },
    });
    this.element = h("section", { class: "arbor" }, h("h2", {}, h("code", {}, tree)), this._note, this._tree.element, this._detail);
    this._tree.open().catch((error) => replace(this._note, trouble(error)));
  }

  close() {
    this._tree.close();
  }

  async _show(node) {
    const { node_id: id, tree_id: tree } = node;
    let whole = node;
    try {
      if (node.size) whole = await call("arbor.node_get", { tree_id: tree, node_id: id });
    } catch (error) {
      replace(this._detail, trouble(error));
      return;
    }
    const { content, handle, metadata } = whole;
    replace(this._detail,
      h("p", {}, h("code", {}, id), ` made ${moment(whole.created_ms)}`, whole.replaced_by ? ", replaced by a later version" : ""),
      content ? h("pre", { class: "code wrap" }, content) : null,
      handle ? h("p", {}, h("span", { class: "tag" }, "handle"), " ", h("code", {}, handle.text)) : null,
      metadata ? jsonTree(metadata, 2, "metadata") : null);
  }
}
