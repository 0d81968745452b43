// The fields of a form, one kind of JSON Schema each. A field shows a draft and passes the next draft
// to `set`; the form keeps it.

import { duration, size } from "../core/format.js";
import { html } from "../core/html.js";
import { join, resolved } from "../core/schema.js";
import { draftOf, entryOf, newRow, optionName, optionOf, partsOf, textOf } from "./form_draft.js";

/** @typedef {import("./form_draft.js").Field} Field */
/** What all fields of a form share: `faults` by place, `leave` is called when a field loses the focus.
    @typedef {{prefix: string, faults: Map<string, string>, leave: (field: Field, draft: any, at: string) => void}} Frame */
/** @typedef {{field: Field, draft: any, set: (draft: any) => void, at: string, frame: Frame}} Props */
/** How a control is named and described. @typedef {{id: string, labelled?: string, label?: string, describedby: string, invalid: boolean}} Naming */

const RADIOS = 4;
const LONG_TEXT = 200;
const LONG_NAME = /^(body|code|command|content|description|input|instructions|lines|message|prompt|query|script|source|sql|stdin|text)$|_(prompt|text|content|message|code)$/;
const CODE_NAME = /^(code|command|script|source|sql|stdin|lines)$|_code$/;
const INPUT_TYPES = { date: "date", "date-time": "datetime-local", time: "time", email: "email", uri: "url" };
const UNITS = { s: "s", ms: "ms", bytes: "bytes", tokens: "tokens", chars: "characters", percent: "%" };

/** Return the id of a field. @param {string} prefix @param {string} at */
const idOf = (prefix, at) => `${prefix}-${at.replace(/\s/g, "_") || "value"}`;

/** A field with its label, its description and its fault. @param {Props & {label?: string, children?: any}} props */
export function LabelledField({ field, draft, set, at, frame, label, children }) {
  if (field.kind === "const") return null;
  const id = idOf(frame.prefix, at);
  const fault = frame.faults.get(at);
  const help = describe(field);
  const describedby = [help && `${id}-help`, fault && `${id}-fault`].filter(Boolean).join(" ");
  const isGroup = isGroupOf(field, draft);
  const naming = { id, labelled: `${id}-label`, describedby, invalid: Boolean(fault) };
  const name = html`${label || field.name}${field.required && !label ? html` <small class="needed">required</small>` : null}`;
  const notes = html`${help ? html`<p class="help" id=${`${id}-help`}>${help}</p>` : null}${fault ? html`<p class="error" id=${`${id}-fault`}>${fault}</p>` : null}`;
  const control = html`<${Control} field=${field} draft=${draft} set=${set} at=${at} frame=${frame} naming=${naming} />`;
  if (isGroup) {
    return html`<fieldset class="field group" data-at=${at} aria-describedby=${describedby || null}><legend id=${`${id}-label`}>${name}</legend>${notes}${control}${children}</fieldset>`;
  }
  if (field.kind === "flag" && !field.isWrapped) {
    return html`<div class="field" data-at=${at}><span class="check">${control}<label id=${`${id}-label`} for=${id}>${name}</label>${children}</span>${notes}</div>`;
  }
  return html`<div class="field" data-at=${at}><span class="bar"><label id=${`${id}-label`} for=${id}>${name}</label>${children}</span>${control}${notes}</div>`;
}

/** Whether a field has several controls. @param {Field} field @param {any} draft */
function isGroupOf(field, draft) {
  if (field.isWrapped) return isGroupOf({ ...field, isWrapped: false }, draft.of);
  if (field.kind === "choice") return (field.values || []).length <= RADIOS;
  return ["many", "list", "map", "object", "union"].includes(field.kind) || (field.kind === "flag" && typeof field.schema.default !== "boolean" && !field.required);
}

