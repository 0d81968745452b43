// The tabs of open documents and of changes that wait for an answer.

import { call } from "../core/connection.js";
import { readable } from "../core/format.js";
import { html, useEffect, useRef, useState } from "../core/html.js";
import { go } from "../core/router.js";
import { attempt } from "../ui/toast.js";
import { diffs, documents } from "./ide.js";
import { diffLink, fileLink, nameOf } from "./places.js";

/** `file` and `diff` are what is shown. @param {{file: string, diff: string}} props */
export function Tabs({ file, diff }) {
  const [closing, setClosing] = useState("");
  const list = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => list.current?.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" }), [file, diff, documents.value.size, diffs.value.size]);
  const leave = (/** @type {string} */ path) => {
    if (path !== file) return;
    const next = [...documents.peek().keys()].filter((each) => each !== path).pop();
    if (next) location.hash = fileLink(next);
    else go("files");
  };
  const close = (/** @type {string} */ path, discard = false) => attempt(async () => {
    try {
      await call("ide.close_document", { path, discard });
      leave(path);
    } catch (failure) {
      if (/** @type {any} */ (failure).code !== "unsaved") throw failure;
      setClosing(path);
    }
  });
  if (!documents.value.size && !diffs.value.size) return null;
  return html`<nav class="file-tabs" aria-label="Open files and changes" ref=${list}><ul class="plain">
    ${[...diffs.value.values()].map((each) => html`<li key=${each.diff} class="file-tab" data-kind="diff"><a href=${diffLink(each.diff)} aria-current=${each.diff === diff ? "page" : null} title=${readable(each.path)}><span aria-hidden="true">± </span>${nameOf(each.path)}<span class="unseen"> waits for an answer</span></a></li>`)}
    ${[...documents.value.values()].map((each) => html`<li key=${each.path} class="file-tab"><a href=${fileLink(each.path)} aria-current=${each.path === file ? "page" : null} title=${readable(each.path)}>${nameOf(each.path)}${each.dirty ? html`<span class="dirty"> ●<span class="unseen"> unsaved</span></span>` : null}</a>
      <button type="button" class="plain" aria-label=${`Close ${nameOf(each.path)}`} onClick=${() => close(each.path)}>✕</button></li>`)}</ul>
    ${closing ? html`<${CloseDialog} path=${closing} onDone=${(/** @type {string} */ choice) => {
      setClosing("");
      if (choice === "save") attempt(async () => {
        await call("ide.save_document", { path: closing });
        await close(closing);
      });
      else if (choice === "discard") close(closing, true);
    }} />` : null}</nav>`;
}

/** @param {{path: string, onDone: (choice: string) => void}} props */
function CloseDialog({ path, onDone }) {
  const dialog = useRef(/** @type {HTMLDialogElement | null} */ (null));
  useEffect(() => dialog.current?.showModal(), []);
  return html`<dialog ref=${dialog} aria-labelledby="unsaved" onClose=${() => onDone("")}><h2 id="unsaved">${nameOf(path)} has unsaved changes</h2>
    <div class="bar"><button type="button" class="primary" onClick=${() => onDone("save")} autofocus>Save</button><button type="button" onClick=${() => onDone("")}>Keep it open</button><button type="button" class="danger" onClick=${() => onDone("discard")}>Close without saving</button></div></dialog>`;
}
