// One file in an editor: its bar, the editor, conflicts with other writers, and what checkers found.

import { RpcError, call } from "../core/connection.js";
import { count, readable } from "../core/format.js";
import { html, useEffect, useRef, useSignal, useState } from "../core/html.js";
import { load, save } from "../core/storage.js";
import { Comparison } from "../diffs/comparison.js";
import { Notice } from "../ui/run_parts.js";
import { attempt, toast } from "../ui/toast.js";
import { Draft } from "./draft.js";
import { diagnostics, documents, reveal, status } from "./ide.js";

const WRAP = "files.wrap";
/** Problems that are listed at first. */
const LISTED = 50;

/** @param {{path: string}} props */
export function FilePane({ path }) {
  const host = useRef(/** @type {HTMLDivElement | null} */ (null));
  const draft = useSignal(/** @type {Draft | null} */ (null));
  const [wrap, setWrap] = useState(() => load(WRAP, false));
  const [error, setError] = useState(/** @type {RpcError | null} */ (null));
  const [attempts, setAttempts] = useState(0);
  useEffect(() => {
    let isOver = false;
    setError(null);
    call("ide.open_document", { path }).then(({ document: info, text }) => {
      if (!isOver && host.current) draft.value = new Draft(info, text, host.current, { wrap });
    }, (failure) => isOver || setError(failure));
    return () => {
      isOver = true;
      draft.peek()?.close();
      draft.value = null;
    };
  }, [path, wrap, attempts]);
  useEffect(() => {
    const wanted = reveal.value;
    if (!draft.value || wanted?.path !== path) return;
    reveal.value = null;
    if (wanted.range) draft.value.select(wanted.range, false);
  }, [reveal.value, draft.value]);
  useEffect(() => {
    // What was typed last is sent a moment later.
    const onLeave = (/** @type {Event} */ event) => draft.peek()?.isUnsent.peek() && event.preventDefault();
    addEventListener("beforeunload", onLeave);
    return () => removeEventListener("beforeunload", onLeave);
  }, []);
  const changeWrap = () => {
    save(WRAP, !wrap);
    setWrap(!wrap);
  };
  if (error) return html`<${Unreadable} path=${path} error=${error} onRetry=${() => setAttempts(attempts + 1)} />`;
  return html`<section class="file-pane" aria-label="File">
    ${draft.value ? html`<${Bar} draft=${draft.value} wrap=${wrap} onWrap=${changeWrap} /><${Conflict} draft=${draft.value} />` : html`<p class="dim" role="status">Opening the file …</p>`}
    <div class="editor-host" ref=${host}></div>
    ${draft.value ? html`<${Problems} draft=${draft.value} /><${Foot} draft=${draft.value} />` : null}</section>`;
}

/** @param {{path: string, error: RpcError, onRetry: () => void}} props */
function Unreadable({ path, error, onRetry }) {
  const titles = { not_text: "This file is not text", too_big: "This file is too large for the editor", not_found: "There is no such file", invalid_params: "This cannot be opened" };
  return html`<${Notice} title=${titles[error.code] || "The file cannot be opened"}><p><code>${readable(path)}</code></p><p>${readable(error.message)}</p>
    <button type="button" onClick=${onRetry}>Try again</button><//>`;
}

/** @param {{draft: Draft, wrap: boolean, onWrap: () => void}} props */
function Bar({ draft, wrap, onWrap }) {
  const info = documents.value.get(draft.path);
  const isDirty = Boolean(info?.dirty) || draft.isUnsent.value;
  const { first, last, isEmpty } = draft.selection.value;
  const mention = () => attempt(async () => {
    const sent = await call("ide.mention", { path: draft.path, ...(isEmpty ? {} : { line_start: first, line_end: last }) });
    toast(sent ? `Mentioned to ${sent === 1 ? "one program" : `${sent} programs`}.` : "No program is connected. Type /ide in Claude Code to connect it.");
  });
  const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
    if (event.code !== "KeyK" || !event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    mention();
  };
  useEffect(() => {
    addEventListener("keydown", onKeyDown);
    return () => removeEventListener("keydown", onKeyDown);
  });
  return html`<div class="bar pane-bar"><h1 class="grow" title=${readable(draft.path)}>${readable(draft.path)}</h1>
    <span role="status" class="outcome" data-kind=${isDirty ? "asking" : "done"}>${isDirty ? "Unsaved" : "Saved"}</span>
    <button type="button" aria-pressed=${String(wrap)} onClick=${onWrap}>Wrap</button>
    ${info?.formatter ? html`<button type="button" title=${info.formatter} onClick=${() => attempt(() => draft.format())}>Format</button>` : null}
    <button type="button" title=${isEmpty ? "Mention this file to the connected programs" : `Mention lines ${first + 1} to ${last + 1} to the connected programs`} onClick=${mention}>Mention this <kbd>Alt K</kbd></button>
    <button type="button" class="primary" disabled=${!isDirty && !draft.conflict.value} onClick=${() => draft.save()}>Save <kbd>Ctrl S</kbd></button></div>`;
}

