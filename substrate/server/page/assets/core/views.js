// The views of the page. A view is a module that is loaded when it is first shown; a view of an
// activation is offered only if the server has that activation. An activation adds its view with a
// module in `views/` and a line here (docs/page.md).

import { computed } from "./html.js";
import { schema } from "./schema.js";

/** A view: its name in addresses, its title, the key after `g`, and the namespace it needs. `load`
    returns a module whose `View` is a component with the properties `parts` and `query`.
    @typedef {{name: string, title: string, key: string, activation?: string,
      load: () => Promise<{View: (props: {parts: string[], query: URLSearchParams}) => any}>}} ViewInfo */

/** The views in the order of the navigation. @type {ViewInfo[]} */
export const VIEWS = [
  { name: "tools", title: "Tools", key: "t", load: () => import("../views/tools.js") },
  { name: "runs", title: "Runs", key: "r", load: () => import("../views/runs.js") },
  { name: "questions", title: "Questions", key: "q", activation: "approvals", load: () => import("../views/questions.js") },
  { name: "tasks", title: "Tasks", key: "k", activation: "tasks", load: () => import("../views/tasks.js") },
  { name: "chat", title: "Chat", key: "c", activation: "chat", load: () => import("../views/chat.js") },
  { name: "trees", title: "Trees", key: "e", activation: "arbor", load: () => import("../views/trees.js") },
  { name: "files", title: "Files", key: "f", activation: "ide", load: () => import("../views/files.js") },
  { name: "python", title: "Python", key: "p", activation: "python", load: () => import("../views/python.js") },
  { name: "analysis", title: "Analysis", key: "a", activation: "analysis", load: () => import("../views/analysis.js") },
  { name: "status", title: "Status", key: "s", activation: "health", load: () => import("../views/status.js") },
];
const FIRST = "runs";

/** Return the view of this name, that of an empty address, or undefined. @param {string} name */
export function viewOf(name) {
  return VIEWS.find((view) => view.name === (name || FIRST));
}

/** The views that this server offers; all of them until its schema is known. */
export const offered = computed(() => {
  const known = schema.value;
  if (known === null) return VIEWS;
  const namespaces = new Set(known.activations.map((/** @type {any} */ each) => each.namespace));
  return VIEWS.filter((view) => !view.activation || namespaces.has(view.activation));
});
