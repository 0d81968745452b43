// What is typed into a form, apart from its value. A draft keeps text that is not a value yet, such
// as half a number; `read` turns it into a value and reports what is wrong.
//
// The shape of a draft depends on the kind of its field:
//   text, number, json        the text
//   flag                      true, false or null (not set)
//   choice                    the index of the value, or -1 (not set)
//   many                      the indexes of the values
//   object                    {fields: {name: draft}}, or null (not set)
//   list, map                 rows {key, draft, name?}
//   union                     {index, draft}; index -1 (not set)
// A field whose null differs from its default has {isNull, of: draft} around it.

import { alternatives, faultsIn, join, kindOf, resolved } from "../core/schema.js";

/** The value of a field that is not set. */
export const LEFT_OUT = Symbol("left out");

/** A field: its kind, its schema without references and null, and how it is named.
    @typedef {{kind: "const" | "text" | "number" | "flag" | "choice" | "many" | "list" | "map" | "object" | "json" | "union",
      schema: any, name: string, required: boolean, nullable: boolean, isWrapped: boolean, isSecret: boolean,
      values?: any[], labels?: string[], options?: any[], root: any}} Field */
/** @typedef {{at: string, fault: string}} Fault */

/** Names of secrets whose schema does not say so. */
const SECRET_NAME = /^(secret|password|passphrase|api_key|token)$|_(secret|password|api_key)$/;
let lastKey = 0;

const isChoice = (schema) => "const" in schema || Array.isArray(schema.enum);
const isSet = (value) => value !== undefined && value !== null;

/** Return the field for a schema. @param {any} schema @param {any} root @param {string} name @param {boolean} required @returns {Field} */
export function fieldOf(schema, root, name, required) {
  const whole = resolved(schema, root);
  const { options, nullable } = alternatives(whole, root);
  const { anyOf: _, oneOf: __, ...common } = whole;
  const one = options.length === 1 ? { ...options[0], ...common, type: options[0].type } : common;
  const field = { schema: one, root, name, required, nullable, isWrapped: nullable && !required && isSet(whole.default), isSecret: one.writeOnly === true || one.format === "password" || isSecretName(name) };
  if (options.length === 0) return { ...field, kind: "const", values: [null] };
  if (options.every(isChoice)) return choiceOf(field, options);
  if (options.length > 1) return { ...field, kind: "union", options };
  return { ...field, kind: kindFor(one, root) };
}

function choiceOf(field, options) {
  const listed = options.flatMap((option) => ("const" in option ? [{ value: option.const, label: option.title }]
    : option.enum.map((value, index) => ({ value, label: option.enumNames?.[index] }))));
  const values = listed.map(({ value }) => value);
  const labels = listed.map(({ value, label }) => label || textOf(value));
  if (values.length === 1 && (field.required || field.schema.default === values[0])) return { ...field, kind: "const", values };
  return { ...field, kind: "choice", values, labels };
}

/** @returns {Field["kind"]} */
function kindFor(schema, root) {
  if (schema.type === "boolean") return "flag";
  if (schema.type === "integer" || schema.type === "number") return "number";
  if (schema.type === "string") return "text";
  if (schema.type === "array") return schema.uniqueItems && resolved(schema.items, root).enum ? "many" : "list";
  if (schema.type !== "object") return "json";
  if (schema.properties) return "object";
  return schema.additionalProperties && schema.additionalProperties !== true ? "map" : "json";
}

/** Return a value as people read it. @param {any} value */
export function textOf(value) {
  if (value === true) return "yes";
  if (value === false) return "no";
  return typeof value === "string" ? value : JSON.stringify(value);
}

const isSecretName = (name) => SECRET_NAME.test(name);

/** Return the names of the secret parameters of an object schema. A parameter with a secret anywhere
    inside is secret as a whole, as on the server. @param {any} schema @returns {Set<string>} */
export function secretNames(schema) {
  const properties = Object.entries(schema.properties || {});
  return new Set(properties.filter(([name, each]) => isSecretName(name) || hasSecret(each, schema, new Set())).map(([name]) => name));
}

