// Files that are sent with a message: reading them, their limits, and how they are shown.

import { size } from "../core/format.js";
import { html } from "../core/html.js";

/** An attachment as `chat.send` accepts it: text, or base64 data with its type.
    @typedef {{name: string, mime_type?: string, text?: string, data?: string}} Attachment */

const MAX_FILES = 20;
/** The server accepts a mebibyte in one request, and closes the connection past it. */
const MAX_REQUEST_BYTES = 1_000_000;

/** Return why a message is too large to send, or an empty string. @param {string} text @param {Attachment[]} files */
export function tooLarge(text, files) {
  const bytes = new TextEncoder().encode(JSON.stringify([text, files])).length;
  if (bytes <= MAX_REQUEST_BYTES) return "";
  return `The message has ${size(bytes)}; the limit is ${size(MAX_REQUEST_BYTES)}, attachments included. Shorten it, or remove an attachment.`;
}

/** Add files to attachments. Returns the new list, and why files were left out.
    @param {Attachment[]} known @param {File[]} files */
export async function addFiles(known, files) {
  const list = [...known];
  /** @type {string[]} */
  const errors = [];
  for (const file of files) {
    if (list.length >= MAX_FILES) {
      errors.push(`${file.name} was not attached: a message can have ${MAX_FILES} attachments.`);
      continue;
    }
    // Reading a large file only to refuse it would freeze the page.
    const made = file.size > MAX_REQUEST_BYTES ? null : await read(file).catch(() => undefined);
    if (made === undefined) errors.push(`${file.name} was not attached: it cannot be read. A folder cannot be attached; choose its files.`);
    else if (made === null || tooLarge("", [...list, made])) {
      errors.push(`${file.name} was not attached: it has ${size(file.size)}, and a message can carry about ${size(MAX_REQUEST_BYTES * 0.74)} of files. Attach a smaller file.`);
    } else list.push(made);
  }
  return { list, errors };
}

/** Read a file: as text if it is valid UTF-8, and as base64 otherwise. @param {File} file @returns {Promise<Attachment>} */
async function read(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  const name = file.name || "pasted";
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    if (!text.includes("\0")) return { name, text, ...(file.type ? { mime_type: file.type } : {}) };
  } catch {
    // It is binary.
  }
  let binary = "";
  for (let at = 0; at < bytes.length; at += 8192) binary += String.fromCharCode(...bytes.subarray(at, at + 8192));
  return { name, data: btoa(binary), mime_type: file.type || "application/octet-stream" };
}

/** Return the size of an attachment in bytes. @param {Attachment} file */
const bytesOf = (file) => (file.data ? Math.floor(file.data.length * 0.75) : new TextEncoder().encode(file.text || "").length);

/** The attachments of a draft, each with a preview. @param {{files: Attachment[], onRemove: (index: number) => void}} props */
export function AttachmentList({ files, onRemove }) {
  if (!files.length) return null;
  return html`<ul class="plain attachments" aria-label="Attachments">${files.map((file, index) => html`<li key=${`${index} ${file.name}`} class="attachment">
    ${file.data && file.mime_type?.startsWith("image/") ? html`<img src=${`data:${file.mime_type};base64,${file.data}`} alt="" />`
      : html`<span class="file-text" aria-hidden="true">${file.text ? file.text.slice(0, 80) : "binary"}</span>`}
    <span class="cut" title=${file.name}>${file.name}</span> <small title=${`${bytesOf(file)} bytes`}>${size(bytesOf(file))}</small>
    <button type="button" class="plain" aria-label=${`Remove ${file.name}`} onClick=${() => onRemove(index)}>✕</button></li>`)}</ul>`;
}