/** What to do when the file or the document was changed elsewhere. @param {{draft: Draft}} props */
function Conflict({ draft }) {
  const [disk, setDisk] = useState(/** @type {string | null} */ (null));
  const kind = draft.conflict.value;
  useEffect(() => setDisk(null), [kind]);
  const compare = () => attempt(async () => setDisk(await call("ide.read_file", { path: draft.path })));
  const drop = (/** @type {any} */ method) => attempt(() => draft.drop(method));
  const overwrite = () => attempt(() => draft.save(true));
  const error = draft.error.value;
  if (!kind) return error ? html`<p class="error" role="alert">${readable(error)}</p>` : null;
  const text = {
    window: "Another window has changed this document while you edited it.",
    disk_changed: "Another program has changed this file on the disk. Your changes are not saved.",
    disk_deleted: "This file was deleted on the disk. Its text is still here.",
  }[kind] || "The file cannot be saved as it is.";
  return html`<div class="conflict" role="alert"><div class="bar"><span class="grow">${text}</span>
      ${kind === "window" ? html`<button type="button" onClick=${() => drop("ide.read_document")}>Take the other text</button><button type="button" class="danger" onClick=${() => attempt(() => draft.keep())}>Keep mine</button>` : null}
      ${kind === "disk_changed" ? html`<button type="button" onClick=${compare}>Compare</button><button type="button" onClick=${() => drop("ide.revert_document")}>Read the file again</button><button type="button" class="danger" onClick=${overwrite}>Overwrite the file</button>` : null}
      ${kind === "disk_deleted" ? html`<button type="button" onClick=${overwrite}>Save it again</button>` : null}</div>
    ${disk === null ? null : html`<${Comparison} old=${disk} text=${draft.text} language=${documents.value.get(draft.path)?.language || ""} titles=${["on disk", "your text"]} />`}</div>`;
}

/** What the checkers found in the file. @param {{draft: Draft}} props */
function Problems({ draft }) {
  const [shown, setShown] = useState(LISTED);
  const found = diagnostics.value.get(draft.path);
  if (!found) return null;
  const total = found.diagnostics.length + found.more;
  if (!total) return html`<p class="problems-none dim" role="status">${found.checking ? "Checking …" : found.note ? readable(found.note) : "No problems were found."}</p>`;
  return html`<details class="problems"><summary>${count(total)} ${total === 1 ? "problem" : "problems"}${found.checking ? ", checking again …" : ""}</summary>
    <ul class="plain">${found.diagnostics.slice(0, shown).map(({ range, severity, message, source, code }) => html`<li><button type="button" class="plain" onClick=${() => draft.select(range)}>
      <span class="tag" data-severity=${severity}>${severity}</span> <span class="dim">line ${range.start.line + 1}</span> ${readable(message)} <small>${[source, code].filter(Boolean).join(" ")}</small></button></li>`)}
      ${total > shown ? html`<li><button type="button" class="small" onClick=${() => setShown(shown + LISTED)}>Show more</button>${found.more ? html` <small>${count(found.more)} are not listed.</small>` : null}</li>` : null}</ul></details>`;
}

/** @param {{draft: Draft}} props */
function Foot({ draft }) {
  const { first, last, isEmpty, lines } = draft.selection.value;
  const names = (status.value?.connections || []).length;
  const info = documents.value.get(draft.path);
  const where = isEmpty ? `Line ${first + 1}` : `Lines ${first + 1} to ${last + 1} selected (${lines})`;
  return html`<p class="pane-foot dim"><span>${where}</span><span>${info?.language || ""}</span>${draft.eol === "\r\n" ? html`<span>CRLF</span>` : null}
    <span>${names ? `${names === 1 ? "One program sees" : `${names} programs see`} the selection` : "No program is connected"}</span></p>`;
}
