// Markdown as elements: headings, lists, quotes, code, tables, emphasis and links. What it does not
// know, HTML included, stays text. Text that is appended renders only the blocks that change.

import { html, h, useMemo, useRef } from "../core/html.js";
import { codeParts, continueBlocks, headingParts, listParts, quoteText, splitBlocks, tableParts } from "./markdown_blocks.js";
import { copy } from "./toast.js";

/** @typedef {import("./markdown_blocks.js").Block} BlockSource */

/** A text in Markdown. @param {{text: string}} props */
export function Markdown({ text }) {
  const known = useRef({ text: "", blocks: /** @type {BlockSource[]} */ ([]) });
  if (known.current.text !== text) known.current = { text, blocks: continueBlocks(text, known.current.text, known.current.blocks) };
  return html`<div class="markdown">${blocksOf(known.current.blocks)}</div>`;
}

const blocksOf = (/** @type {BlockSource[]} */ blocks) => blocks.map(({ kind, source, from }) => html`<${Block} key=${from} kind=${kind} source=${source} />`);

/** A block. Its elements are made again only if its source changes. @param {{kind: BlockSource["kind"], source: string}} props */
function Block({ kind, source }) {
  return useMemo(() => RENDER[kind](source), [kind, source]);
}

/** @type {Record<BlockSource["kind"], (source: string) => any>} */
const RENDER = {
  paragraph: (source) => html`<p>${inline(source)}</p>`,
  rule: () => html`<hr />`,
  quote: (source) => html`<blockquote>${blocksOf(splitBlocks(quoteText(source)))}</blockquote>`,
  heading: (source) => {
    const { level, text } = headingParts(source);
    // The headings of the page itself end at the second level.
    return h(`h${Math.min(6, level + 2)}`, {}, inline(text));
  },
  code: (source) => {
    const { language, code } = codeParts(source);
    return html`<div class="code"><div class="code-bar"><span>${language || "text"}</span><button type="button" class="plain small" onClick=${() => copy(code)}>Copy<span class="unseen"> the code</span></button></div>
      <pre tabindex="0" role="region" aria-label=${language ? `Code, ${language}` : "Code"}><code>${code}</code></pre></div>`;
  },
  list: (source) => {
    const { isOrdered, start, items } = listParts(source);
    const rows = items.map((item) => html`<li>${itemOf(item)}</li>`);
    return isOrdered ? html`<ol start=${start}>${rows}</ol>` : html`<ul>${rows}</ul>`;
  },
  table: (source) => {
    const { head, align, rows } = tableParts(source);
    const style = (index) => ({ textAlign: align[index] || "left" });
    return html`<div class="wide" tabindex="0" role="region" aria-label="Table"><table>
      <thead><tr>${head.map((cell, index) => html`<th scope="col" style=${style(index)}>${inline(cell)}</th>`)}</tr></thead>
      <tbody>${rows.map((row) => html`<tr>${head.map((_, index) => html`<td style=${style(index)}>${inline(row[index] || "")}</td>`)}</tr>`)}</tbody></table></div>`;
  },
};

/** The content of a list item: text alone is not a paragraph. @param {string} text */
function itemOf(text) {
  const task = /^\[([ xX])\]\s+/.exec(text);
  const mark = task ? html`<span role="img" aria-label=${task[1] === " " ? "to do" : "done"}>${task[1] === " " ? "☐" : "☑"}</span> ` : null;
  const blocks = splitBlocks(task ? text.slice(task[0].length) : text);
  return html`${mark}${blocks.map((block, index) => (index === 0 && block.kind === "paragraph" ? inline(block.source) : html`<${Block} key=${block.from} kind=${block.kind} source=${block.source} />`))}`;
}

// Escapes and code come first: nothing inside them has a meaning. Then images and links, emphasis,
// addresses and line breaks.
const INLINE = new RegExp([
  /\\([!-/:-@[-`{-~])/, /(?<!`)(`+)(?!`)([\s\S]*?[^`])\2(?!`)/, /(!?)\[([^\]\n]*)\]\(<?((?:[^()\s<>]|\([^()\s]*\))+)>?(?:\s+"[^"]*")?\)/,
  /\*\*(?=\S)((?:[^*]|\*(?!\*)|\*(?=\*\*(?!\*)))+?)\*\*(?!\*)/, /(?<!\w)__(?=\S)([^_]+)__(?!\w)/, /(?<![\w*])\*(?=\S)([^*\n]+)\*(?!\w)/, /(?<!\w)_(?=\S)([^_\n]+)_(?!\w)/, /~~([^~\n]+)~~/,
  /<?(https?:\/\/[^\s<>]+|mailto:[^\s<>]+)>?/, /(?: {2,}|\\)\n/,
].map((each) => each.source).join("|"), "g");

/** @param {string} text @returns {any[]} */
function inline(text) {
  const nodes = [];
  let from = 0;
  for (const found of text.matchAll(INLINE)) {
    nodes.push(text.slice(from, found.index), marked(found));
    from = found.index + found[0].length;
  }
  nodes.push(text.slice(from));
  return nodes;
}

/** @param {RegExpMatchArray} found */
function marked([whole, escaped, ticks, code, image, label, address, bold, bold2, italic, italic2, struck, bare]) {
  if (escaped) return escaped;
  if (ticks) return html`<code>${code}</code>`;
  // An image would be a request to another server: it is a link.
  if (address) return linkTo(address, label ? (image ? label : inline(label)) : address) || whole;
  if (bold || bold2) return html`<strong>${inline(bold || bold2)}</strong>`;
  if (italic || italic2) return html`<em>${inline(italic || italic2)}</em>`;
  if (struck) return html`<s>${inline(struck)}</s>`;
  if (!bare) return html`<br />`;
  const [, url, rest] = /** @type {RegExpExecArray} */ (/^(.*?)([.,;:!?'"*)\]]*)$/.exec(bare));
  return whole.startsWith("<") ? linkTo(bare, bare) : html`${linkTo(url, url)}${rest}`;
}

/** @param {string} address @param {any} label */
function linkTo(address, label) {
  const href = safeLink(address);
  return href && html`<a href=${href} target="_blank" rel="noopener noreferrer">${label}</a>`;
}

/** Return an address if it leads to the web or to a mailbox; null otherwise, as for a script. @param {string} address */
export function safeLink(address) {
  return /^(https?:\/\/|mailto:)[^\s\u0000-\u001f]+$/i.test(address) ? address : null;
}