/** @param {Field} field */
function describe({ schema, name, nullable, kind }) {
  const parts = [];
  // A description that only repeats the name adds nothing.
  if (schema.description && schema.description.toLowerCase() !== name.replace(/_/g, " ")) parts.push(schema.description);
  const { minimum = schema.exclusiveMinimum, maximum = schema.exclusiveMaximum } = schema;
  if (kind === "number" && minimum !== undefined && maximum !== undefined) parts.push(`${minimum} to ${maximum}.`);
  else if (kind === "number" && minimum !== undefined) parts.push(`At least ${minimum}.`);
  else if (kind === "number" && maximum !== undefined) parts.push(`At most ${maximum}.`);
  const human = kind === "number" && typeof schema.default === "number" ? humanNumber(name, schema.default) : "";
  if (human) parts.push(`Default: ${human}.`);
  if (kind === "list" && nullable && schema.minItems) parts.push(`At least ${schema.minItems} entries.`);
  return parts.join(" ");
}

/** Return a large number with its unit as people read it, if its name tells the unit. @param {string} name @param {number} value */
function humanNumber(name, value) {
  if (name.endsWith("_bytes") && value >= 1000) return size(value);
  if (name.endsWith("_s") && value >= 60) return duration(value * 1000);
  if (name.endsWith("_ms") && value >= 1000) return duration(value);
  return "";
}

/** A control without its label. @param {Props & {naming: Naming}} props */
function Control(props) {
  const { field, draft, set } = props;
  if (field.isWrapped) {
    const inner = { ...field, isWrapped: false };
    return html`<div class="or-null">${draft.isNull ? html`<span class="dim grow">null</span>` : html`<${Control} ...${props} field=${inner} draft=${draft.of} set=${(of) => set({ ...draft, of })} />`}
      <label class="check"><input type="checkbox" checked=${draft.isNull} onChange=${(event) => set({ ...draft, isNull: event.target.checked })} /> null<span class="unseen"> for ${field.name}</span></label></div>`;
  }
  const Kind = { text: Text, number: Text, json: Text, flag: Flag, choice: Choice, many: Many, list: Rows, map: Rows, object: ObjectFields, union: Union }[field.kind];
  return Kind ? html`<${Kind} ...${props} />` : null;
}

/** The attributes that name and describe a control. @param {Naming} naming @param {Field} field */
const named = (naming, field) => ({
  id: naming.id, "aria-describedby": naming.describedby || null, "aria-invalid": naming.invalid ? "true" : null,
  "aria-label": naming.label || null, "aria-required": field.required && field.kind !== "flag" ? "true" : null,
});

/** Text, a number or JSON. @param {Props & {naming: Naming}} props */
function Text({ field, draft, set, at, frame, naming }) {
  const { schema, kind } = field;
  const placeholder = schema.default === undefined || schema.default === null ? (kind === "json" ? `JSON, such as ${schema.type === "object" ? '{"name": "value"}' : "null"}` : "")
    : kind === "json" ? JSON.stringify(schema.default) : String(schema.default);
  const common = {
    ...named(naming, field), placeholder, value: draft, spellcheck: false, autocapitalize: "off", autocomplete: "off",
    onInput: (event) => set(event.target.value), onBlur: () => frame.leave(field, draft, at),
  };
  if (field.isSecret) return html`<input type="password" ...${common} autocomplete="new-password" />`;
  const isLong = kind === "json" || (kind === "text" && (LONG_NAME.test(field.name) || (schema.maxLength || 0) > LONG_TEXT || draft.includes("\n")));
  if (isLong) return html`<textarea rows=${kind === "json" ? 2 : 3} class=${kind === "json" || CODE_NAME.test(field.name) ? "mono" : null} ...${common}></textarea>`;
  const unit = kind === "number" ? UNITS[field.name.split("_").slice(1).pop() || ""] : "";
  // An input drops the line breaks of a pasted text; as a text area it keeps them.
  const onPaste = (event) => {
    const text = event.clipboardData?.getData("text") || "";
    if (kind !== "text" || !text.trim().includes("\n")) return;
    event.preventDefault();
    const { selectionStart, selectionEnd, value } = event.target;
    set(value.slice(0, selectionStart) + text + value.slice(selectionEnd));
    queueMicrotask(() => document.getElementById(naming.id)?.focus());
  };
  const type = (kind === "text" && INPUT_TYPES[schema.format]) || "text";
  return html`<span class="with-unit"><input type=${type} inputmode=${kind === "number" ? (schema.type === "integer" ? "numeric" : "decimal") : null} step=${type === "datetime-local" ? 1 : null} onPaste=${onPaste} ...${common} />${unit ? html`<span class="unit dim">${unit}</span>` : null}</span>`;
}

