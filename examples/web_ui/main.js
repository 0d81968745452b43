// Start a run, and watch it in three ways at the same time.

import { Substrate } from "./substrate.js";

const field = (id) => document.getElementById(id);
const show = (text) => { field("state").textContent = text; };
let server = null;

/** Show the items in a list; resolves with how many there were. */
async function list(id, items, onItem = () => {}) {
  const place = field(id);
  place.replaceChildren();
  for await (const item of items) {
    const line = document.createElement("li");
    line.value = item.seq;
    line.textContent = JSON.stringify(item.event); // as text: it may contain anything
    place.append(line);
    onItem(item);
  }
  return place.childElementCount;
}

function connect() {
  server = new Substrate(field("url").value);
  show(server.isLoggedIn ? "Logged in" : "Not logged in");
}

/** Run an action for an event and show its error. */
function on(id, event, act) {
  field(id).addEventListener(event, (happened) => {
    happened.preventDefault();
    act().catch((error) => show(error.message));
  });
}

on("login", "submit", async () => {
  connect();
  await server.login(field("token").value);
  field("token").value = "";
  show("Logged in");
});

on("logout", "click", async () => {
  await server.logout();
  show("Not logged in");
});

on("run", "submit", async () => {
  show("Running");
  const watching = [];
  const own = list("fetch", server.run(field("method").value, JSON.parse(field("params").value)), ({ run }) => {
    if (watching.length) return;
    watching.push(list("events", server.followEvents(run)), list("socket", server.followSocket(run)));
  });
  const counts = [await own, ...(await Promise.all(watching))];
  show(`Ended: ${counts.join(", ")} items`);
});

field("url").addEventListener("change", connect);
connect();
