// The runs of the list: recorded runs, loaded in pages, merged with the runs that the page watches.
//
// A run that was seen stays in the list after the server has removed it from memory, and while the
// connection is lost. Filters are applied here too, because a run changes after it was loaded.

import { call, stream, watch } from "../core/connection.js";
import { ACTIVE, clientName, outcomeOf } from "../core/format.js";
import { signal, useEffect, useState } from "../core/html.js";
import { questions, runs } from "../core/live.js";
import { methods } from "../core/schema.js";

/** @typedef {import("../core/live.js").RunInfo} RunInfo */
/** @typedef {{state: string, client: string, method: string, range: string, text: string, system: boolean}} Filters */

/** The runs of the first page, and of the largest: each page is twice as large as the one before. */
const PAGE_RUNS = 100;
const LARGE_PAGE_RUNS = 1000;
/** Runs that were in progress when the connection was lost, and are looked up after it. */
const MAX_LOOKUPS = 50;
/** Runs that have left the memory of the server, after which the list is loaded again. */
const MAX_PASSED = 20_000;
/** Parts of the names of clients, for the names that people know. */
const CLIENTS = { CLI: "substrate", "Claude Code": "claude-code", Claude: "claude-ai", Codex: "codex" };
/** The source of a run without a client. */
const NO_CLIENT = clientName(undefined);
/** Items at the end of a failed run in which the reason is, and milliseconds until it is loaded. */
const LAST_ITEMS = 4;
const IN_VIEW_MS = 300;
/** Milliseconds until a run that has ended is in the store; several are loaded at once. */
const FILL_MS = 1500;
const HOURS = { "": 24, "7d": 168 };

/** Return the start of a time range in milliseconds; 0 for all. @param {string} range */
export function rangeStart(range) {
  return HOURS[range] ? Date.now() - HOURS[range] * 3_600_000 : 0;
}

/** Return the run number that a text is: a decimal number or a full hexadecimal id. @param {string} text */
export function runNumber(text) {
  if (/^\d{10,16}$/.test(text)) return Number(text);
  return /^[0-9a-f]{12,14}$/i.test(text) ? parseInt(text, 16) : undefined;
}

/** Whether a text may be the end of an id. A word without a digit is more likely a word. @param {string} text */
const isShortId = (text) => /^[0-9a-f]{4,11}$/i.test(text) && /\d/.test(text);

/** @param {RunInfo} one @param {RunInfo} two */
const newestFirst = (one, two) => two.started_ms - one.started_ms || two.run - one.run;

/** The runs that match some filters, newest first. */
export class RunHistory {
  /** @param {Filters} filters */
  constructor(filters) {
    this.filters = filters;
    this.since = rangeStart(filters.range);
    /** The loaded records by number, newest first. @type {Map<number, RunInfo>} */
    this.records = new Map();
    /** The runs that were watched since the list was opened. @type {Map<number, RunInfo>} */
    this.seen = new Map();
    /** What the store knows about watched runs that have ended, such as their sizes. @type {Map<number, RunInfo>} */
    this.details = new Map();
    /** Runs that have ended without that. @type {Set<number>} */
    this.missing = new Set();
    /** The names of clients and methods in the list, which the filters offer. @type {Set<string>} */
    this.clients = new Set();
    /** @type {Set<string>} */
    this.methods = new Set();
    this.isEnd = false;
    this.isLoading = false;
    this.error = "";
    /** Changes with every change of the list that is not one of the watched runs. */
    this.changed = signal(0);
    /** Where the next page begins. @type {number | undefined} */
    this.cursor = undefined;
  }

