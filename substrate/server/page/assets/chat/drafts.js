// The drafts of messages. They are stored in this browser on every input, so that nothing that was
// typed is lost by a reload, a closed tab or a failed send.
//
// A session has one entry for each tab, so two tabs cannot overwrite each other. A tab without an
// entry takes over the newest one: a draft outlives its tab. Attachments are stored beside it, not
// in it, because they are large and do not change while a person types.

import { batch, signal } from "../core/html.js";
import { load, save } from "../core/storage.js";

/** @typedef {import("./attachments.js").Attachment} Attachment */
/** `key` is the idempotency key of an attempt to send whose outcome is unknown.
    @typedef {{text: string, at: number, key?: string}} Entry */

const TAB = "substrate.tab";
const entriesKey = (/** @type {string} */ session) => `chat.draft.${session}`;
const filesKey = (/** @type {string} */ session, /** @type {string} */ owner) => `chat.files.${session}.${owner}`;

/** Return a random name. `crypto.randomUUID` does not exist on a page over http. */
export function newName() {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

let tab = tabName();

function tabName() {
  try {
    const name = sessionStorage.getItem(TAB) || newName();
    sessionStorage.setItem(TAB, name);
    return name;
  } catch {
    return newName();
  }
}

/** The draft of a session in this tab. */
class Draft {
  /** @param {string} session */
  constructor(session) {
    this.session = session;
    this.text = signal("");
    this.files = signal(/** @type {Attachment[]} */ ([]));
    /** Different drafts of other tabs, newest first. @type {import("@preact/signals").Signal<{owner: string, text: string}[]>} */
    this.others = signal([]);
    /** Whether the browser has stored all of it. */
    this.isStored = signal(true);
    this.isSending = signal(false);
    this.error = signal(/** @type {any} */ (null));
    /** @type {string | undefined} */
    this._key = undefined;
    this._restore();
  }

  /** The idempotency key of this text: the same until it is sent, refused or changed. */
  get key() {
    if (this._key === undefined) {
      this._key = newName();
      this._write();
    }
    return this._key;
  }

  /** @param {string} text */
  setText(text) {
    this.text.value = text;
    this._key = undefined;
    this._write();
  }

  /** @param {Attachment[]} files */
  setFiles(files) {
    this.files.value = files;
    this._key = undefined;
    const isStored = save(filesKey(this.session, tab), files.length ? files : undefined);
    this._write();
    if (!isStored) this.isStored.value = false;
  }

  /** Use a new key for the next attempt: the server has refused this one. */
  renewKey() {
    this._key = undefined;
    this._write();
  }

  /** Remove the draft after it was sent. */
  clear() {
    batch(() => {
      this.error.value = null;
      this.setFiles([]);
      this.setText("");
    });
  }

  /** Take the draft of another tab; the current text is kept as another draft. @param {string} owner */
  take(owner) {
    const entries = this._read();
    const taken = entries[owner];
    if (!taken) return;
    delete entries[owner];
    if (this.text.peek()) entries[newName()] = { text: this.text.peek(), at: Date.now() };
    save(entriesKey(this.session), entries);
    this.setText(taken.text);
  }

  /** Delete the draft of another tab. @param {string} owner */
  discard(owner) {
    const entries = this._read();
    delete entries[owner];
    save(filesKey(this.session, owner), undefined);
    this._store(entries);
  }

  /** Another tab has changed the stored drafts. */
  onStorage() {
    const entries = this._read();
    // A duplicated tab has the name of its original until one of them finds out.
    if (entries[tab] && entries[tab].text !== this.text.peek()) {
      tab = newName();
      if (this.text.peek()) this._write();
    }
    this._listOthers(entries);
  }

  _restore() {
    const entries = this._read();
    if (!entries[tab]) {
      const newest = Object.keys(entries).sort((one, two) => entries[two].at - entries[one].at)[0];
      if (newest) {
        entries[tab] = entries[newest];
        delete entries[newest];
        const files = load(filesKey(this.session, newest), undefined);
        save(filesKey(this.session, newest), undefined);
        save(filesKey(this.session, tab), files);
        save(entriesKey(this.session), entries);
      }
    }
    this.text.value = entries[tab]?.text || "";
    this._key = entries[tab]?.key;
    this.files.value = load(filesKey(this.session, tab), []);
    this._listOthers(entries);
  }

  _write() {
    const entries = this._read();
    if (this.text.peek() || this.files.peek().length) entries[tab] = { text: this.text.peek(), at: Date.now(), ...(this._key ? { key: this._key } : {}) };
    else delete entries[tab];
    this._store(entries);
  }

  /** @param {Record<string, Entry>} entries */
  _store(entries) {
    this.isStored.value = save(entriesKey(this.session), Object.keys(entries).length ? entries : undefined);
    this._listOthers(entries);
  }

  /** @param {Record<string, Entry>} entries */
  _listOthers(entries) {
    const text = this.text.peek();
    const others = Object.entries(entries).filter(([owner, entry]) => owner !== tab && entry.text && entry.text !== text)
      .sort(([, one], [, two]) => two.at - one.at).map(([owner, entry]) => ({ owner, text: entry.text }));
    if (others.length || this.others.peek().length) this.others.value = others;
  }

  /** @returns {Record<string, Entry>} */
  _read() {
    return load(entriesKey(this.session), {});
  }
}

/** @type {Map<string, Draft>} */
const drafts = new Map();

addEventListener("storage", (event) => {
  for (const [session, draft] of drafts) if (event.key?.endsWith(entriesKey(session))) draft.onStorage();
});

/** Return the draft of a session, the same object each time. @param {string} session */
export function draftOf(session) {
  let draft = drafts.get(session);
  if (!draft) drafts.set(session, draft = new Draft(session));
  return draft;
}

/** Move the drafts of a renamed session. @param {string} session @param {string} name */
export function moveDrafts(session, name) {
  const entries = load(entriesKey(session), {});
  for (const owner of Object.keys(entries)) save(filesKey(name, owner), load(filesKey(session, owner), undefined));
  if (Object.keys(entries).length) save(entriesKey(name), { ...load(entriesKey(name), {}), ...entries });
  dropDrafts(session);
}

/** Delete the drafts of a deleted session. @param {string} session */
export function dropDrafts(session) {
  for (const owner of Object.keys(load(entriesKey(session), {}))) save(filesKey(session, owner), undefined);
  save(entriesKey(session), undefined);
  drafts.delete(session);
}
