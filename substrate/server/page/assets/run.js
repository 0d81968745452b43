// The view of one run: what it says, as it says it.

import { OpenQuestions, openOf } from "./asking.js";
import { button, clock, h, lasting, perFrame, replace, stateOf, trouble } from "./dom.js";
import { blockElement } from "./items.js";
import { jsonLine, jsonTree } from "./jsontree.js";
import { hearing, onLive, runs } from "./live.js";
import { link } from "./router.js";
import { leaveRun, openRun, ownRuns } from "./runs.js";
import { VirtualList } from "./virtual.js";

const STATES = { connecting: "connecting…", live: "running", broken: "connection lost, coming back…", gone: "not found" };

/** Show a run, or those of this page. */
export function showRun(parts, place) {
  const number = Number(parts[0]);
  if (!Number.isSafeInteger(number) || number < 1) return showOwn(place);
  const log = openRun(number);
  const view = new RunView(log);
  place.append(view.element);
  return () => {
    view.close();
    leaveRun(log);
  };
}

function showOwn(place) {
  const list = h("ul", { class: "plain" });
  const show = () => {
    const own = ownRuns();
    replace(list, own.map((log) => h("li", {}, h("a", { href: link("run", log.run) }, log.method || `run ${log.run}`), ` ${stateText(log)}, ${log.last} items`)));
    if (!own.length) replace(list, h("li", {}, "Nothing was started here yet. ", h("a", { href: link("explore") }, "Choose a method"), " or ", h("a", { href: link("watch") }, "watch what runs"), "."));
  };
  place.append(h("h1", {}, "Runs of this page"), list);
  show();
  return onLive(perFrame(show));
}

function stateText(log) {
  if (log.terminal) return stateOf(log.terminal.type, log.terminal.exit_code).text;
  const known = runs.get(log.run);
  if (log.state === "live" && known) return known.state;
  return STATES[log.state] || log.state;
}

/** About how high a block is, before it was seen. */
function heightOf(block) {
  if (block.kind === "output") return Math.max(1, block.lines.length) * 17.2;
  return block.text ? 24 + Math.floor(block.text.length / 120) * 22 : 28;
}

/** Everything about one run. */
class RunView {
  constructor(log) {
    this._log = log;
    this._state = h("span", { class: "state", role: "status" });
    this._facts = h("span", { class: "facts" });
    this._title = h("h1", {}, `Run ${log.run}`);
    this._stop = button("Stop", () => this._stopRun(), { class: "danger" });
    this._trouble = h("div");
    this._questions = new OpenQuestions();
    this._detail = h("div", { class: "detail", hidden: true, role: "region", "aria-label": "The chosen item", tabindex: "0" });
    const order = () => log.blocks.blocks;
    this._output = new VirtualList({
      render: (index) => blockElement(order()[index]),
      version: (index) => order()[index].version,
      guess: (index) => heightOf(order()[index]), follow: true, label: "What the run says",
    });
    this._events = new VirtualList({
      render: (index) => this._eventRow(log.items[index]),
      guess: () => 26, fixed: true, follow: true, label: "Every item with its number and time",
    });
    this._follow = h("input", { type: "checkbox", checked: true });
    this._follow.addEventListener("change", () => this._list.setFollow(this._follow.checked));
    this._tabs = [["output", "Output"], ["events", "Items"]].map(([name, label]) => button(label, () => this._show(name), { "data-tab": name }));
    this._place = h("div", { class: "run-place" });
    this.element = h("section", { class: "run" },
      h("header", {}, this._title, h("div", { class: "bar" }, this._state, this._facts, this._stop)),
      h("div", { class: "bar" }, h("div", { role: "group", "aria-label": "How it is shown", class: "tabs" }, this._tabs),
        h("label", { class: "inline" }, this._follow, " follow the end"),
        h("a", { href: link("watch") }, "all runs")),
      this._trouble, this._questions.element, this._place, this._detail);
    this._draw = perFrame(() => this._refresh());
    this._stops = [
      log.listen((news) => {
        if (news.dropped) this._events.shift(news.dropped);
        if (news.droppedBlocks) this._output.shift(news.droppedBlocks);
        this._draw();
      }),
      onLive(this._draw),
    ];
    this._timer = setInterval(() => this._draw(), 500);
    this._show("output");
    this._refresh();
  }

  close() {
    clearInterval(this._timer);
    this._stops.forEach((stop) => stop());
    this._output.close();
    this._events.close();
  }

  _show(name) {
    this._list = name === "output" ? this._output : this._events;
    this._tabs.forEach((tab) => tab.setAttribute("aria-pressed", String(tab.dataset.tab === name)));
    this._detail.hidden = true;
    replace(this._place, this._list.element);
    this._list.setFollow(this._follow.checked);
  }

  _refresh() {
    const log = this._log;
    if (log.method) this._title.textContent = log.method;
    this._state.textContent = stateText(log);
    this._state.dataset.state = log.terminal ? stateOf(log.terminal.type, log.terminal.exit_code).state : log.state;
    const known = runs.get(log.run);
    const took = known && known.duration_ms !== undefined ? known.duration_ms : known ? Date.now() - known.started_ms : null;
    const facts = [`run ${log.run}`, `${log.last} items`];
    if (took !== null) facts.push(lasting(took));
    if (log.resumed) facts.push(`taken up again ${log.resumed}×`);
    if (log.dropped) facts.push(`the first ${log.dropped} are no longer shown`);
    this._facts.textContent = facts.join(" · ");
    this._stop.hidden = log.isOver;
    // While nothing is heard, what was asked is still asked.
    if (hearing.state === "open" || log.isOver) this._questions.show(openOf(log));
    replace(this._trouble, log.state === "gone" ? trouble(log.why || "there is no such run") : null);
    this._output.resize(log.blocks.blocks.length);
    this._events.resize(log.items.length);
    if (this._follow.checked !== this._list.follows) this._follow.checked = this._list.follows;
  }

  _eventRow({ seq, at, event }) {
    const { type, ...rest } = event;
    const said = "text" in rest && Object.keys(rest).length === 1 ? rest.text : "data" in rest && Object.keys(rest).length === 1 ? rest.data : rest;
    return h("div", { class: `event e-${type}` },
      button(`#${seq}`, () => this._detailOf(seq, at, event), { class: "seq", "aria-label": `Item ${seq}, ${type}` }),
      h("time", {}, clock(at)), h("span", { class: "type" }, type), h("span", { class: "said" }, jsonLine(said)));
  }

  _detailOf(seq, at, event) {
    this._detail.hidden = false;
    replace(this._detail, h("div", { class: "bar" }, h("strong", {}, `Item ${seq}`), h("time", {}, `arrived ${clock(at)}`),
      button("Close", () => { this._detail.hidden = true; }, { class: "small" })), jsonTree(event, 2));
    this._detail.focus();
  }

  async _stopRun() {
    try {
      await this._log.stop();
    } catch (error) {
      replace(this._trouble, trouble(error));
    }
  }
}
