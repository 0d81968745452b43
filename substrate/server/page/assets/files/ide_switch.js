// The switch that lets programs such as Claude Code connect to the editor, and those that are connected.

import { call } from "../core/connection.js";
import { clientName, readable } from "../core/format.js";
import { html, useState } from "../core/html.js";
import { attempt, copy } from "../ui/toast.js";
import { status } from "./ide.js";

/** The state of the IDE. */
export function IdeSwitch() {
  const [isBusy, setBusy] = useState(false);
  const now = status.value;
  if (!now) return null;
  const toggle = async () => {
    if (isBusy) return; // it is not disabled meanwhile: it would lose the focus
    setBusy(true);
    await attempt(() => call("ide.switch", { on: !now.on }));
    setBusy(false);
  };
  const { connections } = now;
  return html`<section class="ide-switch card" aria-label="IDE">
    <div class="bar"><strong class="grow">IDE</strong><button type="button" role="switch" aria-checked=${String(now.on)} aria-label="Let programs connect to this editor" aria-busy=${String(isBusy)} disabled=${!now.available} onClick=${toggle}>${now.on ? "On" : "Off"}</button></div>
    ${now.on && !connections.length ? html`<p><small>Waiting for a program. In Claude Code, type <code>/ide</code>, or start it with <button type="button" class="plain" title="Copy" onClick=${() => copy("claude --ide")}><code>claude --ide</code></button>.</small></p>` : null}
    ${now.on ? null : html`<p><small>${now.reason ? readable(now.reason) : now.available ? "Off: Claude Code cannot show its changes here." : "This server has no listener for programs."}</small></p>`}
    ${connections.length ? html`<ul class="plain" aria-label="Connected programs">${connections.map((each) => html`<li key=${each.id}><span class="connection" data-state="open">${clientName(each.client || "Connecting")}</span> <small>${each.pid ? `pid ${each.pid}` : ""}</small></li>`)}</ul>` : null}</section>`;
}