/** Yes or no. @param {Props & {naming: Naming}} props */
function Flag({ field, draft, set, naming, at, frame }) {
  if (field.required || typeof field.schema.default === "boolean") {
    return html`<input type="checkbox" ...${named(naming, field)} checked=${draft === true} onChange=${(event) => set(event.target.checked)} />`;
  }
  const choice = /** @type {Field} */ ({ ...field, kind: "choice", values: [true, false], labels: ["yes", "no"] });
  return html`<${Choice} field=${choice} draft=${draft === null ? -1 : draft ? 0 : 1} set=${(index) => set(index < 0 ? null : index === 0)} naming=${naming} at=${at} frame=${frame} />`;
}

/** One of some values: radio buttons, or a list if there are many. @param {Props & {naming: Naming}} props */
function Choice({ field, draft, set, naming }) {
  const { values = [], labels = [], schema } = field;
  const hasDefault = schema.default !== undefined && schema.default !== null;
  const isOptional = !field.required && !hasDefault;
  if (values.length > RADIOS) {
    return html`<select ...${named(naming, field)} value=${String(draft)} onChange=${(event) => set(Number(event.target.value))}>
      ${isOptional || draft < 0 ? html`<option value="-1">${isOptional ? "(not set)" : "Choose …"}</option>` : null}
      ${labels.map((label, index) => html`<option value=${String(index)} selected=${index === draft}>${label}${hasDefault && values[index] === schema.default ? " (default)" : ""}</option>`)}</select>`;
  }
  const radio = (index, label, isFirst) => html`<label class="check" key=${index}>
    <input type="radio" name=${naming.id} id=${isFirst ? naming.id : null} checked=${draft === index} aria-invalid=${naming.invalid ? "true" : null} onChange=${() => set(index)} /> ${label}</label>`;
  return html`<div class="radios" role="radiogroup" aria-labelledby=${naming.labelled || null} aria-label=${naming.label || null} aria-required=${field.required ? "true" : null}>
    ${isOptional ? radio(-1, "not set", true) : null}
    ${labels.map((label, index) => radio(index, `${label}${hasDefault && values[index] === schema.default ? " (default)" : ""}`, index === 0 && !isOptional))}</div>`;
}

/** Any of some values. @param {Props & {naming: Naming}} props */
function Many({ field, draft, set, naming }) {
  const values = resolved(field.schema.items, field.root).enum;
  return html`<div class="radios">${values.map((value, index) => html`<label class="check" key=${index}>
    <input type="checkbox" id=${index === 0 ? naming.id : null} checked=${draft.includes(index)} onChange=${(event) => set(event.target.checked ? [...draft, index] : draft.filter((each) => each !== index))} /> ${textOf(value)}</label>`)}</div>`;
}

/** The fields of an object. One that is not set has a button that sets it. @param {Props & {naming: Naming}} props */
function ObjectFields({ field, draft, set, at, frame, naming }) {
  if (draft === null) {
    return html`<div><button type="button" class="small" id=${naming.id} onClick=${() => { set(draftOf({ ...field, required: true }, {})); focusFirst(naming.id); }}>Set ${field.name}</button></div>`;
  }
  return html`<div class="fields" id=${naming.id}>
    ${partsOf(field).map((part) => html`<${LabelledField} key=${part.name} field=${part} draft=${draft.fields[part.name]} at=${join(at, part.name)} frame=${frame}
      set=${(next) => set({ fields: { ...draft.fields, [part.name]: next } })} />`)}
    ${field.required ? null : html`<div><button type="button" class="small" onClick=${() => { set(null); focusFirst(naming.id); }}>Remove ${field.name}</button></div>`}</div>`;
}

