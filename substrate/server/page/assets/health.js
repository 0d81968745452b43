// The view of how the server is: its parts, its limits, and how much it does, live.

import { h, lasting, replace } from "./dom.js";
import { onLive, runs } from "./live.js";
import { Plot } from "./plot.js";
import { watchAll } from "./rpc.js";

/** Show how the server is. */
export function showHealth(_, place) {
  const stop = new AbortController();
  const status = h("p", { class: "status", role: "status" }, "Asking…");
  const facts = h("dl", { class: "facts" });
  const parts = h("tbody");
  const limits = h("tbody");
  const plots = {
    running: new Plot("Runs under way"),
    ended: new Plot("Runs ended", { unit: "/s" }),
    failed: new Plot("Runs failed", { unit: "/s" }),
    items: new Plot("Items of your runs", { unit: "/s" }),
  };
  place.append(h("h1", {}, "Health"), status, facts,
    h("div", { class: "plots" }, Object.values(plots).map((plot) => plot.element)),
    h("h2", {}, "Activations"), table(["Activation", "Version", "How it is", ""], parts, "Activations"),
    h("h2", {}, "Limits"), table(["Limit", "Value"], limits, "Limits"));
  let before = null;
  let items = itemsNow();
  watchAll([["health.watch", { interval: 1 }]], (_index, event) => {
    if (event.type !== "status") return;
    const at = performance.now();
    status.textContent = event.status === "healthy" ? "Healthy" : "Degraded";
    status.dataset.state = event.status;
    replace(facts, fact("Up", lasting(event.uptime_s * 1000)), Object.entries(event.versions).map(([name, version]) => fact(name, version)),
      Object.entries(event.runs).map(([state, count]) => fact(`runs ${state}`, count)));
    replace(parts, event.activations.map((part) => h("tr", {}, h("td", {}, h("code", {}, part.namespace)), h("td", {}, part.version), h("td", {}, part.detail),
      h("td", { class: "state", "data-state": part.ok ? "complete" : "error" }, part.ok ? "well" : "not well"))));
    if (!limits.childElementCount) replace(limits, Object.entries(event.limits).map(([name, value]) => h("tr", {}, h("td", {}, h("code", {}, name)), h("td", { class: "number" }, limitText(name, value)))));
    const { complete = 0, error = 0, cancelled = 0, running = 0, asking = 0, cancelling = 0 } = event.runs;
    const now = { at, ended: complete + error + cancelled, failed: error, items: itemsNow() };
    plots.running.add(running + asking + cancelling);
    if (before) {
      const seconds = Math.max(0.1, (at - before.at) / 1000);
      plots.ended.add((now.ended - before.ended) / seconds);
      plots.failed.add((now.failed - before.failed) / seconds);
      plots.items.add(Math.max(0, items - before.items) / seconds);
    }
    before = { ...now, items };
  }, { signal: stop.signal, onState: (state) => {
    if (state === "lost") {
      status.textContent = "The server does not answer; trying again…";
      status.dataset.state = "lost";
    }
  } });
  const stopLive = onLive(() => { items = itemsNow(); });
  return () => {
    stop.abort();
    stopLive();
  };
}

const itemsNow = () => [...runs.values()].reduce((sum, run) => sum + run.last_seq, 0);

const fact = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, String(value)));

function limitText(name, value) {
  if (name.endsWith("_bytes")) return value >= 1048576 ? `${value / 1048576} MiB` : `${value / 1024} KiB`;
  if (name.endsWith("_s")) return name === "rate_per_s" ? `${value} a second` : `${value} s`;
  return String(value);
}

function table(titles, body, label) {
  return h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": label }, h("table", {},
    h("thead", {}, h("tr", {}, titles.map((title) => (title ? h("th", { scope: "col" }, title) : h("td"))))), body));
}
