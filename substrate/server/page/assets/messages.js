// How the messages of a conversation look, and the branches that leave it.

import { button, h, moment, newId, replace, trouble } from "./dom.js";
import { picture } from "./items.js";
import { jsonTree } from "./jsontree.js";
import { markdown } from "./markdown.js";
import { link } from "./router.js";
import { call } from "./rpc.js";

const WHO = { user: "You", assistant: "Answer", thinking: "Thinking", tool_use: "Tool", tool_result: "Tool's answer", attachment: "Attachment", summary: "Summary" };

/** One message. Without `actions` nothing can be done with it. */
export function messageElement(message, actions) {
  const body = h("div", { class: "body" }, bodyOf(message, actions));
  const notes = [];
  if (message.status) notes.push(h("span", { class: "tag" }, message.status === "streaming" ? "is being written" : message.status));
  if (message.error) notes.push(h("span", { class: "fault" }, message.error.message || ""));
  const bar = h("div", { class: "bar actions" }, notes);
  if (actions && message.node_id) {
    if (message.kind === "user" || message.kind === "assistant") bar.append(button("Edit", () => edit(message, body, actions), { class: "small quiet" }));
    if (message.kind === "assistant") bar.append(button("Answer again", () => actions.onAgain(message), { class: "small quiet" }));
  }
  const when = message.created_ms ? h("time", {}, moment(message.created_ms)) : null;
  return h("div", { class: `message m-${message.kind}`, "data-node": message.node_id },
    h("div", { class: "who" }, WHO[message.kind] || message.kind, message.model ? ` · ${message.model}` : "", " ", when), body,
    bar.childElementCount ? bar : null);
}

function bodyOf(message, actions) {
  const { kind, text } = message;
  if (kind === "attachment") return attachment(message, actions);
  if (message.size) return wholeButton(message, actions, `${message.size} characters`);
  if (kind === "thinking") return h("details", {}, h("summary", {}, "What it thought"), markdown(text || ""));
  if (kind === "tool_use") {
    return [h("code", {}, message.tool_name), message.run ? [" ", h("a", { href: link("run", message.run) }, `run ${message.run}`)] : null, parsed(text)];
  }
  if (kind === "tool_result") return h("details", { class: message.is_error ? "failed" : "" }, h("summary", {}, message.is_error ? "The tool failed" : "The tool answered"), h("pre", { class: "code", tabindex: "0", "aria-label": "What the tool answered" }, text || ""));
  if (kind === "user") return h("div", { class: "said" }, text || "");
  return markdown(text || "");
}

function parsed(text) {
  try {
    return jsonTree(JSON.parse(text || "{}"), 1);
  } catch {
    return h("pre", { class: "code" }, text);
  }
}

function attachment(message, actions) {
  const label = `${message.name || "file"} (${message.mime_type || "?"})`;
  if (message.text) return h("details", {}, h("summary", {}, label), h("pre", { class: "code", tabindex: "0", "aria-label": label }, message.text));
  if (!actions || !message.node_id) return h("span", {}, label);
  return [label, " ", wholeButton(message, actions, "show")];
}

function wholeButton(message, actions, label) {
  const place = h("div");
  place.append(button(label, async () => {
    try {
      const node = await call("arbor.node_get", { tree_id: actions.tree, node_id: message.node_id });
      const isData = node.metadata && node.metadata.encoding === "base64";
      if (isData && String(message.mime_type).startsWith("image/")) replace(place, picture({ data: node.content, mime_type: message.mime_type }));
      else replace(place, isData ? "Its content cannot be shown." : h("pre", { class: "code wrap" }, node.content || ""));
    } catch (error) {
      replace(place, trouble(error));
    }
  }, { class: "small" }));
  return place;
}

function edit(message, body, actions) {
  const field = h("textarea", { rows: 3, value: message.text || "", "aria-label": message.kind === "user" ? "Say this instead" : "Have it say this instead", id: newId("edit") });
  const before = [...body.childNodes];
  const cancel = () => replace(body, before);
  const send = () => {
    cancel();
    actions.onEdit(message, field.value);
  };
  field.addEventListener("keydown", (event) => {
    if (event.key === "Escape") cancel();
    else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) send();
  });
  replace(body, field, h("div", { class: "bar" }, button(message.kind === "user" ? "Send instead" : "Keep this instead", send, { class: "primary small" }), button("Leave it", cancel, { class: "small" })));
  field.focus();
}

// --- branches -------------------------------------------------------------------------------------

const said = (branch) => branch.excerpt || `(${branch.kind || "the beginning"})`;

/** The branches that leave the conversation in one place; null if there are none. */
export function branchesAt(branches, onChoose) {
  if (!branches.length) return null;
  return h("details", { class: "fork" }, h("summary", {}, branches.length === 1 ? "Another branch leaves here" : `${branches.length} other branches leave here`),
    h("ul", { class: "plain" }, branches.map((branch) => h("li", {}, button(said(branch), () => onChoose(branch), { class: "branch", title: `${branch.messages} messages` })))));
}

/** All branches, as a menu. */
export function branchList(branches, onChoose) {
  return [h("summary", {}, branches.length === 1 ? "1 branch" : `${branches.length} branches`),
    h("ul", { class: "plain" }, branches.map((branch) => h("li", {},
      button([branch.current ? "● " : "○ ", said(branch)], () => onChoose(branch), { class: "branch", "aria-pressed": String(branch.current) }),
      h("span", { class: "note" }, ` ${branch.messages} messages, ${moment(branch.created_ms)}${branch.sessions.length ? `, ${branch.sessions.join(", ")}` : ""}`))))];
}
