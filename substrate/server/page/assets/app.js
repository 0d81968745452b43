// The page: begins the session, connects, and shows the frame with its views.

import { connect, disconnect, state } from "./core/connection.js";
import { effect, html, render, useState } from "./core/html.js";
import { watchServer } from "./core/live.js";
import { loadSchema } from "./core/schema.js";
import { beginSession, enter, onSession } from "./core/session.js";
import { startNotifications } from "./ui/notifications.js";
import { Shell, loadView } from "./ui/shell.js";
import { watchTitle } from "./ui/title.js";
import { toast } from "./ui/toast.js";

const root = /** @type {HTMLElement} */ (document.getElementById("app"));

/** Asks for a token, because there is no session. @param {{reason: string}} props */
function Login({ reason }) {
  const [error, setError] = useState(reason);
  const submit = async (/** @type {any} */ event) => {
    event.preventDefault();
    const failure = await beginSession(event.target.elements.token.value.trim()).catch((/** @type {Error} */ each) => each.message);
    if (failure) setError(failure);
    else location.reload();
  };
  return html`<main id="view" class="login"><h1>Not connected</h1>
    <p id="state">Open the address that the server printed when it started, or print a new one with <code>substrate token --link</code>. Or enter the token that <code>substrate token</code> prints.</p>
    <form onSubmit=${submit}><label for="token">Token</label><input id="token" name="token" type="password" autocomplete="off" autofocus />
      <button type="submit" class="primary">Connect</button>${error ? html`<p class="error" role="alert">${error}</p>` : null}</form></main>`;
}

async function start() {
  const failure = await enter().catch((error) => error.message);
  let isOver = false;
  onSession((ended) => {
    if (ended && !isOver) {
      isOver = true;
      disconnect();
      document.title = "Not connected · Substrate";
      render(html`<${Login} reason=${failure ? `${failure}.` : ""} />`, root);
    } else if (!ended && isOver) location.reload(); // another tab has a session again
  });
  // A new link in the same tab changes only the fragment.
  addEventListener("hashchange", () => location.hash.includes("token=") && enter().then(() => location.reload()));
  // The server answers while the page is drawn.
  connect();
  // Again after every loss: a restarted server may have other activations.
  effect(() => {
    if (state.value === "open") loadSchema().then(() => performance.mark("ready"), (error) => error.code !== "lost" && toast(error.message));
  });
  watchServer();
  watchTitle();
  render(html`<${Shell} />`, root); // replaces the HTML, which has the same navigation
  startNotifications();
}

loadView();
start();
