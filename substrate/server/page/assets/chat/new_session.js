// The form for a new session: its name, its model and its instructions.

import { html, useState } from "../core/html.js";
import { go, link } from "../core/router.js";
import { ModelPicker } from "./model_picker.js";
import { createSession, freeName } from "./sessions.js";

/** The form for a new session. */
export function NewSession() {
  const [model, setModel] = useState("");
  const [error, setError] = useState("");
  const submit = async (/** @type {any} */ event) => {
    event.preventDefault();
    const { name, prompt } = event.target.elements;
    try {
      const session = await createSession(name.value.trim() || freeName("Session"), model, prompt.value);
      go("chat", session.name);
    } catch (failure) {
      setError(/** @type {Error} */ (failure).message);
    }
  };
  return html`<form class="card new-session" aria-label="New session" onSubmit=${submit}>
    <h2>New session</h2>
    <div class="field"><label for="session-name">Name</label><input id="session-name" name="name" placeholder=${freeName("Session")} autocomplete="off" autofocus /></div>
    <${ModelPicker} value=${model} onChange=${setModel} />
    <div class="field"><label for="session-prompt">Instructions for the model</label><textarea id="session-prompt" name="prompt" rows="2" placeholder="Optional"></textarea></div>
    ${error ? html`<p class="error" role="alert">${error}</p>` : null}
    <div class="bar"><button type="submit" class="primary">Create</button><a class="button" href=${link("chat")}>Cancel</a></div></form>`;
}