  #notify() {
    this.changed.value += 1;
  }

  #params() {
    const { state, method, client } = this.filters;
    /** @type {Record<string, any>} */
    const params = { limit: client === NO_CLIENT ? LARGE_PAGE_RUNS : Math.min(LARGE_PAGE_RUNS, Math.max(PAGE_RUNS, this.records.size)) };
    if (this.since) params.since = String(this.since);
    if (method) params.method = method;
    if (state) params.state = state;
    if (client && client !== NO_CLIENT) params.client = CLIENTS[client] || client;
    return params;
  }

  /** Load the next page. */
  async load() {
    if (this.isLoading || this.isEnd) return;
    this.isLoading = true;
    this.error = "";
    try {
      const params = this.#params();
      if (this.cursor !== undefined) params.before = this.cursor;
      if (this.filters.text) await this.#search(params);
      else {
        const found = await call("plexus.history", params);
        this.#add(found);
        this.isEnd = found.length < params.limit;
      }
    } catch (error) {
      const { code, message } = /** @type {import("../core/connection.js").RpcError} */ (error);
      if (code === "unsupported") this.isEnd = true; // nothing is recorded
      else this.error = message;
    } finally {
      this.isLoading = false;
      this.#notify();
    }
  }

  /** Load what has the text, as it is found. @param {Record<string, any>} params */
  async #search(params) {
    const { text } = this.filters;
    if (params.before === undefined) await this.#findById(text);
    let found = 0;
    /** @type {number | undefined} */
    let stoppedAt;
    await stream("plexus.find_runs", { ...params, search: text }, (event) => {
      if (event.type !== "runs_found") return;
      found += event.runs.length;
      stoppedAt = event.stopped_at ?? stoppedAt;
      this.#add(event.runs);
      this.#notify();
    });
    this.isEnd = found < params.limit && stoppedAt === undefined;
    this.cursor = stoppedAt ?? this.cursor;
  }

  /** Add the runs whose id is this text. @param {string} text */
  async #findById(text) {
    const run = runNumber(text);
    if (run !== undefined) {
      const info = await call("plexus.inspect", { run }).catch(() => null);
      if (info) this.seen.set(run, info);
    } else if (isShortId(text)) {
      const params = { ...this.#params(), limit: LARGE_PAGE_RUNS };
      const recent = await call("plexus.history", params).catch(() => []);
      for (const info of recent) if (hasId(info, text.toLowerCase())) this.seen.set(info.run, info);
    }
  }

  /** @param {RunInfo[]} found */
  #add(found) {
    for (const info of found) {
      this.records.set(info.run, info);
      this.#offer(info);
    }
    if (found.length) this.cursor = found[found.length - 1].run;
  }

  /** Take over what the page watches. */
  sync() {
    const before = this.missing.size;
    for (const [run, info] of runs) {
      if (this.seen.get(run) === info) continue;
      this.seen.set(run, info);
      this.#offer(info);
      if (info.duration_ms !== undefined && info.bytes === undefined && ACTIVE.has(this.records.get(run)?.state ?? "running")) this.missing.add(run);
    }
    if (before === 0 && this.missing.size) setTimeout(() => this.#fill(), FILL_MS);
  }

  /** Load what the store knows about the runs that have ended. */
  async #fill() {
    const missing = new Set(this.missing);
    this.missing.clear();
    const found = await call("plexus.history", { limit: Math.min(LARGE_PAGE_RUNS, missing.size + PAGE_RUNS) }).catch(() => []);
    for (const info of found) if (missing.has(info.run)) this.details.set(info.run, info);
    this.#notify();
  }

  /** @param {RunInfo} info */
  #offer(info) {
    this.clients.add(info.client || "");
    this.methods.add(info.method);
  }

  /** Watch the calls that only watch or control the server, until the returned function is called. */
  watchSystem() {
    return watch("plexus.watch", { interval_s: 1, system: true }, {
      onEvent: (event) => {
        if (event.type !== "runs_changed") return;
        for (const info of event.runs) if (info.system) this.seen.set(info.run, info);
        this.#notify();
      },
    });
  }

  /** Whether more runs have started than are worth merging into the list. */
  get isLarge() {
    return this.seen.size - runs.size > MAX_PASSED;
  }

  /** After a lost connection: load the newest runs, and look up those that were in progress. */
  async refresh() {
    this.sync();
    if (this.error) this.load();
    const newest = this.filters.text ? [] : await call("plexus.history", this.#params()).catch(() => []);
    for (const info of newest) this.seen.set(info.run, info);
    const open = [...this.seen.values(), ...this.records.values()].filter((info) => ACTIVE.has(info.state) && !runs.has(info.run));
    for (const { run } of open.slice(0, MAX_LOOKUPS)) {
      const info = await call("plexus.inspect", { run }).catch(() => null);
      if (info) this.seen.set(run, info);
    }
    this.#notify();
  }

  /** Return what is known about a run. @param {RunInfo} info */
  whole(info) {
    const record = this.details.get(info.run) || this.records.get(info.run);
    // The size of a run in progress is only current in what is watched.
    const whole = record && record !== info ? { ...record, bytes: ACTIVE.has(record.state) ? undefined : record.bytes, ...info } : info;
    // A request for permission waits like a question, but its run does not ask its caller.
    return whole.state === "running" && isAsked(whole) ? { ...whole, state: "asking" } : whole;
  }

  /** Return the matching runs, newest first. @returns {RunInfo[]} */
  rows() {
    const watched = [];
    for (const info of this.seen.values()) if (this.#accepts(info) && this.#hasText(info)) watched.push(info);
    watched.sort(newestFirst);
    const rows = [];
    let next = 0;
    /** @type {RunInfo | undefined} */
    let oldest;
    for (const record of this.records.values()) {
      oldest = record;
      if (this.seen.has(record.run) || !this.#accepts(record)) continue;
      while (next < watched.length && newestFirst(watched[next], record) < 0) rows.push(watched[next++]);
      rows.push(record);
    }
    // What is older than the last record has its place in the next pages; runs in progress do not wait.
    const isWhole = this.isEnd || oldest === undefined || this.filters.text;
    return rows.concat(watched.slice(next).filter((info) => isWhole || ACTIVE.has(info.state) || newestFirst(info, /** @type {RunInfo} */ (oldest)) <= 0));
  }

  /** @param {RunInfo} info */
  #accepts(info) {
    const { state, client, method, system } = this.filters;
    const isActive = ACTIVE.has(info.state);
    if (!system && info.system) return false;
    if (state === "running" && !isActive) return false;
    if (state === "asking" && info.state !== "asking" && !isAsked(info)) return false;
    if (state === "failed" && !["failed", "lost"].includes(outcomeOf(info).kind)) return false;
    if (client && clientName(info.client) !== client) return false;
    if (method && info.method !== method) return false;
    return isActive || info.started_ms >= this.since;
  }

  /** @param {RunInfo} info */
  #hasText(info) {
    const text = this.filters.text.toLowerCase();
    if (!text || this.records.has(info.run) || hasId(info, text)) return true;
    const all = `${info.summary || ""} ${info.method}`.toLowerCase();
    return text.replaceAll('"', "").split(/\s+/).every((word) => all.includes(word));
  }
}