/** @param {any} schema @param {any} root @param {Set<string>} seen */
function hasSecret(schema, root, seen) {
  if (!schema || typeof schema !== "object") return false;
  if (schema.writeOnly === true || schema.format === "password") return true;
  if (typeof schema.$ref === "string") {
    if (seen.has(schema.$ref)) return false;
    seen.add(schema.$ref);
    return hasSecret(resolved({ $ref: schema.$ref }, root), root, seen);
  }
  return Object.values(schema).some((each) => hasSecret(each, root, seen));
}

/** Return arguments without secret ones. @param {any} value @param {any} schema */
export function withoutSecrets(value, schema) {
  const names = secretNames(schema);
  return Object.fromEntries(Object.entries(value || {}).filter(([name]) => !names.has(name)));
}

/** Return the draft of a value; undefined for none. @param {Field} field @param {any} value @returns {any} */
export function draftOf(field, value) {
  if (field.isWrapped) return { isNull: value === null, of: draftOf({ ...field, isWrapped: false }, value ?? undefined) };
  const { schema, root } = field;
  switch (field.kind) {
    case "text": return typeof value === "string" ? fromWire(schema, value) : "";
    case "number": return typeof value === "number" ? String(value) : "";
    case "flag": return typeof value === "boolean" ? value : typeof schema.default === "boolean" ? schema.default : field.required ? false : null;
    case "choice": return field.values?.indexOf(value === undefined ? schema.default : value);
    case "many": return (value ?? schema.default ?? []).map((each) => resolved(schema.items, root).enum.indexOf(each)).filter((index) => index >= 0);
    case "list": return (Array.isArray(value) ? value : schema.default ?? []).map((each) => newRow(entryOf(field), each));
    case "map": return Object.entries(value ?? schema.default ?? {}).map(([name, each]) => ({ ...newRow(entryOf(field), each), name }));
    case "object": return (value && typeof value === "object") || field.required ? objectDraft(field, value || {}) : null;
    case "union": return unionDraft(field, value);
    case "json": return value === undefined || value === null ? "" : JSON.stringify(value, null, 2);
    default: return null;
  }
}

/** Return the fields of an object. @param {Field} field @returns {Field[]} */
export function partsOf(field) {
  const needed = new Set(field.schema.required || []);
  return Object.entries(field.schema.properties || {}).map(([name, each]) => fieldOf(each, field.root, name, needed.has(name)));
}

/** Return the field of the entries of a list or a map. @param {Field} field @returns {Field} */
export function entryOf(field) {
  return fieldOf(field.kind === "map" ? field.schema.additionalProperties : field.schema.items || {}, field.root, field.name, true);
}

/** Return the field of the chosen alternative. @param {Field} field @param {number} index @returns {Field} */
export function optionOf(field, index) {
  return fieldOf((field.options || [])[index], field.root, field.name, true);
}

/** Return a row of a list. @param {Field} entry @param {any} [value] */
export function newRow(entry, value) {
  lastKey += 1;
  return { key: lastKey, name: "", draft: draftOf(entry, value) };
}

/** @param {Field} field @param {any} value */
function objectDraft(field, value) {
  return { fields: Object.fromEntries(partsOf(field).map((part) => [part.name, draftOf(part, value[part.name])])) };
}

/** @param {Field} field @param {any} value */
function unionDraft(field, value) {
  const given = value === undefined ? field.schema.default : value;
  if (!isSet(given)) return { index: field.required ? 0 : -1, draft: field.required ? draftOf(optionOf(field, 0), undefined) : null };
  const options = field.options || [];
  const exact = options.findIndex((option) => faultsIn(given, option, field.root).length === 0);
  const index = exact >= 0 ? exact : Math.max(0, options.findIndex((option) => !faultsIn(given, { type: option.type }, field.root).length));
  return { index, draft: draftOf(optionOf(field, index), given) };
}

/** Return the name of an alternative. @param {any} option */
export function optionName(option) {
  return option.title || kindOf(option);
}

