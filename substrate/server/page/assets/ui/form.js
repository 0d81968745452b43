// A form made from a JSON Schema. What is typed is checked before it is sent, and what the server
// finds wrong is shown at the same fields. The form keeps what is typed; `value` is only its beginning.

import { html, useEffect, useId, useLayoutEffect, useMemo, useRef, useState } from "../core/html.js";
import { faultsIn, join } from "../core/schema.js";
import { LEFT_OUT, draftOf, fieldOf, isFilled, partsOf, read } from "./form_draft.js";
import { LabelledField } from "./form_fields.js";

/** @typedef {import("./form_draft.js").Fault} Fault */
/** @typedef {import("./form_draft.js").Field} Field */

/** A form. `onSubmit` gets a value that the schema allows; `onChange` gets what can be read so far.
    `children` are put beside the button.
    @param {{schema: any, root?: any, value?: any, onSubmit: (value: any) => void, submitLabel?: string, busy?: boolean,
      busyLabel?: string, faults?: Fault[], onChange?: (value: any) => void, idPrefix?: string, label?: string, children?: any}} props */
export function Form({ schema, root = schema, value, onSubmit, submitLabel = "Send", busy = false, busyLabel = "Sending…", faults = [], onChange, idPrefix, label, children }) {
  const field = useMemo(() => fieldOf(schema, root, "Answer", true), [schema, root]);
  const ownId = useId();
  const element = useRef(/** @type {HTMLFormElement | null} */ (null));
  const [draft, setDraft] = useState(() => draftOf(field, value));
  /** @type {[{places: Map<string, string>, general: string[], count: number}, any]} */
  const [found, setFound] = useState({ places: new Map(), general: [], count: 0 });
  const latest = useRef(draft);

  const show = (/** @type {Fault[]} */ given) => setFound(({ count }) => ({ ...placed(given, element.current), count: count + 1 }));
  useLayoutEffect(() => {
    if (found.count) focusFirst(element.current, found.places);
  }, [found.count]);
  useEffect(() => {
    if (faults.length) show(faults);
  }, [faults]);
  const report = () => {
    const now = read(field, latest.current, "", []);
    onChange?.(now === LEFT_OUT ? undefined : now);
  };
  useEffect(report, []);

  const set = (next, at) => {
    latest.current = next;
    setDraft(next);
    report(); // at once: an effect is dropped if the form closes first, and what was typed with it
    setFound((known) => (known.places.size || known.general.length ? { ...known, places: cleared(known.places, at), general: [] } : known));
  };
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    if (busy) return;
    const { value: given, faults: wrong } = check(field, latest.current, schema, root);
    if (wrong.length) show(wrong);
    else {
      setFound((known) => ({ ...known, places: new Map(), general: [] }));
      onSubmit(given);
    }
  };
  const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    element.current?.requestSubmit();
  };
  /** Report text that is not a value when its field loses the focus. */
  const leave = (/** @type {Field} */ each, text, at) => {
    /** @type {Fault[]} */
    const wrong = [];
    read({ ...each, isWrapped: false }, text, at, wrong);
    if (wrong.length) setFound((known) => ({ ...known, places: new Map([...known.places, [at, wrong[0].fault]]) }));
  };
  const frame = { prefix: idPrefix || ownId, faults: found.places, leave };
  return html`<form class="form" ref=${element} aria-label=${label || null} noValidate onSubmit=${submit} onKeyDown=${onKeyDown}>
    ${field.kind === "object" ? html`<${Parameters} field=${field} draft=${draft} set=${set} frame=${frame} />`
      : html`<${LabelledField} field=${field} draft=${draft} set=${(next) => set(next, "")} at="" frame=${frame} />`}
    ${found.general.length ? html`<p class="error" role="alert">${found.general.join("; ")}</p>` : null}
    <div class="bar"><button type="submit" class="primary" disabled=${busy}>${busy ? busyLabel : submitLabel}</button>${children}</div></form>`;
}

/** The parameters of a call: optional ones are folded, unless there are no others.
    @param {{field: Field, draft: any, set: (draft: any, at: string) => void, frame: any}} props */
function Parameters({ field, draft, set, frame }) {
  const parts = partsOf(field);
  const needed = parts.filter((part) => part.required);
  const optional = parts.filter((part) => !part.required);
  const one = (/** @type {Field} */ part) => html`<${LabelledField} key=${part.name} field=${part} draft=${draft.fields[part.name]} at=${join("", part.name)} frame=${frame}
    set=${(next) => set({ fields: { ...draft.fields, [part.name]: next } }, part.name)} />`;
  const filled = optional.filter((part) => isFilled(part, draft.fields[part.name])).length;
  const [isOpen] = useState(filled > 0);
  if (!needed.length || !optional.length) return html`<div class="fields">${parts.map(one)}</div>`;
  return html`<div class="fields">${needed.map(one)}</div>
    <details class="more" open=${isOpen}><summary>More options <small>${filled ? `${filled} of ${optional.length} set` : optional.length}</small></summary>
      <div class="fields">${optional.map(one)}</div></details>`;
}

/** Read a draft and check it. @param {Field} field @param {any} draft @param {any} schema @param {any} root */
function check(field, draft, schema, root) {
  /** @type {Fault[]} */
  const faults = [];
  const value = read(field, draft, "", faults);
  if (value === LEFT_OUT) return { value, faults: faults.length ? faults : [{ at: "", fault: "is required" }] };
  // A field with text that is not a value is missing from the value; it is reported once.
  const known = new Set(faults.map(({ at }) => at));
  return { value, faults: [...faults, ...faultsIn(value, schema, root).filter(({ at }) => !known.has(at))] };
}

/** Assign each fault to its field, or to the nearest field around it. @param {Fault[]} faults @param {HTMLFormElement | null} form */
function placed(faults, form) {
  const places = new Map();
  const general = [];
  const names = new Set([...(form?.querySelectorAll("[data-at]") || [])].map((each) => each.getAttribute("data-at")));
  for (const { at, fault } of faults) {
    let path = String(at).replace(/\[(\d+)\]/g, ".$1").replace(/^\./, "");
    const whole = path;
    while (path && !names.has(path)) path = path.includes(".") ? path.slice(0, path.lastIndexOf(".")) : "";
    const text = path === whole ? fault : `${whole.slice(path.length).replace(/^\./, "")}: ${fault}`;
    if (names.has(path)) places.set(path, places.has(path) ? `${places.get(path)}; ${text}` : text);
    else general.push(text);
  }
  return { places, general };
}

/** @param {Map<string, string>} places @param {string} at */
function cleared(places, at) {
  return new Map([...places].filter(([each]) => each !== at && !each.startsWith(`${at}.`)));
}

/** Move the focus to the first field with a fault. @param {HTMLFormElement | null} form @param {Map<string, string>} places */
function focusFirst(form, places) {
  const wrong = [...(form?.querySelectorAll("[data-at]") || [])].filter((each) => places.has(each.getAttribute("data-at") || ""));
  const first = wrong.find((each) => !wrong.some((other) => other !== each && each.contains(other))) || wrong[0];
  if (!first) return;
  const fold = /** @type {HTMLDetailsElement | null} */ (first.closest("details:not([open])"));
  if (fold) fold.open = true;
  /** @type {HTMLElement | null} */ (first.querySelector("input:not([disabled]),textarea,select,button:not([disabled])"))?.focus();
}
