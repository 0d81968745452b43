// The frame of the page: navigation, the banner of a lost connection, keys, and the current view.

import { duration } from "../core/format.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "../core/html.js";
import { active, project, questions } from "../core/live.js";
import { go, link, place } from "../core/router.js";
import { schema } from "../core/schema.js";
import { endSession, hasSession } from "../core/session.js";
import { retryAt, retryNow, state } from "../core/connection.js";
import { offered, viewOf } from "../core/views.js";
import { Palette, openPalette } from "./palette.js";
import { forgetSettled } from "./question_log.js";
import { Notice, now } from "./run_parts.js";
import { Toasts, toast } from "./toast.js";
import { title } from "./title.js";

/** The whole page. */
export function Shell() {
  useKeys();
  title.value;
  return html`
    <a class="skip" href="#view" onClick=${skip}>Skip to content</a>
    <${Navigation} />
    <div class="content">
      <${Banner} />
      <main id="view" tabindex="-1"><${CurrentView} /></main>
    </div>
    <${Palette} /><${Keys} /><${Toasts} />`;
}

/** @param {Event} event */
function skip(event) {
  event.preventDefault();
  document.getElementById("view")?.focus();
}

function Navigation() {
  const current = place.value.view || "runs";
  const asked = questions.value.length;
  const running = active.value.length;
  const counts = { runs: running, questions: asked };
  const element = useRef(/** @type {HTMLElement | null} */ (null));
  // On a phone the views are in a row that scrolls.
  useLayoutEffect(() => element.current?.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" }), [current, offered.value.length]);
  return html`<nav class="side" aria-label="Views" ref=${element}>
    <a class="brand" href=${link("runs")}><img src="/page/icon.svg" alt="" width="18" height="18" /> Substrate</a>
    <ul>${offered.value.map((view) => html`<li key=${view.name}>
      <a href=${link(view.name)} aria-current=${view.name === current ? "page" : null} data-view=${view.name}>${view.title}
        ${counts[view.name] ? html`<span class=${`count ${view.name === "questions" ? "urgent" : ""}`}>${counts[view.name]}<span class="unseen"> ${view.name === "questions" ? "open" : "running"}</span></span>` : null}
      </a></li>`)}</ul>
    <footer>
      <div class="where"><span role="status" class="connection" data-state=${state.value}>${{ open: "Connected", lost: "Server not reachable", closed: "Not connected" }[state.value] || "Connecting…"}</span>
        ${project.value ? html`<span class="cut" title=${project.value}>${project.value.split("/").filter(Boolean).slice(-2).join("/")}</span>` : null}</div>
      <span class="version">${schema.value ? `v${schema.value.version}` : ""}
        <button type="button" class="plain" onClick=${openPalette}><kbd>Ctrl K</kbd> palette</button></span>
      ${hasSession() ? html`<button type="button" class="plain" id="logout" onClick=${logOut}>Log out</button>` : null}
    </footer>
  </nav>`;
}

async function logOut() {
  const error = await endSession().catch((failure) => failure.message);
  if (error) {
    toast(`Not logged out: ${error}`);
    return;
  }
  forgetSettled();
  location.reload(); // so that nothing that was read remains in memory
}

/** Shown while the server is not reachable. What is on the page stays readable. */
function Banner() {
  if (state.value !== "lost") return null;
  const left = Math.max(0, retryAt.value - now.value);
  return html`<div class="banner" role="alert">
    <span>The server is not reachable. What is shown may be out of date. ${left > 999 ? `Next attempt in ${duration(left)}.` : "Connecting…"}</span>
    <button type="button" onClick=${retryNow}>Retry now</button></div>`;
}

/** The components of the views that are loaded, by name. @type {Map<string, any>} */
const loaded = new Map();
/** The views that are being loaded. @type {Map<string, Promise<void>>} */
const loading = new Map();

/** Load the current view. Resolves when it can be shown, or a notice in its place. */
export function loadView() {
  const info = viewOf(place.peek().view);
  if (!info || loaded.has(info.name)) return Promise.resolve();
  const known = loading.get(info.name);
  if (known) return known;
  const isOver = info.load().then((module) => loaded.set(info.name, module.View), (error) => loaded.set(info.name, () => html`
    <${Notice} title="This view could not be loaded"><p>${error.message}</p><button type="button" onClick=${() => location.reload()}>Reload the page</button><//>`)).then(() => {});
  loading.set(info.name, isOver);
  return isOver;
}

function CurrentView() {
  const { view, parts, query } = place.value;
  const [, refresh] = useState(0);
  const info = viewOf(view);
  useLayoutEffect(() => {
    if (info && !loaded.has(info.name)) loadView().then(() => refresh((count) => count + 1));
  }, [info?.name]);
  if (!info) return html`<${Notice} title="This page has no such view"><p>The address names the view <code>${view}</code>. Choose one from the list of views, or <a href=${link("runs")}>show all runs</a>.</p><//>`;
  const View = loaded.get(info.name);
  if (schema.value !== null && !offered.value.includes(info)) {
    return html`<${Notice} title=${`${info.title} is switched off`}><p>This server runs without the activation <code>${info.activation}</code>.</p><//>`;
  }
  return View ? html`<${View} key=${info.name} parts=${parts} query=${query} />` : null;
}

function useKeys() {
  useEffect(() => {
    let goes = false;
    const onKey = (/** @type {KeyboardEvent} */ event) => {
      if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
        event.preventDefault();
        openPalette();
        return;
      }
      const target = /** @type {HTMLElement} */ (event.target);
      if (target.closest("input,textarea,select,[contenteditable=true],dialog") || event.ctrlKey || event.metaKey || event.altKey) return;
      const view = offered.peek().find((each) => each.key === event.key);
      if (goes && view) {
        event.preventDefault();
        go(view.name);
      } else if (event.key === "/") {
        const search = /** @type {HTMLElement | null} */ (document.querySelector("main input[type=search]"));
        event.preventDefault();
        if (search) search.focus();
        else openPalette();
      } else if (event.key === "?") /** @type {HTMLDialogElement} */ (document.getElementById("keys")).showModal();
      goes = event.key === "g";
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
}

function Keys() {
  const dialog = useRef(/** @type {HTMLDialogElement | null} */ (null));
  const rows = [["Ctrl K", "open the command palette"], ["/", "search in the view"], ["?", "show this list"],
    ...offered.value.map((view) => [`g ${view.key}`, `go to ${view.title}`]),
    ["j k", "next and previous entry of a list"], ["Enter", "open the selected entry"], ["f", "follow the end of the output"], ["Ctrl Enter", "run the form, or send the message"],
    ["a r e c", "accept, reject, edit or comment a change of a file"]];
  return html`<dialog id="keys" ref=${dialog} aria-labelledby="keys-title"><h2 id="keys-title">Keyboard</h2>
    <dl>${rows.map(([keys, text]) => html`<div key=${keys}><dt>${keys.split(" ").map((key) => html`<kbd>${key}</kbd> `)}</dt><dd>${text}</dd></div>`)}</dl>
    <button type="button" onClick=${() => dialog.current?.close()}>Close</button></dialog>`;
}
