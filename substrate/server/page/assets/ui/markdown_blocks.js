// Divides Markdown into blocks and a block into parts. Pure: text in, data out.

const FENCE = /^( {0,3})(`{3,}|~{3,})\s*([^\s`]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})(?:\s+(.*?))?(?:\s+#+)?\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])(\s+)(.*)$/;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}>/;
const TABLE_LINE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

/** @typedef {{kind: "code" | "heading" | "rule" | "quote" | "list" | "table" | "paragraph", source: string, from: number}} Block */

/** Return the blocks of a text, each with its source and its offset. A fence that is still open is code.
    @param {string} text @param {number} [from] @returns {Block[]} */
export function splitBlocks(text, from = 0) {
  const lines = text.slice(from).split("\n");
  const blocks = /** @type {Block[]} */ ([]);
  let offset = from;
  for (let at = 0; at < lines.length; ) {
    const { kind, end } = blockAt(lines, at);
    const source = lines.slice(at, end).join("\n");
    if (kind) blocks.push({ kind, source, from: offset });
    offset += source.length + 1;
    at = end;
  }
  return blocks;
}

/** Return the blocks of a text that continues another one; blocks that cannot have changed are the same objects.
    @param {string} text @param {string} before @param {Block[]} known */
export function continueBlocks(text, before, known) {
  // The line at the end may have been incomplete: it can change its own block and join the one before.
  const kept = known.length - 2;
  if (kept <= 0 || !text.startsWith(before)) return splitBlocks(text);
  return [...known.slice(0, kept), ...splitBlocks(text, known[kept].from)];
}

/** @param {string[]} lines @param {number} at @returns {{kind: Block["kind"] | null, end: number}} */
function blockAt(lines, at) {
  const line = lines[at];
  if (line.trim() === "") return { kind: null, end: at + 1 };
  const fence = FENCE.exec(line);
  if (fence) return { kind: "code", end: fenceEnd(lines, at, fence[2]) };
  if (HEADING.test(line)) return { kind: "heading", end: at + 1 };
  if (RULE.test(line)) return { kind: "rule", end: at + 1 };
  if (QUOTE.test(line)) return { kind: "quote", end: whileLine(lines, at, (each) => QUOTE.test(each)) };
  if (ITEM.test(line)) return { kind: "list", end: listEnd(lines, at) };
  if (isTable(lines, at)) return { kind: "table", end: whileLine(lines, at + 2, (each) => each.includes("|") && each.trim() !== "") };
  let end = at + 1;
  while (end < lines.length && lines[end].trim() !== "" && !startsBlock(lines[end]) && !isTable(lines, end)) end += 1;
  return { kind: "paragraph", end };
}

const startsBlock = (line) => FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || ITEM.test(line);
const isTable = (/** @type {string[]} */ lines, at) => lines[at].includes("|") && at + 1 < lines.length && TABLE_LINE.test(lines[at + 1]) && lines[at + 1].includes("-");
const indentOf = (line) => line.length - line.trimStart().length;

/** @param {string[]} lines @param {number} at @param {(line: string) => boolean} holds */
function whileLine(lines, at, holds) {
  while (at < lines.length && holds(lines[at])) at += 1;
  return at;
}

/** @param {string[]} lines @param {number} at @param {string} marks */
function fenceEnd(lines, at, marks) {
  for (let end = at + 1; end < lines.length; end += 1) {
    const text = lines[end].trim();
    if (text.startsWith(marks) && text === marks[0].repeat(text.length)) return end + 1;
  }
  return lines.length;
}

/** @param {string[]} lines @param {number} start */
function listEnd(lines, start) {
  const [, indent, mark] = /** @type {RegExpExecArray} */ (ITEM.exec(lines[start]));
  let at = start + 1;
  while (at < lines.length) {
    const line = lines[at];
    const item = ITEM.exec(line);
    if (line.trim() === "") {
      const next = whileLine(lines, at, (each) => each.trim() === "");
      if (next >= lines.length || !(indentOf(lines[next]) > indent.length || isSibling(lines[next], indent, mark))) return at;
      at = next;
    } else if (RULE.test(line) && indentOf(line) <= indent.length) return at;
    else if (indentOf(line) > indent.length) {
      const fence = FENCE.exec(line.trimStart());
      at = fence ? fenceEnd(lines, at, fence[2]) : at + 1;
    } else if (item ? !isSibling(line, indent, mark) : startsBlock(line)) return at;
    else at += 1; // the next item, or a line that continues a paragraph
  }
  return at;
}

/** Whether a line is another item of the same list. @param {string} line @param {string} indent @param {string} mark */
function isSibling(line, indent, mark) {
  const item = ITEM.exec(line);
  return item !== null && item[1].length <= indent.length + 1 && /\d/.test(item[2]) === /\d/.test(mark);
}

/** Return the parts of fenced code. @param {string} source */
export function codeParts(source) {
  const lines = source.split("\n");
  const [, indent, marks, language] = /** @type {RegExpExecArray} */ (FENCE.exec(lines[0]));
  const isClosed = lines.length > 1 && lines[lines.length - 1].trim().startsWith(marks);
  const code = lines.slice(1, isClosed ? -1 : undefined).map((line) => (line.startsWith(indent) ? line.slice(indent.length) : line));
  return { language, code: code.join("\n") };
}

/** Return the level and the text of a heading. @param {string} source */
export function headingParts(source) {
  const [, marks, text = ""] = /** @type {RegExpExecArray} */ (HEADING.exec(source));
  return { level: marks.length, text };
}

/** Return a quote without its marks. @param {string} source */
export function quoteText(source) {
  return source.split("\n").map((line) => line.replace(/^ {0,3}> ?/, "")).join("\n");
}

/** Return the items of a list, each as a text of its own. @param {string} source */
export function listParts(source) {
  const lines = source.split("\n");
  const [, indent, mark] = /** @type {RegExpExecArray} */ (ITEM.exec(lines[0]));
  const items = /** @type {string[][]} */ ([]);
  let width = 0;
  for (const line of lines) {
    const item = ITEM.exec(line);
    if (item && isSibling(line, indent, mark)) {
      width = item[1].length + item[2].length + Math.min(item[3].length, 4);
      items.push([item[4]]);
    } else items[items.length - 1].push(line.slice(Math.min(indentOf(line), width)));
  }
  return { isOrdered: /\d/.test(mark), start: Number.parseInt(mark, 10) || 1, items: items.map((each) => each.join("\n").trimEnd()) };
}

/** Return the cells of a table. @param {string} source */
export function tableParts(source) {
  const cells = (line) => line.trim().replace(/^\||(?<!\\)\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim().replace(/\\\|/g, "|"));
  const [head, marks, ...rows] = source.split("\n");
  const align = cells(marks).map((mark) => (mark.endsWith(":") ? (mark.startsWith(":") ? "center" : "right") : "left"));
  return { head: cells(head), align, rows: rows.map(cells) };
}
