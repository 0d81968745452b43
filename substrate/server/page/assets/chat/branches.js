// Branches: which messages have alternatives, and the switcher between them.

import { call, stream } from "../core/connection.js";
import { html } from "../core/html.js";
import { attempt } from "../ui/toast.js";

/** The alternatives of a message: `ends` are the last messages of their newest branches.
    @typedef {Map<string, {index: number, ends: string[]}>} Siblings */

/** Return the alternatives of all messages of a session; empty if nothing branches.
    @param {{name: string, position: {tree_id: string}}} session @returns {Promise<Siblings>} */
export async function loadSiblings(session) {
  /** @type {Siblings} */
  const siblings = new Map();
  const { branches } = await call("chat.branches", { session: session.name, limit: 2 });
  if (branches.length < 2) return siblings;
  /** @type {Map<string, string[]>} */
  const children = new Map();
  await stream("arbor.tree_get_skeleton", { tree_id: session.position.tree_id }, (event) => {
    for (const { node_id, parent } of event.nodes || []) {
      if (!parent) continue;
      const known = children.get(parent);
      if (known) known.push(node_id);
      else children.set(parent, [node_id]);
    }
  });
  for (const nodes of children.values()) {
    if (nodes.length < 2) continue;
    const ends = nodes.map((node) => newestEnd(node, children));
    nodes.forEach((node, index) => siblings.set(node, { index, ends }));
  }
  return siblings;
}

/** @param {string} node @param {Map<string, string[]>} children */
function newestEnd(node, children) {
  let end = node;
  for (let below = children.get(end); below; below = children.get(end)) end = below[below.length - 1];
  return end;
}

/** The switcher "2/3" at a message with alternatives.
    @param {{conversation: import("./conversation.js").Conversation, nodes: (string | undefined)[]}} props */
export function BranchSwitcher({ conversation, nodes }) {
  const found = nodes.map((node) => (node ? conversation.siblings.value.get(node) : undefined)).find(Boolean);
  if (!found) return null;
  const { index, ends } = found;
  const move = (/** @type {number} */ by) => attempt(() => conversation.setHead(ends[index + by]));
  const isBusy = conversation.turn.value !== null;
  return html`<span class="switcher" role="group" aria-label="Branch">
    <button type="button" class="plain" aria-label="Previous branch" disabled=${index === 0 || isBusy} onClick=${() => move(-1)}>‹</button>
    <span class="switcher-place"><span class="unseen">Branch </span>${index + 1}/${ends.length}</span>
    <button type="button" class="plain" aria-label="Next branch" disabled=${index === ends.length - 1 || isBusy} onClick=${() => move(1)}>›</button></span>`;
}
