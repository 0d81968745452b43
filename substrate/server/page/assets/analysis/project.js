// What a run of an analysis has measured so far: its files, and at the end its report.

import { signal } from "../core/html.js";

/** The measurements of a file. What was not measured is absent.
    @typedef {{path: string, language: string, findings: number, lines?: number, nloc?: number, functions?: number,
      max_cyclomatic?: number, max_cognitive?: number, commits?: number, maintainability_index?: number,
      hotspot_score?: number}} FileRow */
/** A folder or a file of the report.
    @typedef {{name: string, children?: TreeNode[], nloc?: number, files?: number, commits?: number,
      hotspot_score?: number, max_cyclomatic?: number, maintainability_index?: number, omitted?: number}} TreeNode */

/** The figures that only the report has: they need the whole project. */
const OF_REPORT = /** @type {const} */ (["commits", "maintainability_index", "hotspot_score"]);

/** Collects the items of a run, as `Feed` of `run/feed.js` reads them. */
export class Project {
  constructor() {
    this.last = 0;
    /** Changes with every part that is added. */
    this.version = signal(0);
    /** @type {Map<string, FileRow>} */
    this.files = new Map();
    /** Source files that were found; undefined until all are known. @type {number | undefined} */
    this.found = undefined;
    this.step = "";
    /** The report in the JSON format. @type {any} */
    this.report = null;
    /** @type {any} */
    this.terminal = null;
  }

  /** @param {{seq: number, event: any}[]} items */
  add(items) {
    for (const { seq, event } of items) {
      this.last = Math.max(this.last, seq);
      this.#add(event);
    }
    this.version.value += 1;
  }

  /** @param {any} event */
  #add(event) {
    if (event.type === "file") this.files.set(event.path, { path: event.path, language: event.language, findings: 0, ...event.metrics });
    else if (event.type === "finding") {
      const file = this.files.get(event.file);
      if (file) file.findings += 1;
    } else if (event.type === "found") this.found = event.files;
    else if (event.type === "progress") this.step = event.message || "";
    else if (event.type === "data") this.#complete(event.value);
    else if (event.type === "complete" || event.type === "error" || event.type === "cancelled") this.terminal = event;
    else if (event.type === "restarted") {
      this.files.clear();
      this.found = undefined;
    }
  }

  /** @param {any} report */
  #complete(report) {
    this.report = report;
    for (const [path, node] of filesOf(report.file_tree?.root)) {
      const file = this.files.get(path);
      if (file) for (const name of OF_REPORT) if (node[name] !== undefined) file[name] = node[name];
    }
  }
}

/** Yield the files of a tree with their paths. @param {TreeNode | undefined} root
    @returns {Generator<[string, TreeNode]>} */
export function* filesOf(root) {
  /** @type {[string, TreeNode][]} */
  const open = (root?.children || []).map((each) => [each.name, each]);
  while (open.length) {
    const [path, node] = /** @type {[string, TreeNode]} */ (open.pop());
    if (node.children) for (const each of node.children) open.push([`${path}/${each.name}`, each]);
    else yield [path, node];
  }
}
