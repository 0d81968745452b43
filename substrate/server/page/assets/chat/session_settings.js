// The settings of a session: a form made from the schema of `chat.create`, whose parameters are
// those of `chat.configure`, with their defaults.

import { html, useMemo, useState } from "../core/html.js";
import { alternatives, methods } from "../core/schema.js";
import { Form } from "../ui/form.js";
import { toast } from "../ui/toast.js";

/** Settings that have a place of their own, or no meaning for most models. */
const ELSEWHERE = new Set(["name", "model"]);
const CLAUDE_CODE = new Set(["working_dir", "allowed_tools"]);
/** The values that remove a setting, by type. */
const EMPTY = { string: "", integer: 0, array: [] };

/** @param {{conversation: import("./conversation.js").Conversation, onClose: () => void}} props */
export function SessionSettings({ conversation, onClose }) {
  const session = conversation.session.value;
  const params = methods.value.get("chat.create")?.params;
  const isClaudeCode = session?.model.startsWith("claude-code:");
  const [faults, setFaults] = useState(/** @type {{at: string, fault: string}[]} */ ([]));
  const [isBusy, setBusy] = useState(false);
  const schema = useMemo(() => params && {
    ...params, required: [],
    properties: Object.fromEntries(Object.entries(params.properties).filter(([name]) => !ELSEWHERE.has(name) && (isClaudeCode || !CLAUDE_CODE.has(name)))),
  }, [params, isClaudeCode]);
  if (!schema || !session) return html`<p>Loading the settings…</p>`;
  const submit = async (/** @type {Record<string, any>} */ given) => {
    const { changes, kept } = changesOf(schema, session, given);
    if (kept.length) {
      setFaults(kept.map((at) => ({ at, fault: "can be changed, but not removed" })));
      return;
    }
    setBusy(true);
    try {
      await conversation.configure(changes);
      toast("Settings saved");
      onClose();
    } catch (error) {
      const found = /** @type {any} */ (error).faults;
      setFaults(found?.length ? found : [{ at: "", fault: /** @type {Error} */ (error).message }]);
    } finally {
      setBusy(false);
    }
  };
  return html`<${Form} schema=${schema} value=${session} onSubmit=${submit} submitLabel="Save" busyLabel="Saving…" busy=${isBusy} faults=${faults} idPrefix="session" label="Session settings">
    <button type="button" onClick=${onClose}>Cancel</button><//>`;
}

/** Return the settings that differ; one that was emptied gets the value that removes it. `kept` are
    those that cannot be removed. @param {any} schema @param {any} session @param {Record<string, any>} given */
function changesOf(schema, session, given) {
  /** @type {Record<string, any>} */
  const changes = {};
  const kept = [];
  for (const [name, each] of Object.entries(schema.properties)) {
    const [before = null, after = /** @type {any} */ (each).default ?? null] = [session[name], given[name]];
    if (JSON.stringify(before) === JSON.stringify(after)) continue;
    if (after !== null) changes[name] = after;
    else if (before.length !== 0) {
      const empty = EMPTY[alternatives(each, schema).options[0]?.type];
      if (empty === undefined) kept.push(name);
      else changes[name] = empty;
    }
  }
  return { changes, kept };
}
