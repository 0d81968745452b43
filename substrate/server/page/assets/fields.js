// The fields of a form, one kind of JSON Schema each. A field is `{element, read(), write(value)}`;
// `read` gives a value, LEFT_OUT, or throws FieldError for what is no value at all.

import { button, h, newId } from "./dom.js";
import { alternatives, join, kindOf, resolved } from "./schema.js";

/** The value of a field that nobody filled in. */
export const LEFT_OUT = Symbol("left out");

/** What is in a field is no value. */
export class FieldError extends Error {
  constructor(at, fault) {
    super(fault);
    this.at = at;
  }
}

/** Where messages about one field stand, and its label and help: shared by all kinds. */
function frame(form, at, name, schema, required, control) {
  const fault = h("p", { class: "fault", id: newId("fault"), hidden: true });
  const help = h("p", { class: "help", id: newId("help") }, describe(schema, form.root, name));
  const target = control.target || control.element;
  target.id = target.id || newId("field");
  const isField = /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName);
  if (isField || control.target) target.setAttribute("aria-describedby", `${help.id} ${fault.id}`);
  else target.tabIndex = -1; // a group: it is gone to when something is wrong with all of it
  if (required && isField && target.type !== "checkbox") target.setAttribute("aria-required", "true");
  form.places.set(at, { fault, target });
  const label = control.group
    ? h("legend", {}, name, required && h("span", { class: "required", "aria-hidden": "true" }, " *"))
    : h("label", { for: target.id }, name, required && h("span", { class: "required", "aria-hidden": "true" }, " *"));
  if (control.group) return h("fieldset", { class: "field group" }, label, help, control.element, fault);
  return h("div", { class: "field" }, label, control.element, help, fault);
}

function describe(schema, root, name) {
  const whole = resolved(schema, root);
  const parts = [];
  // What only repeats the name says nothing.
  if (whole.description && whole.description !== name.replace(/_/g, " ")) parts.push(whole.description);
  if (whole.default !== undefined && whole.default !== null) parts.push(`Default: ${JSON.stringify(whole.default)}.`);
  return parts.join(" ");
}

/** A field with its label. */
export function field(form, schema, at, name, required) {
  const control = controlOf(form, schema, at, required);
  return { element: frame(form, at, name, schema, required, control), read: control.read, write: control.write };
}

function controlOf(form, schema, at, required) {
  const whole = resolved(schema, form.root);
  const { options } = alternatives(whole, form.root);
  const given = { ...options[0], default: whole.default };
  if (options.length > 1) return union(form, options, at, required);
  if (given.enum || "const" in given) return choice(given, required);
  switch (given.type) {
    case "boolean": return flag(given, required);
    case "integer":
    case "number": return number(given, at, required);
    case "string": return text(given, required);
    case "array": return list(form, given, at);
    case "object": return given.properties ? object(form, given, at, required) : json(at, required, "{}");
    default: return json(at, required, "null");
  }
}

function text(schema, required) {
  const hint = schema.default === undefined || schema.default === null ? "" : String(schema.default);
  const element = h("textarea", { rows: 1, placeholder: hint, spellcheck: "false", autocapitalize: "off" });
  return {
    element,
    read: () => (element.value === "" ? LEFT_OUT : element.value),
    write: (value) => { element.value = value; },
    required,
  };
}

function number(schema, at, required) {
  const hint = schema.default === undefined || schema.default === null ? "" : String(schema.default);
  const element = h("input", { type: "text", inputmode: "decimal", placeholder: hint, autocomplete: "off" });
  return {
    element,
    read: () => {
      const given = element.value.trim();
      if (given === "") return LEFT_OUT;
      const value = Number(given);
      if (!Number.isFinite(value)) throw new FieldError(at, "must be a number");
      return value;
    },
    write: (value) => { element.value = String(value); },
    required,
  };
}

function flag(schema, required) {
  if (required || schema.default === true || schema.default === false) {
    const element = h("input", { type: "checkbox", checked: schema.default === true });
    return {
      element,
      read: () => (!required && element.checked === schema.default ? LEFT_OUT : element.checked),
      write: (value) => { element.checked = value; },
    };
  }
  return choice({ enum: [true, false], default: schema.default }, required);
}

