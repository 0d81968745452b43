// Numbers and states as people read them.

/** @typedef {import("./live.js").RunInfo} RunInfo */

const UNITS = ["B", "KB", "MB", "GB", "TB"];
export const ACTIVE = new Set(["running", "asking", "cancelling"]);

/** Format a duration: "< 1 ms", "840 ms", "12.4 s", "4 min 10 s". @param {number} ms */
export function duration(ms) {
  if (ms < 0.5) return "< 1 ms";
  if (ms < 999.5) return `${Math.round(ms)} ms`;
  if (ms < 59_950) return `${(ms / 1000).toFixed(1)} s`;
  const seconds = Math.round(ms / 1000);
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  if (seconds < 172_800) return `${Math.floor(seconds / 3600)} h ${Math.floor(seconds / 60) % 60} min`;
  return `${Math.floor(seconds / 86_400)} days`;
}

/** Format a time relative to now: "12 s ago", "2 min ago". @param {number} ms @param {number} now */
export function ago(ms, now) {
  const seconds = Math.max(0, Math.round((now - ms) / 1000));
  if (seconds < 1) return "now";
  if (seconds < 60) return `${seconds} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h ago`;
  if (seconds < 7 * 86_400) return `${Math.floor(seconds / 86_400)} d ago`;
  return new Date(ms).toLocaleDateString();
}

/** Format a time that is left: "4:12". @param {number} ms */
export function countdown(ms) {
  const seconds = Math.max(0, Math.floor(ms / 1000));
  return `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")}`;
}

/** Format a size: "18 KB". @param {number} bytes */
export function size(bytes) {
  let value = bytes;
  let unit = 0;
  while (value >= 999.5 && unit < UNITS.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit > 0 && value < 9.95 ? value.toFixed(1) : Math.round(value)} ${UNITS[unit]}`;
}

/** Format a count: "1,234". @param {number} value */
export function count(value) {
  // As `toLocaleString("en")`, whose first call takes a frame.
  return String(value).replace(/(?<!\.\d*)\B(?=(?:\d{3})+(?!\d))/g, ",");
}

/** Format a time of day with milliseconds. @param {number} ms */
export function clock(ms) {
  const at = new Date(ms);
  const pad = (/** @type {number} */ value, width = 2) => String(value).padStart(width, "0");
  return `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}.${pad(at.getMilliseconds(), 3)}`;
}

/** Format a date and a time. @param {number} ms */
export function moment(ms) {
  return new Date(ms).toLocaleString();
}

// Control characters, and characters that change the direction of text or cannot be seen.
const INVISIBLE = /[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g;

/** Return a text with symbols instead of invisible characters, in letters that every font has. A run or
    a question could otherwise be read as something that it is not. @param {string} text */
export function readable(text) {
  return text.replace(INVISIBLE, (character) => {
    const code = character.charCodeAt(0);
    return code < 256 ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u${code.toString(16).padStart(4, "0")}`;
  });
}

/** Return the short form of a run number, as lists show it. @param {number} run */
export function shortId(run) {
  return run.toString(16).slice(-4).padStart(4, "0");
}

/** The outcome of a run: its kind for the style, a symbol and words.
    @typedef {{kind: "running" | "asking" | "done" | "failed" | "stopped" | "lost", symbol: string, text: string}} Outcome */

/** Return the outcome of a run. @param {Pick<RunInfo, "state"> & Partial<RunInfo>} run @returns {Outcome} */
export function outcomeOf(run) {
  if (run.state === "asking") return { kind: "asking", symbol: "?", text: "Asking" };
  if (run.state === "cancelling") return { kind: "stopped", symbol: "■", text: "Stopping" };
  if (ACTIVE.has(run.state)) return { kind: "running", symbol: "●", text: "Running" };
  if (run.state === "cancelled") return { kind: "stopped", symbol: "■", text: "Stopped" };
  if (run.code === "owner_lost") return { kind: "lost", symbol: "⚠", text: "Owner lost" };
  if (run.exit_code) return { kind: "failed", symbol: "✕", text: `Failed (exit ${run.exit_code})` };
  if (run.state === "error" || run.outcome === "failed") return { kind: "failed", symbol: "✕", text: "Failed" };
  return { kind: "done", symbol: "✓", text: "Done" };
}

/** Return how often a run was restarted. Its epoch is also higher when it was ended for a lost process.
    @param {Partial<RunInfo> & {epoch?: number}} run */
export function restartsOf({ epoch = 0, code }) {
  return code === "owner_lost" ? epoch - 1 : epoch;
}

/** Return where a run comes from: the client, and the details below it; the machine, if it is not that of the server.
    @param {Partial<RunInfo>} run @param {string} host that of the server @returns {{name: string, detail: string}} */
export function sourceOf(run, host) {
  const process = run.process;
  const folder = (process?.project || run.project || "").split("/").filter(Boolean).pop() || "";
  const session = run.agent_session ? `session ${run.agent_session.slice(0, 8)}` : "";
  const isElsewhere = process?.host && host && process.host !== host;
  const detail = [folder, session, process?.pid ? `pid ${process.pid}` : "", isElsewhere ? `machine ${readable(process.host).slice(0, 8)}` : ""].filter(Boolean).join(" · ");
  return { name: clientName(run.client), detail };
}

/** Return the name of a client as people know it. @param {string | undefined} client */
export function clientName(client) {
  if (!client) return "Local";
  const name = client.replace(/[/ ]v?\d.*$/, "").trim();
  const known = { "claude-code": "Claude Code", "claude-ai": "Claude", "codex-mcp-client": "Codex", browser: "Browser" };
  if (name.startsWith("substrate")) return "CLI";
  return known[name.toLowerCase()] || readable(name || client);
}
