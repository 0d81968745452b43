// Copies and downloads the output of a run as text.

import { count, size } from "../core/format.js";
import { copy, toast } from "../ui/toast.js";
import { textOf } from "./rows.js";

/** @typedef {import("./log.js").RunLog} RunLog */

/** Characters that are copied; more would freeze what they are pasted into. */
const MAX_COPIED = 2_000_000;

/** Copy the output, up to a bound. @param {RunLog} log */
export async function copyOutput(log) {
  let text = "";
  let lines = 0;
  for await (const { rows } of log.read(0, true)) {
    for (const row of rows) {
      if (text.length > MAX_COPIED) break;
      text += `${textOf(row)}\n`;
      lines += 1;
    }
    if (text.length > MAX_COPIED) break;
  }
  const isCut = lines < log.count;
  await copy(text, isCut ? `Copied the first ${count(lines)} of ${count(log.count)} lines. Download the output for all of them.` : `Copied ${count(lines)} ${lines === 1 ? "line" : "lines"}`);
}

/** Download the whole output. @param {RunLog} log @param {(text: string) => void} onProgress */
export async function downloadOutput(log, onProgress) {
  /** @type {Blob[]} */
  const parts = [];
  let bytes = 0;
  for await (const { first, rows } of log.read(0, true)) {
    // A part that is a Blob is no longer in the memory of scripts.
    const part = new Blob([rows.map((row) => `${textOf(row)}\n`).join("")]);
    parts.push(part);
    bytes += part.size;
    onProgress(`${Math.floor((100 * (first + rows.length)) / Math.max(1, log.count))} %`);
  }
  const address = URL.createObjectURL(new Blob(parts, { type: "text/plain" }));
  const anchor = document.createElement("a");
  anchor.href = address;
  anchor.download = `run-${log.run}.txt`;
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
  onProgress("");
  toast(`Downloaded ${size(bytes)}`);
}
