// The mounted MCP servers: their state, tools and errors, and the tools that wait for approval.

import { call } from "../core/connection.js";
import { count } from "../core/format.js";
import { html, useEffect, useState } from "../core/html.js";
import { link } from "../core/router.js";
import { methods } from "../core/schema.js";
import { attempt, toast } from "../ui/toast.js";

/** A mount as `mounts.list` describes it.
    @typedef {{name: string, state: string, error?: string | null, where?: string, transport?: string, session?: string, tools?: number,
      resources?: number, prompts?: number, held?: string[], sessions?: number, restarts?: number, latency_ms?: number | null,
      stderr?: string, problems?: string[], server?: Record<string, string>}} Mount */
/** @typedef {{tool: string, change: "new" | "changed", difference: string[], invisible: boolean}} Held */

const POLL_MS = 2000;
/** States in which a mount works, or would with the next call. */
const GOOD = new Set(["ready", "idle", "starting", "not started"]);

/** The section of the Status view; nothing without mounts. */
export function Mounts() {
  const [mounts, setMounts] = useState(/** @type {Mount[]} */ ([]));
  const isOffered = methods.value.has("mounts.list");
  useEffect(() => {
    if (!isOffered) return undefined;
    const read = () => {
      if (!document.hidden) call("mounts.list").then(setMounts, () => {});
    };
    read();
    const timer = setInterval(read, POLL_MS);
    return () => clearInterval(timer);
  }, [isOffered]);
  if (!isOffered || !mounts.length) return null;
  return html`<section class="card" aria-labelledby="mounts-title"><h2 id="mounts-title">Mounts</h2>
    <div class="status-table" tabindex="0" role="region" aria-labelledby="mounts-title"><table><thead><tr><th scope="col">Name</th><th scope="col">State</th><th scope="col">Tools</th><th scope="col">Latency</th><th scope="col">Restarts</th><th scope="col">Server</th></tr></thead>
      <tbody>${mounts.map((mount) => html`<${Row} key=${mount.name} mount=${mount} />`)}</tbody></table></div></section>`;
}

/** @param {{mount: Mount}} props */
function Row({ mount }) {
  const isGood = GOOD.has(mount.state) && !mount.error;
  const held = mount.held || [];
  return html`<tr class=${isGood ? "" : "bad"}><td><code>${mount.name}</code></td>
    <td><span class="outcome" data-kind=${isGood ? "done" : "failed"}><span aria-hidden="true">${isGood ? "✓" : "✕"}</span> ${mount.state}</span></td>
    <td>${mount.tools ? html`<a href=${link("tools")}>${count(mount.tools)}</a>` : mount.tools ?? ""}</td>
    <td>${mount.latency_ms === null || mount.latency_ms === undefined ? "–" : `${mount.latency_ms} ms`}</td><td>${mount.restarts ?? ""}</td>
    <td>${mount.error ? html`<p>${mount.error}</p>` : null}<code>${mount.where || ""}</code>
      ${mount.server?.name ? html` <small>${mount.server.name} ${mount.server.version} · ${mount.server.revision} · ${mount.sessions} ${mount.sessions === 1 ? "session" : "sessions"} (${mount.session})</small>` : null}
      ${(mount.problems || []).map((problem) => html`<p><small>${problem}</small></p>`)}
      ${mount.stderr ? html`<details><summary>Standard error</summary><pre class="e-text" tabindex="0" role="region" aria-label=${`Standard error of ${mount.name}`}>${mount.stderr}</pre></details>` : null}
      ${held.length ? html`<${Approval} mount=${mount.name} count=${held.length} />` : null}</td></tr>`;
}

/** The held tools of a mount, with what has changed. @param {{mount: string, count: number}} props */
function Approval({ mount, count: number }) {
  const [held, setHeld] = useState(/** @type {Held[] | null} */ (null));
  const review = () => attempt(async () => setHeld(await call("mounts.held", { mount })));
  const approve = (/** @type {string[]} */ tools) => attempt(async () => {
    await call("mounts.approve", { mount, tools });
    toast(`Approved ${tools.join(", ")} of ${mount}.`);
    setHeld(await call("mounts.held", { mount }));
  });
  if (!held) return html`<p><b>${number} ${number === 1 ? "tool waits" : "tools wait"} for approval.</b> <button type="button" class="small" onClick=${review}>Review</button></p>`;
  return html`<ul class="held">${held.map((each) => html`<li key=${each.tool}><b><code>${each.tool}</code></b> ${each.change === "new" ? "is new" : "has changed"}${each.invisible ? html` <b>It has invisible characters.</b>` : null}
    <pre class="e-text" tabindex="0" role="region" aria-label=${`What has changed in ${each.tool}`}>${each.difference.map((line) => html`<span class=${line.startsWith("+") ? "added" : "gone"}>${line}</span>`)}</pre>
    <button type="button" class="small" onClick=${() => approve([each.tool])}>Approve ${each.tool}</button></li>`)}</ul>`;
}
