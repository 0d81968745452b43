// The list of sessions: search, and the actions of each one.

import { call } from "../core/connection.js";
import { html, useEffect, useState } from "../core/html.js";
import { go, link } from "../core/router.js";
import { Ago, Notice } from "../ui/run_parts.js";
import { attempt, toast } from "../ui/toast.js";
import { deleteSession, exportSession, problem, renameSession, sessions } from "./sessions.js";

const SEARCH_MS = 250;
const MIN_SEARCH = 3;
/** Sessions that are listed at once. */
const SHOWN = 200;

/** @param {{current: string | undefined}} props */
export function SessionList({ current }) {
  const [text, setText] = useState("");
  const [shown, setShown] = useState(SHOWN);
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const all = sessions.value;
  const found = (all || []).filter((each) => words.every((word) => `${each.name} ${each.model}`.toLowerCase().includes(word)));
  return html`<section class="session-list" aria-label="Sessions">
    <header class="bar"><h1 class="grow">Chat</h1><a class="button" href=${`${link("chat")}?new=1`}>New session</a></header>
    <input type="search" aria-label="Search sessions and messages" placeholder="Search sessions and messages" value=${text} onInput=${(/** @type {any} */ event) => setText(event.target.value)} />
    ${problem.value ? html`<p class="error" role="alert">${problem.value}</p>` : null}
    ${all && !all.length ? html`<${Notice} title="No sessions yet"><p>A session is a conversation with a model. Create one with “New session”.</p><//>` : null}
    <ul class="plain sessions">${found.slice(0, shown).map((session) => html`<${SessionItem} key=${session.session_id} session=${session} isCurrent=${session.name === current} />`)}</ul>
    ${found.length > shown ? html`<button type="button" class="small" onClick=${() => setShown(shown + SHOWN)}>Show more sessions</button>` : null}
    ${all?.length && !found.length ? html`<p class="dim">No session has this name.</p>` : null}
    <${MessageHits} text=${text.trim()} /></section>`;
}

/** Messages that contain the words. @param {{text: string}} props */
function MessageHits({ text }) {
  const [hits, setHits] = useState(/** @type {any[]} */ ([]));
  useEffect(() => {
    setHits([]);
    if (text.length < MIN_SEARCH) return undefined;
    const timer = setTimeout(() => attempt(async () => setHits((await call("chat.search", { text })).hits)), SEARCH_MS);
    return () => clearTimeout(timer);
  }, [text]);
  if (!hits.length) return null;
  return html`<h2>In messages</h2><ul class="plain sessions">${hits.map((hit) => html`<li key=${hit.node_id}><a class="session-link" href=${link("chat", hit.sessions[0])}>
    <span class="cut">${hit.excerpt}</span><small>${hit.sessions[0]} · <${Ago} at=${hit.created_ms} /></small></a></li>`)}</ul>`;
}

/** @param {{session: import("./conversation.js").Session, isCurrent: boolean}} props */
function SessionItem({ session, isCurrent }) {
  const [open, setOpen] = useState(/** @type {"" | "menu" | "rename" | "delete"} */ (""));
  const [error, setError] = useState("");
  const run = async (/** @type {() => Promise<unknown>} */ action) => {
    setError("");
    try {
      await action();
      setOpen("");
    } catch (failure) {
      setError(/** @type {Error} */ (failure).message);
    }
  };
  const rename = (/** @type {any} */ event) => {
    event.preventDefault();
    const name = event.target.elements.name.value.trim();
    if (name === session.name) setOpen("");
    else if (name) {
      run(async () => {
        await renameSession(session.name, name);
        if (isCurrent) go("chat", name);
      });
    }
  };
  const remove = () => run(async () => {
    await deleteSession(session.name);
    toast(`Deleted ${session.name}`);
    if (isCurrent) go("chat");
  });
  return html`<li><div class="session-item"><a class="session-link" href=${link("chat", session.name)} aria-current=${isCurrent ? "page" : null}>
      <span class="cut session-name">${session.name}</span>
      <small class="session-facts">${session.busy ? html`<span class="answering">● Answering</span> · ` : null}<span class="cut">${session.model}</span> · <${Ago} at=${session.updated_ms} /></small></a>
    <button type="button" class="plain" aria-label=${`Actions for ${session.name}`} aria-expanded=${open ? "true" : "false"} onClick=${() => setOpen(open ? "" : "menu")}>⋯</button></div>
    ${open === "menu" ? html`<div class="bar session-actions"><button type="button" class="small" onClick=${() => setOpen("rename")}>Rename</button>
      <button type="button" class="small" onClick=${() => attempt(() => exportSession(session.name))}>Export</button>
      <button type="button" class="small danger" onClick=${() => setOpen("delete")}>Delete…</button></div>` : null}
    ${open === "rename" ? html`<form class="bar session-actions" onSubmit=${rename}><input name="name" class="grow" aria-label="New name" value=${session.name} autofocus autocomplete="off" />
      <button type="submit" class="small primary">Rename</button><button type="button" class="small" onClick=${() => setOpen("")}>Cancel</button></form>` : null}
    ${open === "delete" ? html`<div class="session-actions" role="group" aria-label=${`Delete ${session.name}`}><p>Delete “${session.name}”? Its messages are removed after a week, unless another session shares them.</p>
      <div class="bar"><button type="button" class="small" onClick=${() => setOpen("")}>Keep</button><button type="button" class="small danger" onClick=${remove}>Delete</button></div></div>` : null}
    ${error ? html`<p class="error" role="alert">${error}</p>` : null}</li>`;
}
