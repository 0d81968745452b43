// The page: comes in, shows the views, and knows the keys.

import { showArbor } from "./arbor.js";
import { showChat } from "./chat.js";
import { h, replace, toast } from "./dom.js";
import { showExplore } from "./explore.js";
import { showHealth } from "./health.js";
import { approvals, hearing, onLive, startLive, stopLive } from "./live.js";
import { addView, go, startRouter, stopRouter } from "./router.js";
import { showRun } from "./run.js";
import { resumeOwn } from "./runs.js";
import { loadSchema } from "./schema.js";
import { beginSession, comeIn, endSession, hasSession, onSession } from "./session.js";
import { showWatch } from "./watch.js";

const VIEWS = { explore: showExplore, run: showRun, watch: showWatch, arbor: showArbor, chat: showChat, health: showHealth };
const WITHOUT = "Open the address that the server showed when it started, or the one that `substrate token --link` prints. Or give the token here, which `substrate token` prints.";

const say = (text) => { document.getElementById("connection").textContent = text; };

/** Ask for the token, and say why. */
function askToken(why) {
  const token = h("input", { type: "password", autocomplete: "off", id: "token" });
  const fault = h("p", { class: "fault", role: "alert" }, why || "");
  const send = async (event) => {
    event.preventDefault();
    fault.textContent = (await beginSession(token.value.trim())) || "";
    if (!fault.textContent) location.reload();
  };
  document.getElementById("badge").hidden = true;
  document.getElementById("logout").hidden = true;
  say("Not connected");
  replace(document.getElementById("view"), h("section", { class: "login" }, h("h1", {}, "Not connected"), h("p", { id: "state" }, WITHOUT),
    h("form", { onsubmit: send }, h("div", { class: "field" }, h("label", { for: "token" }, "Token"), token), h("button", { class: "primary", type: "submit" }, "Connect"), fault)));
  token.focus();
}

function showBadge() {
  const badge = document.getElementById("badge");
  badge.hidden = approvals.size === 0;
  badge.textContent = `${approvals.size} ${approvals.size === 1 ? "question" : "questions"}`;
  say(hearing.state === "open" ? "Connected" : "Connecting…");
}

/** `/` searches, `g` and a letter goes to a view, `?` shows the keys. */
function listenKeys() {
  let going = false;
  const letters = Object.fromEntries(Object.keys(VIEWS).map((name) => [name[0], name]));
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input,textarea,select,[contenteditable]");
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    if (going && letters[event.key]) {
      event.preventDefault();
      going = false;
      go(letters[event.key]);
    } else if (event.key === "g") {
      going = true;
      setTimeout(() => { going = false; }, 1500);
    } else if (event.key === "/") {
      event.preventDefault();
      const search = document.getElementById("search");
      if (search) search.focus();
      else {
        go("explore");
        requestAnimationFrame(() => document.getElementById("search")?.focus());
      }
    } else if (event.key === "?") document.getElementById("keys").showModal();
  });
}

/** Offer to end the session; there is none where the server asks for no token. */
function listenLogout() {
  const logout = document.getElementById("logout");
  logout.hidden = !hasSession();
  logout.addEventListener("click", async () => {
    const wrong = await endSession().catch((error) => error.message);
    if (wrong) toast(`Not logged out: ${wrong}`);
    else location.reload(); // nothing of what the page has read stays in it
  });
}

async function start() {
  const wrong = await comeIn().catch((error) => error.message);
  let isOver = false;
  onSession((ended) => {
    if (ended && !isOver) {
      isOver = true;
      stopRouter();
      stopLive();
      askToken(wrong ? `${wrong}.` : "");
    } else if (!ended && isOver) location.reload(); // another tab has a session again
  });
  listenLogout();
  // A new link in the same tab changes only what is behind the `#`.
  window.addEventListener("hashchange", () => location.hash.includes("token=") && comeIn().then(() => location.reload()));
  listenKeys();
  document.getElementById("skip").addEventListener("click", (event) => {
    event.preventDefault();
    document.getElementById("view").focus();
  });
  document.getElementById("close-keys").addEventListener("click", () => document.getElementById("keys").close());
  for (const [name, show] of Object.entries(VIEWS)) addView(name, show);
  onLive(showBadge);
  loadSchema().then((schema) => {
    document.getElementById("version").textContent = schema.version;
    performance.mark("ready");
  }, (error) => say(error.message));
  resumeOwn();
  startLive();
  startRouter();
}

start();
