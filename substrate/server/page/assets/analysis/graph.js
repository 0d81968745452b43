// The dependency graph: files or symbols in columns, each left of what it uses, with its edges.

import { count } from "../core/format.js";
import { html, useState } from "../core/html.js";

/** @typedef {{from: string, to: string, kind: string, uses: number}} Edge */
/** @typedef {{name: string, x: number, y: number}} Place */

const BOX = { width: 190, height: 26 };
const GAP = { x: 70, y: 10 };
const MARGIN = 10;
/** How far an edge that passes a column bends down. */
const SAG = 44;
/** Nodes with the most edges that are drawn, and rows of the table. */
const MAX_NODES = 40;
const MAX_ROWS = 200;
/** Passes that move nodes near what they are connected with. */
const SWEEPS = 4;
const LABEL = 25;

/** @param {{graph: any}} props */
export function Graph({ graph }) {
  const [chosen, setChosen] = useState("");
  if (graph.absent) return html`<p class="e-note">Not measured: ${graph.absent}.</p>`;
  /** @type {Edge[]} */
  const all = graph.top_edges;
  const { nodes, edges, width, height } = layOut(all);
  const cycles = /** @type {string[][]} */ (graph.cycles || []);
  const near = new Set(edges.filter((edge) => edge.from === chosen || edge.to === chosen).flatMap((edge) => [edge.from, edge.to]));
  const isDim = (/** @type {string} */ name) => chosen !== "" && name !== chosen && !near.has(name);
  const summary = `${count(graph.nodes)} nodes, ${count(graph.edges)} edges, ${count(graph.external_uses)} uses of other code`;
  return html`<section aria-label="Dependency graph" class="analysis-graph">
    <p class="dim">${summary}${graph.ambiguous_uses ? `, ${count(graph.ambiguous_uses)} uses of names with several definitions` : ""}.
      ${nodes.size < graph.nodes ? ` Drawn are the ${nodes.size} nodes with the most of the edges in the report.` : ""} Choose a node to see its edges.</p>
    ${cycles.length ? html`<p class="e-note">Import cycles: ${cycles.map((each) => html`<code key=${each.join()}>${each.join(" ⇄ ")}</code> `)}</p>` : null}
    ${nodes.size === 0 ? html`<p class="none">The project has no such dependencies.</p>` : html`<div class="card graph-box" tabindex="0" role="region" aria-label="Drawing">
      <svg width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`} role="group" aria-label=${summary}>
        ${edges.map((edge) => html`<${EdgePath} key=${`${edge.from} ${edge.to}`} nodes=${nodes} edge=${edge} isDim=${chosen !== "" && edge.from !== chosen && edge.to !== chosen} />`)}
        ${[...nodes.values()].map((node) => html`<g key=${node.name} class="graph-node" data-dim=${isDim(node.name) ? "" : null} transform=${`translate(${node.x} ${node.y})`} role="button" tabindex="0"
            aria-pressed=${String(node.name === chosen)} aria-label=${node.name} onClick=${() => setChosen(node.name === chosen ? "" : node.name)}
            onKeyDown=${(/** @type {KeyboardEvent} */ event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); setChosen(node.name === chosen ? "" : node.name); } }}>
          <title>${node.name}</title><rect width=${BOX.width} height=${BOX.height} rx="5" /><text x="8" y=${BOX.height / 2 + 4}>${label(node.name)}</text></g>`)}
      </svg></div>`}
    <${EdgeTable} edges=${chosen ? all.filter((edge) => edge.from === chosen || edge.to === chosen) : all} /></section>`;
}

/** @param {{nodes: Map<string, Place>, edge: Edge, isDim: boolean}} props */
function EdgePath({ nodes, edge, isDim }) {
  const from = /** @type {Place} */ (nodes.get(edge.from));
  const to = /** @type {Place} */ (nodes.get(edge.to));
  const [x, y] = [from.x + BOX.width, from.y + BOX.height / 2];
  const [toX, toY] = [to.x, to.y + BOX.height / 2];
  const bend = Math.max(30, Math.abs(toX - x) / 2);
  const sag = toX - x > GAP.x ? SAG : 0; // below the nodes of the columns between
  return html`<path class="graph-edge" data-dim=${isDim ? "" : null} d=${`M${x} ${y}C${x + bend} ${y + sag} ${toX - bend} ${toY + sag} ${toX} ${toY}`} />`;
}

/** @param {{edges: Edge[]}} props */
function EdgeTable({ edges }) {
  const [isOpen, setOpen] = useState(false);
  return html`<details onToggle=${(/** @type {any} */ event) => setOpen(event.target.open)}><summary>Edges as a table</summary>
    ${isOpen ? html`<div class="analysis-table card" tabindex="0" role="region" aria-label="Edges"><table><thead><tr><th scope="col">From</th><th scope="col">To</th><th scope="col">Kind</th><th scope="col">Uses</th></tr></thead>
      <tbody>${edges.slice(0, MAX_ROWS).map((edge) => html`<tr key=${`${edge.from} ${edge.to} ${edge.kind}`}><td><code>${edge.from}</code></td><td><code>${edge.to}</code></td><td>${edge.kind}</td><td class="number">${count(edge.uses)}</td></tr>`)}</tbody></table></div>` : null}</details>`;
}

/** @param {string} name */
function label(name) {
  return name.length > LABEL ? `…${name.slice(1 - LABEL)}` : name;
}

/** Return the places of the nodes with the most edges: columns by the longest path, without the edges of cycles.
    @param {Edge[]} all */
export function layOut(all) {
  /** @type {Map<string, number>} */
  const degree = new Map();
  for (const edge of all) for (const name of [edge.from, edge.to]) degree.set(name, (degree.get(name) || 0) + 1);
  const names = new Set([...degree].sort((one, two) => two[1] - one[1] || (one[0] < two[0] ? -1 : 1)).slice(0, MAX_NODES).map(([name]) => name));
  const edges = all.filter((edge) => edge.from !== edge.to && names.has(edge.from) && names.has(edge.to));
  const columns = columnsOf(names, edges);
  /** @type {Map<string, Place>} */
  const nodes = new Map();
  columns.forEach((column, index) => column.forEach((name, row) => nodes.set(name, {
    name, x: MARGIN + index * (BOX.width + GAP.x), y: MARGIN + row * (BOX.height + GAP.y),
  })));
  const rows = Math.max(0, ...columns.map((column) => column.length));
  return { nodes, edges, width: 2 * MARGIN + columns.length * (BOX.width + GAP.x) - GAP.x, height: 2 * MARGIN + rows * (BOX.height + GAP.y) + SAG / 2 };
}

/** @param {Set<string>} names @param {Edge[]} edges */
function columnsOf(names, edges) {
  /** @type {Map<string, string[]>} */
  const following = new Map([...names].map((name) => [name, []]));
  for (const edge of edges) following.get(edge.from)?.push(edge.to);
  /** The columns of the nodes that are done; -1 while a node is on the path. @type {Map<string, number>} */
  const depth = new Map();
  const measure = (/** @type {string} */ name) => {
    depth.set(name, -1);
    let most = 0;
    for (const next of following.get(name) || []) {
      if (!depth.has(next)) measure(next);
      most = Math.max(most, (depth.get(next) || 0) + 1); // an edge back to the path counts as 0
    }
    depth.set(name, most);
  };
  for (const name of names) if (!depth.has(name)) measure(name);
  const last = Math.max(0, ...depth.values());
  /** @type {string[][]} */
  const columns = Array.from({ length: names.size ? last + 1 : 0 }, () => []);
  for (const [name, most] of depth) columns[last - most].push(name);
  const full = columns.filter((column) => column.length);
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    const rows = new Map(full.flatMap((column) => column.map((name, row) => /** @type {[string, number]} */ ([name, row]))));
    const mean = (/** @type {string} */ name) => {
      const near = edges.filter((edge) => edge.from === name || edge.to === name).map((edge) => rows.get(edge.from === name ? edge.to : edge.from) || 0);
      return near.reduce((sum, row) => sum + row, 0) / (near.length || 1);
    };
    for (const column of full) column.sort((one, two) => mean(one) - mean(two) || (one < two ? -1 : 1));
  }
  return full;
}
