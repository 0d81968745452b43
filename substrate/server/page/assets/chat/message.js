// The rows of a conversation: a message of the user, an answer of the model, a summary.

import { count } from "../core/format.js";
import { html, useLayoutEffect, useRef, useState } from "../core/html.js";
import { questions } from "../core/live.js";
import { load, save } from "../core/storage.js";
import { Markdown } from "../ui/markdown.js";
import { Ago } from "../ui/run_parts.js";
import { copy } from "../ui/toast.js";
import { BranchSwitcher } from "./branches.js";
import { LongText, StoredAttachment } from "./stored_content.js";
import { partsOf } from "./rows.js";
import { ToolCall } from "./tool_call.js";

/** @typedef {import("./conversation.js").Conversation} Conversation */
/** @typedef {import("./rows.js").Message} Message */
/** @typedef {import("./rows.js").Row} RowData */

const STATUS = { cancelled: "■ Stopped", error: "✕ Failed", interrupted: "⚠ Interrupted: the server was stopped", streaming: "● Answering" };
const editKey = (/** @type {string} */ node) => `chat.edit.${node}`;

/** A row. @param {{row: RowData, conversation: Conversation, onFork: (node: string) => void}} props */
export function Row({ row, conversation, onFork }) {
  if (row.kind === "summary") {
    return html`<details class="row-summary"><summary>Summary of the earlier messages, which the model sees in their place</summary><${Markdown} text=${row.messages[0].text || ""} /></details>`;
  }
  if (row.kind === "user") return html`<${UserRow} row=${row} conversation=${conversation} onFork=${onFork} />`;
  return row.isLive ? html`<${LiveAnswer} conversation=${conversation} />` : html`<${Answer} row=${row} conversation=${conversation} onFork=${onFork} />`;
}

/** @param {{row: RowData, conversation: Conversation, onFork: (node: string) => void}} props */
function UserRow({ row, conversation, onFork }) {
  const message = row.messages[row.messages.length - 1];
  const attachments = row.messages.slice(0, -1);
  const [isEditing, setEditing] = useState(() => Boolean(message.node_id && load(editKey(message.node_id), null)));
  const tree = conversation.session.value?.position.tree_id;
  const text = message.text || "";
  return html`<article class="row-user" aria-label="You">
    ${attachments.map((each) => html`<${StoredAttachment} key=${each.node_id} message=${each} tree=${tree} />`)}
    ${isEditing ? html`<${EditForm} message=${message} conversation=${conversation} onClose=${() => setEditing(false)} />` : html`
      <div class="bubble">${message.size ? html`<${LongText} message=${message} tree=${tree} />`
        // What a person types is shown as it was typed, unless it contains code blocks.
        : text.includes("```") ? html`<${Markdown} text=${text} />` : html`<div class="typed">${text}</div>`}</div>
      <footer class="row-actions"><${BranchSwitcher} conversation=${conversation} nodes=${row.messages.map((each) => each.node_id)} />
        ${message.created_ms ? html`<small><${Ago} at=${message.created_ms} /></small>` : null}
        <button type="button" class="plain" onClick=${() => copy(text)}>Copy</button>
        <button type="button" class="plain" disabled=${conversation.turn.value !== null} onClick=${() => setEditing(true)}>Edit</button>
        <button type="button" class="plain" onClick=${() => onFork(row.node || "")}>Fork</button></footer>`}
  </article>`;
}

/** @param {{row: RowData, conversation: Conversation, onFork: (node: string) => void}} props */
function Answer({ row, conversation, onFork }) {
  const parts = partsOf(row.messages);
  const last = row.messages[row.messages.length - 1];
  const edited = row.messages.findLast((each) => each.kind === "assistant" && each.node_id && !each.size);
  const [isEditing, setEditing] = useState(() => Boolean(edited?.node_id && load(editKey(edited.node_id), null)));
  const text = parts.filter((part) => part.kind === "assistant").map((part) => part.text || "").join("\n\n");
  const isBusy = conversation.turn.value !== null;
  const tree = conversation.session.value?.position.tree_id;
  const model = row.messages.findLast((each) => each.model)?.model;
  return html`<article class="row-answer" aria-label="Answer">
    ${parts.map((part, index) => (isEditing && edited && part.node_id === edited.node_id
      ? html`<${EditForm} key=${part.node_id} message=${edited} conversation=${conversation} onClose=${() => setEditing(false)} />`
      : html`<${Part} key=${part.node_id || index} part=${part} tree=${tree} />`))}
    ${last.status ? html`<p class="row-status" data-status=${last.status}>${STATUS[last.status] || last.status}${last.error ? html`: ${last.error.message}` : null}</p>` : null}
    ${last.stop_reason === "max_tokens" ? html`<p class="row-status">The answer was cut at the maximum number of tokens. Raise it in the settings, then regenerate.</p>` : null}
    <footer class="row-actions"><${BranchSwitcher} conversation=${conversation} nodes=${row.messages.map((each) => each.node_id)} />
      <small>${model || ""}${last.created_ms ? html` · <${Ago} at=${last.created_ms} />` : null} <${Usage} messages=${row.messages} /></small>
      <button type="button" class="plain" onClick=${() => copy(text)}>Copy</button>
      <button type="button" class="plain" disabled=${isBusy || !row.node} onClick=${() => conversation.regenerate(row.node || "")}>${last.status && last.status !== "streaming" ? "Retry" : "Regenerate"}</button>
      ${edited ? html`<button type="button" class="plain" disabled=${isBusy} onClick=${() => setEditing(true)}>Edit</button>` : null}
      ${row.node ? html`<button type="button" class="plain" onClick=${() => onFork(row.node || "")}>Fork</button>` : null}</footer>
  </article>`;
}

