// The choice of a model: one of each provider, or any other by its name. A provider that lacks
// something is listed with what it lacks.

import { call } from "../core/connection.js";
import { html, signal, useEffect, useId, useState } from "../core/html.js";

/** @typedef {{provider: string, example: string, ready: boolean, advice?: string}} Provider */

/** What `chat.models` returned last; null until it is known. */
const known = signal(/** @type {{default: string, providers: Provider[]} | null} */ (null));
const problem = signal("");

/** @param {{value: string, onChange: (model: string) => void}} props */
export function ModelPicker({ value, onChange }) {
  const id = useId();
  const [isOther, setOther] = useState(false);
  useEffect(() => {
    call("chat.models").then((found) => { known.value = found; problem.value = ""; }, (error) => { problem.value = error.message; });
  }, []);
  const models = known.value;
  if (!models) return html`<p>${problem.value ? html`<span class="error" role="alert">${problem.value}</span>` : "Loading the models…"}</p>`;
  const chosen = value || models.default;
  const listed = models.providers.some((each) => each.example === chosen);
  const isNamed = isOther || !listed;
  return html`<fieldset class="models"><legend>Model</legend>
    ${models.providers.map((each, index) => html`<div key=${each.provider} class="model">
      <input type="radio" id=${`${id}-${index}`} name=${id} checked=${!isNamed && each.example === chosen} disabled=${!each.ready} aria-describedby=${each.ready ? null : `${id}-${index}-advice`}
        onChange=${() => { setOther(false); onChange(each.example); }} />
      <label for=${`${id}-${index}`}><code>${each.example}</code>${each.example === models.default ? html` <small>(default)</small>` : null}${each.provider === "echo" ? html` <small>repeats your message; needs no key</small>` : null}</label>
      ${each.ready ? null : html`<small class="advice" id=${`${id}-${index}-advice`}>Not available: <${Missing} advice=${each.advice || ""} /></small>`}</div>`)}
    <div class="model"><input type="radio" id=${`${id}-other`} name=${id} checked=${isNamed} onChange=${() => setOther(true)} /> <label for=${`${id}-other`}>Another model</label>
      ${isNamed ? html`<input type="text" aria-label="Name of the model" placeholder="provider:model" value=${value} autocomplete="off" spellcheck=${false} onChange=${(/** @type {any} */ event) => onChange(event.target.value.trim())} />` : null}</div>
  </fieldset>`;
}

/** What a provider lacks; for a key, the commands that provide it. @param {{advice: string}} props */
function Missing({ advice }) {
  const variable = /^set (\w+_API_KEY)\b/.exec(advice)?.[1];
  if (!variable) return `${advice}.`;
  return html`no key in the environment of the server. Start it with <code>${variable}=…</code>, or run <code>keyring set substrate ${variable}</code> and enter the model below.`;
}
