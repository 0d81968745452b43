// The Chat view: the sessions, and the conversation of one of them. On a phone they are two screens.

import { html, useEffect, useMemo, useState } from "../core/html.js";
import { go, link } from "../core/router.js";
import { Composer, attach } from "../chat/composer.js";
import { Conversation } from "../chat/conversation.js";
import { MessageList } from "../chat/message_list.js";
import { ModelPicker } from "../chat/model_picker.js";
import { NewSession } from "../chat/new_session.js";
import { SessionList } from "../chat/session_list.js";
import { SessionSettings } from "../chat/session_settings.js";
import { forkSession, freeName, watchSessions } from "../chat/sessions.js";
import { Notice } from "../ui/run_parts.js";
import { title } from "../ui/title.js";
import { attempt } from "../ui/toast.js";

/** @param {{parts: string[], query: URLSearchParams}} props */
export function View({ parts, query }) {
  const session = parts[0];
  const isNew = !session && query.has("new");
  useEffect(() => watchSessions(), []);
  useEffect(() => {
    title.value = session ? `${session} · Chat` : "";
    return () => { title.value = ""; };
  }, [session]);
  return html`<div class="chat-view" data-open=${session || isNew ? "conversation" : "list"}>
    <${SessionList} current=${session} />
    ${session ? html`<${ConversationPane} key=${session} name=${session} />`
      : isNew ? html`<section class="conversation" aria-label="New session"><${NewSession} /></section>`
      : html`<section class="conversation" aria-label="Conversation"><${Notice} title="No session is open"><p>Choose a session from the list, or create a new one.</p><//></section>`}</div>`;
}

/** @param {{name: string}} props */
function ConversationPane({ name }) {
  const conversation = useMemo(() => new Conversation(name), [name]);
  useEffect(() => () => conversation.close(), [conversation]);
  /** What is unfolded below the header; `node` is the message at which a fork begins. */
  const [panel, setPanel] = useState(/** @type {{kind: "" | "model" | "settings" | "fork", node: string}} */ ({ kind: "", node: "" }));
  const toggle = (/** @type {"model" | "settings" | "fork"} */ kind, node = "") => setPanel(panel.kind === kind && !node ? { kind: "", node: "" } : { kind, node });
  const close = () => setPanel({ kind: "", node: "" });
  const [isOver, setOver] = useState(false);
  const onDragOver = (/** @type {DragEvent} */ event) => {
    if (!event.dataTransfer?.types.includes("Files")) return; // text is dropped into the field
    event.preventDefault();
    setOver(true);
  };
  const onDragLeave = (/** @type {any} */ event) => event.currentTarget.contains(event.relatedTarget) || setOver(false);
  const onDrop = (/** @type {DragEvent} */ event) => {
    setOver(false);
    const files = [...(event.dataTransfer?.files || [])];
    if (!files.length) return;
    event.preventDefault();
    attach(conversation, files);
  };
  const problem = conversation.problem.value;
  const session = conversation.session.value;
  const pressed = (/** @type {string} */ kind) => (panel.kind === kind ? "true" : "false");
  return html`<section class=${`conversation ${isOver ? "over" : ""}`} aria-label="Conversation" onDragOver=${onDragOver} onDragLeave=${onDragLeave} onDrop=${onDrop}>
    <header class="bar conversation-head"><a class="back" href=${link("chat")}>‹<span class="unseen"> Sessions</span></a><h2 class="grow cut" title=${name}>${name}</h2>
      <button type="button" class="small model-button" aria-expanded=${pressed("model")} onClick=${() => toggle("model")}><span class="unseen">Model </span><span class="cut">${session?.model || "…"}</span> ▾</button>
      <button type="button" class="small" aria-expanded=${pressed("settings")} onClick=${() => toggle("settings")}>Settings</button>
      <button type="button" class="small fork-button" aria-expanded=${pressed("fork")} onClick=${() => toggle("fork")}>Fork</button></header>
    ${panel.kind && session ? html`<div class="card conversation-panel">
      ${panel.kind === "model" ? html`<${ModelPicker} value=${session.model} onChange=${(/** @type {string} */ model) => model && attempt(() => conversation.configure({ model }))} /><button type="button" onClick=${close}>Done</button>` : null}
      ${panel.kind === "settings" ? html`<${SessionSettings} conversation=${conversation} onClose=${close} />` : null}
      ${panel.kind === "fork" ? html`<${ForkForm} session=${name} node=${panel.node} onClose=${close} />` : null}</div>` : null}
    ${problem && !session ? html`<${Notice} title="This session could not be opened"><p>${problem.message}</p>
      <div class="bar"><a class="button" href=${link("chat")}>Show all sessions</a><button type="button" onClick=${() => conversation.load()}>Try again</button></div><//>`
      : html`<${MessageList} conversation=${conversation} onFork=${(/** @type {string} */ node) => toggle("fork", node)} />`}
    <${Composer} conversation=${conversation} isOver=${isOver} onModel=${() => setPanel({ kind: "model", node: "" })} />
  </section>`;
}

/** @param {{session: string, node: string, onClose: () => void}} props */
function ForkForm({ session, node, onClose }) {
  const [error, setError] = useState("");
  const submit = async (/** @type {any} */ event) => {
    event.preventDefault();
    try {
      const made = await forkSession(session, event.target.elements.name.value.trim(), node);
      onClose();
      go("chat", made.name);
    } catch (failure) {
      setError(/** @type {Error} */ (failure).message);
    }
  };
  return html`<form class="fork-form" aria-label="Fork" onSubmit=${submit}>
    <p>Create a second session that shares the conversation ${node ? "up to this message" : "so far"}. This session stays as it is.</p>
    <div class="field"><label for="fork-name">Name</label><input id="fork-name" name="name" required value=${freeName(`${session} (fork)`)} autocomplete="off" /></div>
    ${error ? html`<p class="error" role="alert">${error}</p>` : null}
    <div class="bar"><button type="submit" class="primary">Create fork</button><button type="button" onClick=${onClose}>Cancel</button></div></form>`;
}