/** Read a draft. Returns its value or LEFT_OUT, and adds what is wrong to `faults`.
    @param {Field} field @param {any} draft @param {string} at @param {Fault[]} faults @returns {any} */
export function read(field, draft, at, faults) {
  if (field.isWrapped) return draft.isNull ? null : read({ ...field, isWrapped: false }, draft.of, at, faults);
  const value = readSet(field, draft, at, faults);
  return value === LEFT_OUT && field.required && field.nullable ? null : value;
}

/** @param {Field} field @param {any} draft @param {string} at @param {Fault[]} faults */
function readSet(field, draft, at, faults) {
  const wrong = (fault) => {
    faults.push({ at, fault });
    return LEFT_OUT;
  };
  const unlessDefault = (value) => (!field.required && JSON.stringify(value) === JSON.stringify(field.schema.default) ? LEFT_OUT : value);
  switch (field.kind) {
    case "const": return (field.values || [])[0] ?? LEFT_OUT;
    case "text": return draft === "" ? LEFT_OUT : toWire(field.schema, draft);
    case "number": return draft.trim() === "" ? LEFT_OUT : Number.isFinite(Number(draft)) ? Number(draft) : wrong("must be a number");
    case "flag": return draft === null ? LEFT_OUT : unlessDefault(draft);
    case "choice": return draft < 0 ? LEFT_OUT : unlessDefault((field.values || [])[draft]);
    case "many": return draft.length || field.required ? unlessDefault([...draft].sort((one, two) => one - two).map((index) => resolved(field.schema.items, field.root).enum[index])) : LEFT_OUT;
    case "list": return draft.length || field.required || field.schema.default?.length ? unlessDefault(draft.map((row, index) => entryValue(entryOf(field), row, join(at, index), faults))) : LEFT_OUT;
    case "map": return draft.length || field.required ? readMap(field, draft, at, faults) : LEFT_OUT;
    case "object": return draft === null ? LEFT_OUT : readObject(field, draft, at, faults);
    case "union": return draft.index < 0 ? LEFT_OUT : unlessDefault(read(optionOf(field, draft.index), draft.draft, at, faults));
    default: return draft.trim() === "" ? LEFT_OUT : parsed(draft, wrong);
  }
}

function parsed(text, wrong) {
  try {
    return JSON.parse(text);
  } catch (error) {
    return wrong(`is not valid JSON: ${error instanceof Error ? error.message : error}`);
  }
}

/** @param {Field} entry */
function entryValue(entry, row, at, faults) {
  const value = read(entry, row.draft, at, faults);
  if (value !== LEFT_OUT) return value;
  if (entry.kind === "text") return "";
  if (!faults.some((each) => each.at === at)) faults.push({ at, fault: "is required" });
  return null;
}

/** @param {Field} field */
function readMap(field, draft, at, faults) {
  const value = {};
  for (const row of draft) {
    const given = entryValue(entryOf(field), row, join(at, row.name), faults);
    if (row.name !== "") value[row.name] = given;
    else if (given !== "") faults.push({ at: join(at, ""), fault: "needs a name" });
  }
  return value;
}

/** @param {Field} field */
function readObject(field, draft, at, faults) {
  const value = {};
  for (const part of partsOf(field)) {
    const given = read(part, draft.fields[part.name], join(at, part.name), faults);
    if (given !== LEFT_OUT) value[part.name] = given;
  }
  return value;
}

/** Return whether a draft differs from an empty field. @param {Field} field @param {any} draft */
export function isFilled(field, draft) {
  if (field.kind === "const") return false;
  /** @type {Fault[]} */
  const faults = [];
  return read({ ...field, required: false }, draft, "", faults) !== LEFT_OUT || faults.length > 0;
}

// A browser edits a date and time without a time zone; the wire has one.

function fromWire(schema, value) {
  if (schema.format !== "date-time" || Number.isNaN(Date.parse(value))) return value;
  const at = new Date(value);
  return new Date(at.getTime() - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
}

function toWire(schema, text) {
  return schema.format === "date-time" && !Number.isNaN(Date.parse(text)) ? new Date(text).toISOString() : text;
}