/** Move the focus to an element, or to the first control inside, after the render that is already queued. @param {string} id */
function focusFirst(id) {
  queueMicrotask(() => {
    const element = document.getElementById(id);
    const target = element?.matches("button,input,textarea,select") ? element : element?.querySelector("input,textarea,select,button");
    /** @type {HTMLElement | null | undefined} */ (target)?.focus();
  });
}

/** The entries of a list, or of a map from names to values. @param {Props & {naming: Naming}} props */
function Rows({ field, draft, set, at, frame, naming }) {
  const entry = entryOf(field);
  const isMap = field.kind === "map";
  const isFull = draft.length >= (field.schema.maxItems ?? Infinity);
  const change = (index, part) => set(draft.map((row, each) => (each === index ? { ...row, ...part } : row)));
  const move = (index, to) => {
    const rows = [...draft];
    rows.splice(to, 0, ...rows.splice(index, 1));
    set(rows);
  };
  const remove = (index) => {
    set(draft.filter((_, each) => each !== index));
    focusFirst(naming.id);
  };
  const add = () => {
    set([...draft, newRow(entry)]);
    focusFirst(isMap ? `${naming.id}-name-${draft.length}` : idOf(frame.prefix, join(at, draft.length)));
  };
  const row = (each, index) => {
    const place = join(at, isMap ? each.name : index);
    const tools = html`<span class="row-tools">
      ${isMap ? null : html`<button type="button" class="small" aria-label=${`Move entry ${index + 1} up`} disabled=${index === 0} onClick=${() => move(index, index - 1)}>↑</button>
        <button type="button" class="small" aria-label=${`Move entry ${index + 1} down`} disabled=${index === draft.length - 1} onClick=${() => move(index, index + 1)}>↓</button>`}
      <button type="button" class="small" aria-label=${`Remove entry ${index + 1}`} onClick=${() => remove(index)}>Remove</button></span>`;
    return html`<li key=${each.key}>
      ${isMap ? html`<input class="mono map-name" id=${`${naming.id}-name-${index}`} aria-label=${`Name ${index + 1} of ${field.name}`} placeholder="name" value=${each.name} autocomplete="off" spellcheck=${false} onInput=${(event) => change(index, { name: event.target.value })} />` : null}
      <${LabelledField} field=${entry} draft=${each.draft} set=${(next) => change(index, { draft: next })} at=${place} frame=${frame} label=${isMap ? `Value ${index + 1}` : `Entry ${index + 1}`}>${tools}<//></li>`;
  };
  return html`<div class="rows">${draft.length ? html`<ol class=${`plain ${isMap ? "map" : ""}`}>${draft.map(row)}</ol>` : null}
    <button type="button" class="small" id=${naming.id} disabled=${isFull} aria-label=${`Add an entry to ${field.name}`} onClick=${add}>Add entry</button></div>`;
}

/** One of several kinds of value. @param {Props & {naming: Naming}} props */
function Union({ field, draft, set, at, frame, naming }) {
  const options = field.options || [];
  const choose = (index) => set({ index, draft: index < 0 ? null : draftOf(optionOf(field, index), undefined) });
  const inner = draft.index < 0 ? null : optionOf(field, draft.index);
  return html`<div class="union"><select id=${naming.id} aria-label=${`Kind of ${field.name}`} aria-invalid=${naming.invalid ? "true" : null} value=${String(draft.index)} onChange=${(event) => choose(Number(event.target.value))}>
      ${field.required ? null : html`<option value="-1">(not set)</option>`}
      ${options.map((option, index) => html`<option value=${String(index)} selected=${index === draft.index}>${optionName(option)}</option>`)}</select>
    ${inner ? html`<div class="grow"><${Control} key=${draft.index} field=${inner} draft=${draft.draft} at=${at} frame=${frame} set=${(next) => set({ ...draft, draft: next })}
      naming=${{ id: `${naming.id}-of`, label: `Value of ${field.name}`, describedby: naming.describedby, invalid: naming.invalid }} /></div>` : null}</div>`;
}