function choice(schema, required) {
  const values = schema.enum || [schema.const];
  const said = (value) => (value === true ? "yes" : value === false ? "no" : typeof value === "string" ? value : JSON.stringify(value));
  const element = h("select", {},
    !required && h("option", { value: "" }, schema.default === undefined || schema.default === null ? "(left out)" : `(default: ${said(schema.default)})`),
    values.map((value, index) => h("option", { value: String(index) }, said(value))));
  return {
    element,
    read: () => (element.value === "" ? LEFT_OUT : values[Number(element.value)]),
    write: (value) => { element.value = String(values.indexOf(value)); },
  };
}

function json(at, required, hint) {
  const element = h("textarea", { rows: 1, class: "code", placeholder: `JSON, as in ${hint}`, spellcheck: "false", autocapitalize: "off" });
  return {
    element,
    read: () => {
      if (element.value.trim() === "") return LEFT_OUT;
      try {
        return JSON.parse(element.value);
      } catch (error) {
        throw new FieldError(at, `is no JSON: ${error.message}`);
      }
    },
    write: (value) => { element.value = JSON.stringify(value, null, 2); },
    required,
  };
}

/** Fields in a group. */
export function object(form, schema, at, required) {
  const needed = new Set(schema.required || []);
  const entries = Object.entries(schema.properties).map(([name, entry]) =>
    [name, field(form, entry, join(at, name), name, needed.has(name))]);
  return {
    group: true,
    element: h("div", { class: "fields" }, entries.map(([, entry]) => entry.element)),
    read: () => {
      const value = {};
      for (const [name, entry] of entries) {
        const given = entry.read();
        if (given !== LEFT_OUT) value[name] = given;
      }
      return Object.keys(value).length || required ? value : LEFT_OUT;
    },
    write: (value) => {
      for (const [name, entry] of entries) if (value && name in value && value[name] !== null) entry.write(value[name]);
    },
  };
}

function list(form, schema, at) {
  const rows = [];
  const place = h("ol", { class: "entries" });
  const number = () => rows.forEach((row, index) => { row.index = index; });
  const add = (value, focus) => {
    const index = rows.length;
    const entry = field(form, schema.items || {}, join(at, index), `Entry ${index + 1}`, true);
    const row = { entry, index, element: null };
    row.element = h("li", {}, entry.element, button("Remove", () => {
      rows.splice(row.index, 1);
      row.element.remove();
      number();
    }, { class: "small", "aria-label": `Remove entry ${index + 1}` }));
    rows.push(row);
    place.append(row.element);
    if (value !== undefined) entry.write(value);
    const first = row.element.querySelector("input,textarea,select");
    if (focus && first) first.focus();
  };
  const adder = button("Add an entry", () => add(undefined, true), { class: "small" });
  return {
    group: true,
    target: adder,
    element: h("div", {}, place, adder),
    read: () => (rows.length ? rows.map((row) => row.entry.read()).map((value) => (value === LEFT_OUT ? "" : value)) : LEFT_OUT),
    write: (value) => value.forEach((each) => add(each)),
  };
}

function union(form, options, at, required) {
  const place = h("div", {});
  const select = h("select", { "aria-label": "Kind of value" },
    !required && h("option", { value: "" }, "(left out)"),
    options.map((option, index) => h("option", { value: String(index) }, kindOf(option))));
  let inner = null;
  const show = () => {
    inner = select.value === "" ? null : controlOf(form, options[Number(select.value)], at, true);
    place.replaceChildren(...(inner ? [inner.element] : []));
    const target = inner && (inner.target || inner.element);
    if (target && /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName)) target.setAttribute("aria-label", "Value");
  };
  select.addEventListener("change", show);
  show();
  return {
    group: true,
    target: select,
    element: h("div", { class: "union" }, select, place),
    read: () => (inner ? inner.read() : LEFT_OUT),
    write: (value) => {
      const index = options.findIndex((option) => fits(value, option));
      if (index < 0) return;
      select.value = String(index);
      show();
      inner.write(value);
    },
  };
}

function fits(value, option) {
  if (option.type === "string") return typeof value === "string";
  if (option.type === "array") return Array.isArray(value);
  if (option.type === "object") return value !== null && typeof value === "object" && !Array.isArray(value);
  if (option.type === "integer" || option.type === "number") return typeof value === "number";
  if (option.type === "boolean") return typeof value === "boolean";
  return true;
}
