// The titles of trees: from the metadata, else the first text of the tree, else a short id.

import { call } from "../core/connection.js";
import { signal } from "../core/html.js";

/** @typedef {import("./open_tree.js").TreeInfo} TreeInfo */

const MAX_CHARACTERS = 80;
/** The first text of each tree without a title; empty if it has none. @type {Map<string, string>} */
const firstTexts = new Map();
/** @type {TreeInfo[]} */
const wanted = [];
const known = signal(0);
let isLoading = false;

/** Return the title of a tree. The first text of a tree without one is loaded when it is needed; the
    caller is updated then. @param {TreeInfo} tree */
export function treeTitle(tree) {
  const { title } = tree.metadata || {};
  if (typeof title === "string" && title.trim()) return title;
  known.value;
  const text = firstTexts.get(tree.tree_id);
  if (text === undefined && !wanted.includes(tree)) {
    wanted.push(tree);
    load();
  }
  return text || `Tree ${tree.tree_id.slice(0, 8)}`;
}

/** Return the first line of a text, at most as long as a title. @param {string} text */
function firstLine(text) {
  const line = text.trim().split("\n", 1)[0].replace(/^#+ /, "");
  return line.length > MAX_CHARACTERS ? `${line.slice(0, MAX_CHARACTERS)} …` : line;
}

/** Load first texts one after the other: a list shows a screen of trees at a time. */
async function load() {
  if (isLoading) return;
  isLoading = true;
  for (let tree = wanted[0]; tree; tree = wanted[0]) {
    const { tree_id, root } = tree;
    const page = await call("arbor.node_get_children", { tree_id, node_id: root, limit: 1 }).catch(() => ({ nodes: [] }));
    const [first] = page.nodes;
    firstTexts.set(tree_id, first ? firstLine(first.content || first.handle?.text || "") : "");
    wanted.shift();
    known.value += 1;
  }
  isLoading = false;
}
