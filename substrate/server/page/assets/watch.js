// The view of all runs of the server, live, and of everything they ask.

import { OpenQuestions } from "./asking.js";
import { button, h, lasting, moment, perFrame, replace, stateOf, toast } from "./dom.js";
import { approvals, hearing, onLive, runs } from "./live.js";
import { link } from "./router.js";
import { call } from "./rpc.js";

const UNDER_WAY = new Set(["running", "asking", "cancelling"]);

/** Show all runs. */
export function showWatch(_, place) {
  const filter = h("input", { type: "search", placeholder: "Filter  ( / )", "aria-label": "Filter runs by method", id: "search", autocomplete: "off" });
  const all = h("input", { type: "checkbox" });
  const body = h("tbody");
  const questions = new OpenQuestions();
  const note = h("p", { class: "note", role: "status" });
  const rows = new Map();
  place.append(h("h1", {}, "Runs"), questions.element,
    h("div", { class: "bar" }, filter, h("label", { class: "inline" }, all, " also what only looks at the server"), note),
    h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Runs" }, h("table", { class: "runs" },
      h("thead", {}, h("tr", {}, ["State", "Method", "Run", "Items", "Began", "Took", "Steps"].map((title) => h("th", { scope: "col" }, title)))),
      body)));
  const draw = perFrame(() => {
    const text = filter.value.toLowerCase();
    const listed = [...runs.values()]
      .filter((run) => (all.checked || isWork(run)) && run.method.toLowerCase().includes(text))
      .sort((one, other) => UNDER_WAY.has(other.state) - UNDER_WAY.has(one.state) || other.started_ms - one.started_ms);
    const wanted = listed.map((run) => {
      const row = rows.get(run.run) || newRow(run);
      rows.set(run.run, row);
      row.show(run);
      return row.element;
    });
    for (const number of [...rows.keys()]) if (!runs.has(number)) rows.delete(number);
    if (wanted.length !== body.childElementCount || wanted.some((row, index) => body.children[index] !== row)) replace(body, wanted);
    const going = listed.filter((run) => UNDER_WAY.has(run.state)).length;
    note.textContent = hearing.state === "open" ? `${going} under way, ${listed.length - going} ended lately` : "The server is not heard; trying again…";
    if (hearing.state === "open") questions.show([...approvals.values()]);
  });
  filter.addEventListener("input", draw);
  all.addEventListener("change", draw);
  draw();
  const timer = setInterval(draw, 1000);
  const stop = onLive(draw);
  return () => {
    clearInterval(timer);
    stop();
  };
}

/** Whether it does something; looking at the server is no work, and the page itself does that. */
function isWork(run) {
  if (hearing.own.has(run.run)) return false;
  return !/^(plexus\.(?!call$)|approvals\.(watch|pending|respond)|health\.)/.test(run.method);
}

function newRow(run) {
  const state = h("td", { class: "state" });
  const items = h("td", { class: "number" });
  const took = h("td", { class: "number" });
  const stop = button("Stop", async () => {
    try {
      await call("plexus.cancel", { run: run.run, reason: "stopped in the browser" });
    } catch (error) {
      toast(error.message);
    }
  }, { class: "small danger", "aria-label": `Stop ${run.method}, run ${run.run}` });
  const element = h("tr", {}, state,
    h("td", {}, h("a", { href: link("run", run.run) }, run.method)),
    h("td", { class: "number" }, String(run.run)), items,
    h("td", {}, moment(run.started_ms)), took, h("td", {}, stop));
  return {
    element,
    show(now) {
      const shown = stateOf(now.state, now.exit_code, now.outcome === "failed");
      state.textContent = shown.text;
      state.dataset.state = shown.state;
      items.textContent = String(now.last_seq);
      took.textContent = lasting(now.duration_ms === undefined ? Date.now() - now.started_ms : now.duration_ms);
      stop.hidden = !UNDER_WAY.has(now.state);
    },
  };
}
