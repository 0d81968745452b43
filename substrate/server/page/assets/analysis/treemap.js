// A map of the project: the area of a file is its lines of code, its colour the score as a hotspot.

import { count } from "../core/format.js";
import { html, useEffect, useRef, useState } from "../core/html.js";
import { setQuery } from "../core/router.js";

/** @typedef {import("./project.js").TreeNode} TreeNode */
/** @typedef {{x: number, y: number, width: number, height: number}} Box */
/** @typedef {{node: TreeNode, path: string, box: Box}} Tile */

const HEIGHT = 460;
/** Height of the name of a folder, and the smallest folder that shows its files. */
const HEAD = 20;
const LEAST = { width: 70, height: 56 };
/** Smallest tile that has a name. */
const NAMED = { width: 46, height: 18 };
const MAX_TILES = 600;

/** @param {{root: TreeNode, formula: string, query: URLSearchParams}} props */
export function Treemap({ root, formula, query }) {
  const element = useRef(/** @type {HTMLElement | null} */ (null));
  const [width, setWidth] = useState(800);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(Math.max(240, Math.floor(entry.contentRect.width))));
    if (element.current) observer.observe(element.current);
    return () => observer.disconnect();
  }, []);
  const wanted = (query.get("at") || "").split("/").filter(Boolean);
  const { node, path } = descend(root, wanted);
  const tiles = layOut(node, path, { x: 0, y: 0, width, height: HEIGHT });
  const most = Math.max(0, ...tiles.map((tile) => tile.node.hotspot_score || 0)) || 1;
  const open = (/** @type {string} */ at) => setQuery({ at: at || null });
  const steps = path.split("/").filter(Boolean);
  return html`<section aria-label="Map" class="analysis-map">
    <nav class="bar" aria-label="Folder"><button type="button" class="small" disabled=${!steps.length} onClick=${() => open("")}>${root.name || "project"}</button>
      ${steps.map((name, index) => html`<button type="button" class="small" key=${index} disabled=${index === steps.length - 1} onClick=${() => open(steps.slice(0, index + 1).join("/"))}>${name}</button>`)}
      <small class="grow">Area: lines of code. Colour: hotspot score, ${formula}.</small></nav>
    <div class="treemap" ref=${element} style=${{ height: `${HEIGHT}px` }}>
      ${tiles.map((tile) => html`<${TileView} key=${tile.path} tile=${tile} heat=${Math.round((100 * (tile.node.hotspot_score || 0)) / most)} onOpen=${open} />`)}
      ${tiles.length === 0 ? html`<p class="none">No file with lines of code was measured here.</p>` : null}</div>
    ${node.omitted ? html`<small>${count(node.omitted)} more are not in the report.</small>` : null}</section>`;
}

/** @param {{tile: Tile, heat: number, onOpen: (path: string) => void}} props */
function TileView({ tile: { node, path, box }, heat, onOpen }) {
  const style = { left: `${box.x}px`, top: `${box.y}px`, width: `${box.width}px`, height: `${box.height}px`, "--heat": `${Math.round(heat * 0.55)}%` };
  const title = describe(node, path);
  const name = box.width >= NAMED.width && box.height >= NAMED.height ? node.name : "";
  if (!node.children) return html`<div class="tile" role="img" aria-label=${title} title=${title} style=${style}><span aria-hidden="true">${name}</span></div>`;
  return html`<button type="button" class="tile folder" aria-label=${`Open ${title}`} title=${title} style=${style} onClick=${() => onOpen(path)}>${name}</button>`;
}

/** @param {TreeNode} node @param {string} path */
function describe(node, path) {
  const figures = [
    node.files === undefined ? "" : `${count(node.files)} files`,
    `${count(node.nloc || 0)} lines of code`,
    node.max_cyclomatic === undefined ? "" : `cyclomatic complexity up to ${node.max_cyclomatic}`,
    node.commits === undefined ? "" : `${count(node.commits)} commits`,
    node.hotspot_score === undefined ? "" : `hotspot score ${node.hotspot_score}`,
  ];
  return `${path}: ${figures.filter(Boolean).join(", ")}`;
}

/** Return the node at a path, or the last one that exists. @param {TreeNode} root @param {string[]} names */
function descend(root, names) {
  let node = root;
  const path = [];
  for (const name of names) {
    const next = node.children?.find((each) => each.name === name && each.children);
    if (!next) break;
    node = next;
    path.push(name);
  }
  return { node, path: path.join("/") };
}

/** Return the tiles of a folder: its files, and those of inner folders as far as they have room.
    @param {TreeNode} root @param {string} path @param {Box} box */
export function layOut(root, path, box) {
  /** @type {Tile[]} */
  const tiles = [];
  /** @type {Tile[]} */
  const open = [{ node: root, path, box }];
  for (let next = open.shift(); next; next = open.shift()) {
    const { node, path: at, box: inner } = next;
    const children = (node.children || []).filter((each) => (each.nloc || 0) > 0);
    for (const [child, area] of squarify(children, inner)) {
      const tile = { node: child, path: at ? `${at}/${child.name}` : child.name, box: area };
      tiles.push(tile);
      const isLarge = area.width >= LEAST.width && area.height >= LEAST.height;
      if (child.children && isLarge && tiles.length < MAX_TILES) {
        open.push({ ...tile, box: { x: area.x + 2, y: area.y + HEAD, width: area.width - 4, height: area.height - HEAD - 2 } });
      }
    }
  }
  return tiles;
}

/** Divide a box among nodes by their lines of code, in rows whose tiles are nearly square.
    @param {TreeNode[]} nodes @param {Box} box @returns {[TreeNode, Box][]} */
function squarify(nodes, box) {
  const ordered = [...nodes].sort((one, two) => (two.nloc || 0) - (one.nloc || 0));
  const total = ordered.reduce((sum, each) => sum + (each.nloc || 0), 0);
  /** @type {[TreeNode, Box][]} */
  const found = [];
  let { x, y, width, height } = box;
  const scale = (width * height) / (total || 1);
  let at = 0;
  while (at < ordered.length) {
    const side = Math.max(1, Math.min(width, height));
    let end = at + 1;
    let sum = (ordered[at].nloc || 0) * scale;
    while (end < ordered.length && worst(ordered, at, end + 1, sum + (ordered[end].nloc || 0) * scale, side, scale) <= worst(ordered, at, end, sum, side, scale)) {
      sum += (ordered[end].nloc || 0) * scale;
      end += 1;
    }
    const depth = sum / side;
    let along = 0;
    for (const node of ordered.slice(at, end)) {
      const length = ((node.nloc || 0) * scale) / depth;
      found.push([node, width <= height ? { x: x + along, y, width: length, height: depth } : { x, y: y + along, width: depth, height: length }]);
      along += length;
    }
    if (width <= height) [y, height] = [y + depth, height - depth];
    else [x, width] = [x + depth, width - depth];
    at = end;
  }
  return found;
}

/** Return the worst ratio of the sides of the tiles of a row. @param {TreeNode[]} nodes @param {number} from @param {number} to
    @param {number} sum @param {number} side @param {number} scale */
function worst(nodes, from, to, sum, side, scale) {
  const [largest, smallest] = [nodes[from], nodes[to - 1]].map((each) => (each.nloc || 0) * scale);
  return Math.max((side * side * largest) / (sum * sum), (sum * sum) / (side * side * smallest));
}
