// Content that a page of messages leaves out because it is long or binary; it is read on demand.

import { call } from "../core/connection.js";
import { count, size } from "../core/format.js";
import { html, useEffect, useState } from "../core/html.js";
import { Markdown } from "../ui/markdown.js";

/** @typedef {import("./rows.js").Message} Message */

/** Images up to this many characters of base64 are shown without a click. */
const SHOWN_CHARACTERS = 1_500_000;

/** Read the content of a message. @param {string | undefined} tree @param {Message} message @returns {Promise<{text: string, error: string}>} */
async function read(tree, message) {
  try {
    const node = await call("arbor.node_get", { tree_id: tree, node_id: message.node_id });
    return { text: (node.node || node).content || "", error: "" };
  } catch (error) {
    return { text: "", error: error instanceof Error ? error.message : String(error) };
  }
}

/** A text that is too long for a page of messages. @param {{message: Message, tree?: string}} props */
export function LongText({ message, tree }) {
  const [found, setFound] = useState(/** @type {{text: string, error: string} | null} */ (null));
  if (found?.error) return html`<p class="error" role="alert">${found.error}</p>`;
  if (found) return message.kind === "assistant" ? html`<${Markdown} text=${found.text} />` : html`<pre class="typed">${found.text}</pre>`;
  return html`<button type="button" class="small" onClick=${async () => setFound(await read(tree, message))}>Show all ${count(message.size || 0)} characters</button>`;
}

/** An attachment of a stored message. @param {{message: Message, tree?: string}} props */
export function StoredAttachment({ message, tree }) {
  const type = message.mime_type || "";
  const isImage = type.startsWith("image/");
  const label = `${message.name || "attachment"} · ${message.size ? size(isImage ? message.size * 0.75 : message.size) : type}`;
  if (isImage && tree) return html`<${StoredImage} message=${message} tree=${tree} label=${label} />`;
  if (message.text === undefined) return html`<p class="stored-file">${label}</p>`;
  return html`<details class="stored-file"><summary>${message.name || "attachment"} <small>${type}</small></summary>
    <pre tabindex="0" role="region" aria-label=${`Content of ${message.name}`}>${message.text}</pre></details>`;
}

/** @param {{message: Message, tree: string, label: string}} props */
function StoredImage({ message, tree, label }) {
  const [found, setFound] = useState(/** @type {{text: string, error: string} | null} */ (null));
  const show = async () => setFound(await read(tree, message));
  useEffect(() => {
    if ((message.size || 0) <= SHOWN_CHARACTERS) show();
  }, [message.node_id]);
  if (found?.text) return html`<img class="stored-image" src=${`data:${message.mime_type};base64,${found.text}`} alt=${message.name || "Attached image"} />`;
  return html`<p class="stored-file">${label} ${found?.error ? html`<span class="error">${found.error}</span>` : html`<button type="button" class="small" onClick=${show}>Show</button>`}</p>`;
}
