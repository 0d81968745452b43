// The header of a run: what it is, how it ended, and what can be done with it.

import { call } from "../core/connection.js";
import { ACTIVE } from "../core/format.js";
import { html, useState } from "../core/html.js";
import { go, link } from "../core/router.js";
import { save } from "../core/storage.js";
import { startRun } from "../tools/start_run.js";
import { Outcome, titleOf } from "../ui/run_parts.js";
import { attempt, copy, toast } from "../ui/toast.js";
import { areComplete } from "./run_info.js";

/** @typedef {import("./run_info.js").RunDetails} RunDetails */

/** @param {{info: RunDetails, refresh: () => void}} props */
export function Header({ info, refresh }) {
  const [isBusy, setBusy] = useState(false);
  // What is shown may be older than the record, which has the arguments soon after the start.
  const recorded = async () => (await call("plexus.inspect", { run: info.run })).arguments;
  const fillIn = (/** @type {any} */ given) => {
    save("prefill", { method: info.method, arguments: given || {} });
    go("tools", info.method);
  };
  const edit = () => attempt(async () => fillIn(await recorded()));
  const again = () => attempt(async () => {
    setBusy(true);
    try {
      const given = await recorded();
      if (areComplete(given)) go("runs", await startRun(info.method, given));
      else {
        toast("The recorded arguments have no secrets or are incomplete. Fill in the form.");
        fillIn(given);
      }
    } finally {
      setBusy(false);
    }
  });
  const pin = () => attempt(async () => {
    await call("plexus.pin", { run: info.run, pinned: !info.pinned });
    toast(info.pinned ? "Unpinned. The run is deleted when its retention ends." : "Pinned. The run is kept until it is unpinned.");
    refresh();
  });
  const stop = () => attempt(() => call("plexus.cancel", { run: info.run, reason: "stopped in the browser" }));
  const name = titleOf(info);
  return html`<header class="run-head">
    <div class="run-title"><a class="dim" href=${link("runs")}>Runs</a><span class="dim" aria-hidden="true">/</span>
      <div class="names"><h1 title=${name}>${name}</h1>${name === info.method ? null : html`<small class="cut">${info.method}</small>`}</div> <span role="status"><${Outcome} run=${info} /></span></div>
    <div class="bar actions">
      <button type="button" onClick=${again} disabled=${isBusy}>Re-run</button>
      <button type="button" onClick=${edit}>Edit…</button>
      <button type="button" onClick=${pin} aria-pressed=${info.pinned ? "true" : "false"}>${info.pinned ? "Unpin" : "Pin"}</button>
      <button type="button" onClick=${() => copy(location.href.replace(/&?token=[^&]*/, ""), "Copied the link to this run")}>Share</button>
      ${ACTIVE.has(info.state) ? html`<button type="button" class="danger" onClick=${stop} disabled=${info.state === "cancelling"}>Stop</button>` : null}
    </div></header>`;
}