/** Whether a question of the run is open. @param {RunInfo} info */
function isAsked(info) {
  return questions.peek().some((each) => each.run === info.run);
}

/** Whether this is an id of the run: its number, or the end of its hexadecimal form. @param {RunInfo} info @param {string} text */
function hasId(info, text) {
  return String(info.run) === text || (/^[0-9a-f]{4,}$/.test(text) && info.run.toString(16).endsWith(text));
}

/** Return the only run of these whose id is this text. @param {RunInfo[]} rows @param {string} text */
export function onlyWithId(rows, text) {
  const found = rows.filter((info) => hasId(info, text.toLowerCase()));
  return found.length === 1 ? found[0].run : undefined;
}

/** Groups of runs by the session of their agent, the newest first.
    @typedef {{session: string, key: string, runs: RunInfo[], running: number, failed: number}} Group */

/** Return the runs in groups by agent session. @param {RunInfo[]} rows @returns {Group[]} */
export function groupBySession(rows) {
  /** @type {Map<string, Group>} */
  const groups = new Map();
  for (const info of rows) {
    const session = info.agent_session || "";
    const group = groups.get(session) || { session, key: `session ${session}`, runs: [], running: 0, failed: 0 };
    groups.set(session, group);
    group.runs.push(info);
    if (ACTIVE.has(info.state)) group.running += 1;
    else if (outcomeOf(info).kind === "failed") group.failed += 1;
  }
  return [...groups.values()];
}

/** Why runs have failed, as far as it was looked up. @type {Map<number, string>} */
const failures = new Map();

/** Return why a run has failed: the message of its error, or the last line of its output; empty if
    that is not known. Loads it if the row stays in view. @param {RunInfo} info */
export function useFailure(info) {
  const { run, last_seq } = info;
  const [text, setText] = useState(failures.get(run) || "");
  const isKnown = methods.value.has("plexus.items");
  useEffect(() => {
    if (!isKnown || failures.has(run)) return undefined;
    const timer = setTimeout(() => {
      failures.set(run, "");
      call("plexus.items", { run, after: Math.max(0, last_seq - LAST_ITEMS), limit: LAST_ITEMS }).then(({ items }) => {
        const events = items.map((/** @type {any} */ item) => item.event);
        const error = events.find((/** @type {any} */ event) => event.type === "error");
        const output = events.filter((/** @type {any} */ event) => event.type === "stderr" || event.type === "stdout").map((/** @type {any} */ event) => event.data).join("");
        failures.set(run, (error ? error.message : output.trimEnd().split("\n").pop() || "").slice(0, 300));
        setText(failures.get(run) || "");
      }, () => {});
    }, IN_VIEW_MS);
    return () => clearTimeout(timer);
  }, [isKnown, run]);
  return text;
}
