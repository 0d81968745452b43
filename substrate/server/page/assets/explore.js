// The view of everything that can be called: namespaces, methods, and a form for each.

import { copyPanel } from "./copyas.js";
import { button, h, perFrame, replace, trouble } from "./dom.js";
import { SchemaForm } from "./form.js";
import { jsonTree } from "./jsontree.js";
import { markdown } from "./markdown.js";
import { go, link } from "./router.js";
import { beginRun } from "./runs.js";
import { loadSchema, methodsOf } from "./schema.js";
import { Tree, TreeNode } from "./tree.js";

const DRAFTS = new Map();

/** Show the methods, and the one that is named. */
export function showExplore(parts, place) {
  const search = h("input", { type: "search", id: "search", placeholder: "Search  ( / )", "aria-label": "Search methods", autocomplete: "off" });
  const main = h("section", { class: "pane main", tabindex: "0", "aria-label": "The method" });
  const tree = new Tree({
    name: "Methods by namespace",
    label: (node) => treeLabel(node),
    onSelect: (node) => node.data.method && go("explore", node.data.method.name),
  });
  const count = h("p", { class: "note", role: "status" });
  place.append(h("div", { class: "split" },
    h("div", { class: "pane side" }, search, count, tree.element), main));
  let schema = null;
  let shown = parts[0];
  const fill = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const roots = schema.activations.map((activation) => namespaceNode(activation, words)).filter(Boolean);
    tree.setRoots(roots);
    const number = [...methodsOf(schema).values()].filter((method) => matches(method, words)).length;
    count.textContent = words.length ? `${number} methods found` : `${number} methods`;
  };
  const show = () => {
    if (!shown) replace(main, welcome(schema));
    else replace(main, methodPane(methodsOf(schema).get(shown), shown));
  };
  search.addEventListener("input", perFrame(() => schema && fill()));
  search.addEventListener("keydown", (event) => {
    const first = tree.rows.find((node) => node.data.method);
    if (event.key === "Enter" && first) tree.select(first);
    else if (event.key === "ArrowDown") tree.element.focus();
    else if (event.key === "Escape") {
      search.value = "";
      fill();
    }
  });
  loadSchema().then((found) => {
    schema = found;
    fill();
    show();
  }, (error) => replace(main, trouble(error)));
  const leave = () => tree.close();
  leave.update = (next) => {
    [shown] = next;
    if (schema) show();
    return true;
  };
  return leave;
}

function treeLabel({ data }) {
  if (data.method) {
    return [h("span", { class: "name" }, data.method.name.split(".").pop()), h("span", { class: "about" }, firstLine(data.method.description))];
  }
  return [h("span", { class: "name namespace" }, data.activation.namespace), h("span", { class: "about" }, firstLine(data.activation.description))];
}

const firstLine = (text) => (text || "").split("\n")[0];

function matches(method, words) {
  const text = `${method.name} ${method.title || ""} ${method.description}`.toLowerCase();
  return words.every((word) => text.includes(word));
}

function namespaceNode(activation, words) {
  const node = new TreeNode({ activation });
  for (const method of activation.methods) if (matches(method, words)) node.add(new TreeNode({ method }, { leaf: true }));
  for (const child of activation.children || []) {
    const inner = namespaceNode(child, words);
    if (inner) node.add(inner);
  }
  if (!node.children) return null;
  node.expanded = words.length > 0;
  return node;
}

function welcome(schema) {
  return h("div", {}, h("h1", {}, schema.name, " ", h("small", {}, schema.version)),
    h("p", {}, "Choose a method on the left, or press ", h("kbd", {}, "/"), " and search."),
    h("dl", { class: "namespaces" }, schema.activations.map((activation) => [
      h("dt", {}, h("code", {}, activation.namespace), " ", h("small", {}, activation.version)),
      h("dd", {}, firstLine(activation.description))])));
}

const HINTS = { read_only: "changes nothing", destructive: "may destroy", idempotent: "may be repeated", open_world: "reaches outside" };

function methodPane(method, name) {
  if (!method) return h("p", {}, `There is no method ${name}. `, h("a", { href: link("explore") }, "All methods"));
  const form = new SchemaForm(method.params);
  if (DRAFTS.has(name)) form.write(DRAFTS.get(name));
  const panel = copyPanel(method, () => form.draft());
  const said = h("div", { role: "alert" });
  const run = async () => {
    replace(said);
    const read = form.read();
    if (!read) return;
    DRAFTS.set(name, read.value);
    start.disabled = true;
    try {
      const log = await beginRun(name, read.value);
      go("run", log.run);
    } catch (error) {
      if (error.faults && error.faults.length) form.show(error.faults);
      else replace(said, trouble(error));
    } finally {
      start.disabled = false;
    }
  };
  const start = button("Run", run, { class: "primary", title: "Ctrl+Enter" });
  const element = h("article", { class: "method" },
    h("h1", {}, h("code", {}, name)),
    method.title ? h("p", { class: "title" }, method.title) : null,
    h("p", { class: "tags" }, method.streaming ? h("span", { class: "tag" }, "streams") : null, method.scope ? h("span", { class: "tag" }, `scope ${method.scope}`) : null,
      Object.entries(method.hints || {}).filter(([, value]) => value).map(([hint]) => h("span", { class: "tag" }, HINTS[hint] || hint))),
    markdown(method.description),
    h("form", { class: "call", "aria-label": `Call ${name}`, novalidate: true, onsubmit: (event) => {
      event.preventDefault();
      run();
    } }, form.element, h("div", { class: "bar" }, start), said),
    panel.element,
    h("details", { class: "schema" }, h("summary", {}, "Schema"), jsonTree({ params: method.params, ...(method.events ? { events: method.events } : {}), ...(method.result ? { result: method.result } : {}) }, 2)));
  element.addEventListener("input", panel.refresh);
  element.addEventListener("change", panel.refresh);
  element.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      run();
    }
  });
  return element;
}