/** Tokens and cost of an answer. @param {{messages: Message[]}} props */
function Usage({ messages }) {
  const used = messages.map((each) => each.usage).filter((each) => each !== undefined);
  if (!used.length) return null;
  const sum = (/** @type {"input_tokens" | "output_tokens" | "cost_usd"} */ name) => used.reduce((total, each) => total + (each[name] || 0), 0);
  const cost = sum("cost_usd");
  return html`<span title="Tokens of the input and of the output">· ${count(sum("input_tokens"))} in, ${count(sum("output_tokens"))} out${cost ? ` · $${cost.toFixed(4)}` : ""}</span>`;
}

/** The answer in progress. @param {{conversation: Conversation}} props */
function LiveAnswer({ conversation }) {
  const turn = conversation.turn.value;
  if (!turn) return null;
  turn.version.value;
  const { parts } = turn;
  const isAsking = questions.value.some((each) => each.run === turn.run.value);
  return html`<article class="row-answer" aria-label="Answer" aria-busy="true">
    ${parts.map((part, index) => html`<${Part} key=${index} part=${part} isLive=${true} isLast=${index === parts.length - 1} />`)}
    <p class="row-status" data-status="streaming"><span class="outcome" data-kind=${isAsking ? "asking" : "running"}><span aria-hidden="true">${isAsking ? "?" : "●"}</span> ${isAsking ? "Waits for your answer" : parts.length ? "Answering" : "Waiting for the model"}</span></p>
  </article>`;
}

/** A part of an answer. @param {{part: Message, tree?: string, isLive?: boolean, isLast?: boolean}} props */
function Part({ part, tree, isLive = false, isLast = false }) {
  if (part.kind === "tool_use") return html`<${ToolCall} part=${part} isLive=${isLive} />`;
  if (part.size) return html`<${LongText} message=${part} tree=${tree} />`;
  if (part.kind === "thinking") {
    return html`<details class="thinking"><summary>${isLive && isLast ? "Thinking…" : "Thoughts"}</summary><${Markdown} text=${part.text || ""} /></details>`;
  }
  if (part.kind === "log") return html`<p class="row-log">${part.level === "warning" ? "⚠ " : ""}${part.text}</p>`;
  if (part.kind === "tool_result") return html`<details class="tool-call"><summary>Tool result</summary><pre class="tool-output" tabindex="0">${part.text}</pre></details>`;
  return html`<${Markdown} text=${part.text || ""} />`;
}

/** The form to edit a message. Its text is stored on every input until it is sent or cancelled.
    @param {{message: Message, conversation: Conversation, onClose: () => void}} props */
function EditForm({ message, conversation, onClose }) {
  const node = message.node_id || "";
  const key = editKey(node);
  const isUser = message.kind === "user";
  const [text, setText] = useState(() => load(key, message.text || ""));
  const [error, setError] = useState("");
  const field = useRef(/** @type {HTMLTextAreaElement | null} */ (null));
  useLayoutEffect(() => field.current?.focus(), []);
  useLayoutEffect(() => {
    if (field.current) field.current.style.height = `${field.current.scrollHeight + 2}px`;
  }, [text]);
  const change = (/** @type {string} */ value) => {
    setText(value);
    save(key, value);
  };
  const cancel = () => {
    save(key, undefined);
    onClose();
  };
  const send = async () => {
    try {
      setError("");
      await conversation.edit(node, text);
      cancel();
    } catch (failure) {
      setError(failure instanceof Error ? failure.message : String(failure));
    }
  };
  const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Escape") cancel();
    else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) send();
  };
  return html`<form class="edit-form" onSubmit=${(/** @type {Event} */ event) => { event.preventDefault(); send(); }}>
    ${error ? html`<p class="error" role="alert">${error}</p>` : null}
    <textarea ref=${field} value=${text} aria-label=${isUser ? "Edit your message" : "Edit the answer"} onInput=${(/** @type {any} */ event) => change(event.target.value)} onKeyDown=${onKeyDown}></textarea>
    <div class="bar"><button type="submit" class="primary small" disabled=${!text.trim()}>${isUser ? "Send in a new branch" : "Save in a new branch"}</button>
      <button type="button" class="small" onClick=${cancel}>Cancel</button> <small>The current branch is kept.</small></div></form>`;
}
