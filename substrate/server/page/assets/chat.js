// The view of conversations: sessions on the left, one of them on the right.

import { Conversation } from "./conversation.js";
import { button, h, newId, replace, toast, trouble } from "./dom.js";
import { go, link } from "./router.js";
import { call } from "./rpc.js";

/** Show the sessions, and the one that is named. */
export function showChat(parts, place) {
  const list = h("ul", { class: "plain chooser" });
  const note = h("div");
  const main = h("section", { class: "pane main", tabindex: "0", "aria-label": "The conversation" });
  let open = null;
  let shown = null;
  const mark = () => {
    for (const each of list.querySelectorAll("a")) {
      if (each.dataset.session === shown) each.setAttribute("aria-current", "true");
      else each.removeAttribute("aria-current");
    }
  };
  const show = (session) => {
    shown = session || null;
    if (open) open.close();
    open = null;
    mark();
    if (!session) replace(main, h("p", { class: "note" }, "Choose a conversation, or begin one."));
    else {
      open = new Conversation(session, { onSessions: refresh });
      replace(main, open.element);
    }
  };
  const refresh = async () => {
    try {
      const sessions = [];
      let after = null;
      do {
        const page = await call("chat.list", { limit: 500, ...(after ? { after } : {}) });
        sessions.push(...page.sessions);
        after = page.next;
      } while (after && sessions.length < 2000);
      sessions.sort((one, other) => other.updated_ms - one.updated_ms);
      replace(list, sessions.map((session) => h("li", {}, h("a", { href: link("chat", session.name), "data-session": session.name },
        h("span", { class: "name" }, session.name), h("span", { class: "about" }, `${session.model}${session.busy ? ", answering" : ""}`)))));
      mark();
      replace(note, null);
    } catch (error) {
      replace(note, trouble(error));
    }
  };
  place.append(h("div", { class: "split" }, h("div", { class: "pane side" }, h("h1", {}, "Chat"), newSession(refresh), note, list), main));
  refresh();
  show(parts[0]);
  const leave = () => open && open.close();
  leave.update = (next) => {
    if (next[0] !== shown) show(next[0]);
    return true;
  };
  return leave;
}

function labelled(label, field) {
  field.id = newId("field");
  return h("div", { class: "field" }, h("label", { for: field.id }, label), field);
}

/** What it takes to begin a conversation. */
function newSession(refresh) {
  const models = h("datalist", { id: newId("models") });
  const name = h("input", { type: "text", required: true, autocomplete: "off" });
  const model = h("input", { type: "text", list: models.id, autocomplete: "off" });
  const system = h("textarea", { rows: 2 });
  const tools = h("input", { type: "text", placeholder: "bash.execute, arbor.*", autocomplete: "off" });
  const said = h("div", { role: "alert" });
  const advice = h("p", { class: "help" });
  const create = async () => {
    replace(said, null);
    if (!name.value.trim()) {
      replace(said, trouble("A conversation needs a name."));
      name.focus();
      return;
    }
    const wanted = tools.value.split(",").map((each) => each.trim()).filter(Boolean);
    try {
      const session = await call("chat.create", {
        name: name.value.trim(), ...(model.value ? { model: model.value } : {}),
        ...(system.value ? { system_prompt: system.value } : {}), ...(wanted.length ? { tools: wanted } : {}),
      });
      panel.open = false;
      name.value = "";
      await refresh();
      go("chat", session.name);
    } catch (error) {
      replace(said, trouble(error));
    }
  };
  const panel = h("details", { class: "new" }, h("summary", {}, "New conversation"),
    h("form", { "aria-label": "New conversation", novalidate: true, onsubmit: (event) => {
      event.preventDefault();
      create();
    } }, labelled("Name", name), labelled("Model", model), advice, models, labelled("What it is told first", system), labelled("Tools it may use", tools),
    h("div", { class: "bar" }, button("Create", create, { class: "primary", type: "submit", onclick: null }), h("a", { href: link("explore", "chat.create") }, "all options")), said));
  panel.addEventListener("toggle", async () => {
    if (!panel.open || models.childElementCount) return;
    name.focus();
    try {
      const known = await call("chat.models");
      model.placeholder = known.default;
      replace(models, known.providers.filter((each) => each.ready).map((each) => h("option", { value: each.example })));
      const missing = known.providers.filter((each) => !each.ready).map((each) => `${each.provider}: ${each.advice}`);
      advice.textContent = missing.length ? `Not ready: ${missing.join("; ")}.` : "";
    } catch (error) {
      toast(error.message);
    }
  });
  return panel;
}
