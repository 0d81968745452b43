// The state of the editor that all clients share, as it is now: connections, documents, changes that
// wait, diagnostics. It is watched while a view shows it.

import { watch } from "../core/connection.js";
import { batch, signal } from "../core/html.js";

/** @typedef {{on: boolean, available: boolean, port: number | null, lock_file: string | null, workspace: string, name: string,
      connections: {id: number, client: string | null, pid: number | null, diffs: number}[],
      checkers: string[], formatters: string[], reason?: string | null}} Status */
/** @typedef {{line: number, character: number}} Position */
/** @typedef {{start: Position, end: Position}} Range */
/** @typedef {{path: string, language: string, version: number, dirty: boolean, active: boolean, eol: string, size: number, lines: number,
      disk: "same" | "changed" | "deleted", selection: Range | null, formatter: string | null}} DocumentInfo */
/** @typedef {{diff: string, path: string, tab_name: string, new_file: boolean, language: string, added: number, removed: number,
      hunks: number, run: number, approval_id: string, client: string | null, asked_ms: number, comments: number}} DiffInfo */
/** @typedef {{diff: string, path: string, outcome: "accepted" | "edited" | "rejected" | "closed", reason: string | null,
      by: string | null, at_ms: number}} DiffClosed */
/** @typedef {{range: Range, severity: string, message: string, source?: string | null, code?: string | number | null}} Diagnostic */
/** @typedef {{path: string, checking: boolean, diagnostics: Diagnostic[], more: number, note: string | null}} FileDiagnostics */
/** @typedef {{path: string, range: Range | null}} Reveal */

/** @type {import("@preact/signals").Signal<Status | null>} */
export const status = signal(null);
/** The open documents by path. @type {import("@preact/signals").Signal<Map<string, DocumentInfo>>} */
export const documents = signal(new Map());
/** The changes that wait for an answer, by number. @type {import("@preact/signals").Signal<Map<string, DiffInfo>>} */
export const diffs = signal(new Map());
/** How changes were closed while they were watched. @type {import("@preact/signals").Signal<Map<string, DiffClosed>>} */
export const closed = signal(new Map());
/** @type {import("@preact/signals").Signal<Map<string, FileDiagnostics>>} */
export const diagnostics = signal(new Map());
/** What a program asked to show last; a view takes it. @type {import("@preact/signals").Signal<Reveal | null>} */
export const reveal = signal(null);
/** Whether the state is complete. */
export const isKnown = signal(false);
/** Why the state cannot be seen. */
export const refusal = signal("");

let watchers = 0;
let end = () => {};

/** Watch until the returned function is called. Several views can do so at once. */
export function watchIde() {
  watchers += 1;
  if (watchers === 1) end = start();
  return () => {
    watchers -= 1;
    if (watchers === 0) end();
  };
}

function start() {
  /** The state that arrives after a connection, until it is complete. @type {any[] | null} */
  let first = [];
  return watch("ide.watch", {}, {
    onBegin: () => { first = []; },
    onEvent: (event) => {
      if (first === null) {
        apply(event);
        return;
      }
      first.push(event);
      if (event.type !== "snapshot_end") return;
      const snapshot = first;
      first = null;
      batch(() => {
        documents.value = new Map();
        diffs.value = new Map();
        diagnostics.value = new Map();
        snapshot.forEach(apply);
        isKnown.value = true;
        refusal.value = "";
      });
    },
    onRefused: (error) => { refusal.value = error.message; },
  });
}

/** @param {any} event */
function apply(event) {
  if (event.type === "ide_status") status.value = event;
  else if (event.type === "document") documents.value = new Map(documents.peek()).set(event.path, event);
  else if (event.type === "document_closed") documents.value = without(documents.peek(), event.path);
  else if (event.type === "diff") diffs.value = new Map(diffs.peek()).set(event.diff, event);
  else if (event.type === "diff_closed") {
    diffs.value = without(diffs.peek(), event.diff);
    closed.value = new Map([...closed.peek(), [event.diff, event]]);
  } else if (event.type === "file_diagnostics") diagnostics.value = new Map(diagnostics.peek()).set(event.path, event);
  else if (event.type === "reveal") reveal.value = event;
}

/** @template V @param {Map<string, V>} map @param {string} key */
function without(map, key) {
  const rest = new Map(map);
  rest.delete(key);
  return rest;
}
