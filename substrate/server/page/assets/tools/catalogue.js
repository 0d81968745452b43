// The tools of the server: which methods are tools, how they are grouped and found.

import { computed } from "../core/html.js";
import { schema } from "../core/schema.js";

/** Namespaces of the server itself. */
const SYSTEM = ["plexus", "approvals", "health"];
/** Namespaces that come with Substrate, in the order of the list. All others are plugins and mounts. */
const BUILT_IN = ["bash", "chat", "claudecode", "arbor", "tasks", "ide", "python", "evaluate", "analysis", "templates", "gateway"];
const HINTS = { read_only: "read-only", destructive: "destructive", idempotent: "idempotent" };

/** A method as `plexus.schema` describes it.
    @typedef {{name: string, title?: string, description: string, streaming: boolean, scope?: string, role?: string,
      hints?: Record<string, boolean>, params: any, result?: any, events?: any}} Method */
/** @typedef {{name: string, about: string, isSystem: boolean, tools: Method[]}} Group */

/** The groups of tools: plugins first, then what is built in, then the server itself. */
export const groups = computed(() => {
  /** @type {Group[]} */
  const found = [];
  const walk = (activation) => {
    const tools = activation.methods.filter((/** @type {Method} */ method) => !method.role);
    if (tools.length) found.push({ name: activation.namespace, about: firstLine(activation.description), isSystem: SYSTEM.includes(activation.namespace), tools });
    (activation.children || []).forEach(walk);
  };
  (schema.value?.activations || []).forEach(walk);
  const rank = (/** @type {Group} */ group) => BUILT_IN.indexOf(group.name);
  const others = found.filter((group) => !group.isSystem).sort((one, two) => rank(one) - rank(two));
  const system = SYSTEM.flatMap((name) => found.filter((group) => group.name === name)).flatMap((group) => group.tools);
  return system.length ? [...others, { name: "System", about: "The server itself: runs, questions, health", isSystem: true, tools: system }] : others;
});

/** All tools by name. */
export const tools = computed(() => new Map(groups.value.flatMap((group) => group.tools).map((tool) => [tool.name, tool])));

/** Return the groups with only the tools that contain all words. @param {Group[]} all @param {string} text */
export function search(all, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return all;
  const matches = (/** @type {Method} */ tool) => {
    const content = `${tool.name} ${tool.title || ""} ${tool.description}`.toLowerCase();
    return words.every((word) => content.includes(word));
  };
  return all.map((group) => ({ ...group, tools: group.tools.filter(matches) })).filter((group) => group.tools.length);
}

/** Return the title of a tool; without one it is made from the name. @param {Method} tool */
export function toolTitle(tool) {
  const name = (tool.name.split(".").pop() || tool.name).replace(/_/g, " ");
  return tool.title || name[0].toUpperCase() + name.slice(1);
}

/** Return the short facts about a tool; with `isShort` only those that tell it from others of its namespace.
    @param {Method} tool @param {boolean} [isShort] @returns {{text: string, kind?: string}[]} */
export function tagsOf(tool, isShort = false) {
  const hints = Object.entries(tool.hints || {}).filter(([name, value]) => value && HINTS[name] && !(isShort && name === "idempotent"));
  const isPlainScope = tool.scope === "read" || tool.scope === tool.name.slice(0, tool.name.lastIndexOf("."));
  return [
    ...(tool.streaming ? [{ text: "streams" }] : []),
    ...hints.map(([name]) => ({ text: HINTS[name], kind: name })),
    ...(tool.scope && !(isShort && isPlainScope) ? [{ text: `scope ${tool.scope}` }] : []),
  ];
}

/** Return the first line of a text. @param {string | undefined} text */
export function firstLine(text) {
  return (text || "").split("\n", 1)[0];
}

/** Return the names that are nearest to a name that does not exist. @param {string} name */
export function nearest(name) {
  const wanted = name.toLowerCase();
  const last = wanted.split(".").pop() || wanted;
  const rank = (/** @type {Method} */ tool) => {
    const known = tool.name.toLowerCase();
    return Math.min(distance(wanted, known), distance(last, known.split(".").pop() || known) + 1);
  };
  const ranked = [...tools.value.values()].map((tool) => ({ tool, rank: rank(tool) })).sort((one, two) => one.rank - two.rank);
  const limit = Math.min(Math.max(3, wanted.length / 2), (ranked[0]?.rank ?? 0) + 1);
  return ranked.filter((each) => each.rank <= limit).slice(0, 5).map(({ tool }) => tool);
}

/** The number of edits between two texts. @param {string} one @param {string} two */
function distance(one, two) {
  let row = Array.from({ length: two.length + 1 }, (_, index) => index);
  for (let i = 1; i <= one.length; i += 1) {
    const next = [i];
    for (let j = 1; j <= two.length; j += 1) next[j] = Math.min(next[j - 1] + 1, row[j] + 1, row[j - 1] + (one[i - 1] === two[j - 1] ? 0 : 1));
    row = next;
  }
  return row[two.length];
}
