// Answering what a run asks: yes or no, a text, one or several of a list, a form.

import { announce, button, h, newId, replace } from "./dom.js";
import { SchemaForm } from "./form.js";
import { jsonTree } from "./jsontree.js";
import { approvals, hearing, runs } from "./live.js";
import { webLink } from "./markdown.js";
import { call } from "./rpc.js";

/** A question with what is needed to answer it. `asked` has run, request, kind, message, schema. */
export function question(asked, onDone = () => {}) {
  const fault = h("p", { class: "fault", role: "alert", hidden: true });
  const place = h("div", { class: "answer" });
  const heading = h("p", { class: "asks", id: newId("asks") }, asked.message);
  const send = async (answer, approve = true) => {
    fault.hidden = true;
    place.inert = true;
    try {
      await respond(asked, answer, approve);
      replace(place, h("p", { class: "done" }, approve && answer !== null ? "Answered." : "Declined."));
      onDone();
    } catch (error) {
      fault.textContent = error.message;
      fault.hidden = false;
    } finally {
      place.inert = false;
    }
  };
  place.append(...controls(asked, send));
  const details = asked.details ? h("div", { class: "details" }, jsonTree(asked.details, 2)) : null;
  return h("div", { class: "question", role: "group", "aria-labelledby": heading.id }, heading, details, place, fault);
}

async function respond(asked, answer, approve) {
  if (asked.request === "permit") {
    await call("approvals.respond", { approval_id: `${asked.run}.permit`, approve: approve && answer === true });
  } else {
    await call("plexus.respond", { run: asked.run, request: asked.request, answer: approve ? answer : null });
  }
}

function controls(asked, send) {
  const decline = button("Decline", () => send(null, false), { class: "quiet" });
  switch (asked.kind) {
    case "confirm":
      return [bar(button("Yes", () => send(true), { class: "primary" }), button("No", () => send(false)), asked.request === "permit" ? null : decline)];
    case "visit": {
      const address = String((asked.details && asked.details.url) || "");
      return [h("p", {}, webLink(address, address) || address), bar(button("Done", () => send(true), { class: "primary" }), decline)];
    }
    case "prompt": return prompt(asked, send, decline);
    case "select": return choose(asked, send, decline, "radio");
    case "select_many": return choose(asked, send, decline, "checkbox");
    default: return form(asked, send, decline);
  }
}

const bar = (...buttons) => h("div", { class: "bar" }, buttons);

function prompt(asked, send, decline) {
  const field = h("input", { type: "text", "aria-label": asked.message, value: asked.default || "", autocomplete: "off" });
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter") send(field.value);
  });
  return [field, bar(button("Answer", () => send(field.value), { class: "primary" }), decline)];
}

function choose(asked, send, decline, type) {
  const name = newId("choice");
  const options = asked.options || (asked.schema.enum || []).map((value) => ({ value, label: value }));
  const chosen = new Set([asked.default].flat());
  const fields = options.map(({ value, label }) => {
    const field = h("input", { type, name, value, checked: chosen.has(value) });
    return { field, value, element: h("label", { class: "option" }, field, " ", label) };
  });
  const answer = () => {
    const values = fields.filter(({ field }) => field.checked).map(({ value }) => value);
    if (type === "checkbox") send(values);
    else if (values.length) send(values[0]);
  };
  return [h("div", { class: "options", role: type === "radio" ? "radiogroup" : "group", "aria-label": asked.message }, fields.map(({ element }) => element)),
    bar(button("Answer", answer, { class: "primary" }), decline)];
}

function form(asked, send, decline) {
  const fields = new SchemaForm(asked.schema || {});
  if (asked.default) fields.write(asked.default);
  return [fields.element, bar(button("Answer", () => {
    const read = fields.read();
    if (read) send(read.value);
  }, { class: "primary" }), decline)];
}

/** What a run asks now, each question once: kept as it is while it is open, so that nothing that
    was typed is lost. */
export class OpenQuestions {
  constructor() {
    this.element = h("div", { class: "questions" });
    this._shown = new Map();
  }

  /** Show these: `[{run, request, ...}]`. */
  show(asked) {
    const wanted = new Map(asked.map((each) => [`${each.run}.${each.request}`, each]));
    for (const [id, element] of this._shown) {
      if (!wanted.has(id)) {
        element.remove();
        this._shown.delete(id);
      }
    }
    for (const [id, each] of wanted) {
      if (this._shown.has(id)) continue;
      const element = question(each);
      this._shown.set(id, element);
      this.element.append(element);
      announce(`A question: ${each.message}`);
    }
  }
}

/** The questions of one run that are open, as far as it is known. */
export function openOf(log) {
  if (log.isOver) return [];
  if (hearing.questions) return [...approvals.values()].filter((each) => each.run === log.run).map((each) => whole(each, log));
  const known = runs.get(log.run);
  const last = [...log.requests.values()].pop();
  return last && known && known.state === "asking" ? [{ ...last, run: log.run }] : [];
}

/** What is told of all questions leaves out the default, and what is very large. */
function whole(approval, log) {
  const said = log.requests.get(approval.request);
  return said ? { ...said, run: log.run } : approval;
}
