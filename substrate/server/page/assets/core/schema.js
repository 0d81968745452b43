// The methods of the server, and how to read their JSON Schemas.

import { call } from "./connection.js";
import { computed, signal } from "./html.js";

/** The schema of the server; null until it is known. @type {import("@preact/signals").Signal<any>} */
export const schema = signal(null);
/** All methods by name. */
export const methods = computed(() => (schema.value === null ? new Map() : methodsOf(schema.value)));

/** Load the schema. Throws RpcError. */
export async function loadSchema() {
  schema.value = await call("plexus.schema");
  return schema.value;
}

/** Return every method of a schema by name. */
function methodsOf(schema) {
  const found = new Map();
  const walk = (activation) => {
    for (const method of activation.methods) found.set(method.name, method);
    (activation.children || []).forEach(walk);
  };
  schema.activations.forEach(walk);
  return found;
}

/** Return a schema with its top-level `$ref` resolved. */
export function resolved(schema, root) {
  let seen = 0;
  while (schema && schema.$ref && seen < 20) {
    const path = schema.$ref.replace(/^#\//, "").split("/");
    const { $ref: _, ...rest } = schema;
    schema = { ...path.reduce((at, key) => (at || {})[key.replace(/~1/g, "/").replace(/~0/g, "~")], root), ...rest };
    seen += 1;
  }
  return schema || {};
}

/** Return the alternatives for a value without null, and whether null is allowed. */
export function alternatives(schema, root) {
  const whole = resolved(schema, root);
  const listed = whole.anyOf || whole.oneOf;
  if (listed) {
    const each = listed.map((entry) => resolved(entry, root));
    return { options: each.filter((entry) => entry.type !== "null"), nullable: each.some((entry) => entry.type === "null") };
  }
  if (Array.isArray(whole.type)) {
    const types = whole.type.filter((type) => type !== "null");
    return { options: types.map((type) => ({ ...whole, type })), nullable: types.length < whole.type.length };
  }
  return { options: [whole], nullable: whole.type === "null" };
}

/** Return the name of an alternative. */
export function kindOf(schema) {
  if ("const" in schema) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.length > 4 ? "choice" : schema.enum.map((each) => JSON.stringify(each)).join(" | ");
  if (schema.type === "array") return "list";
  if (schema.title && schema.properties) return schema.title;
  return { string: "text", integer: "whole number", number: "number", boolean: "yes or no", object: "object" }[schema.type] || "anything";
}

/** Return the description of a type that is shown beside a field. */
function typeText(schema, root) {
  const { options, nullable } = alternatives(schema, root);
  const text = options.map((option) => {
    if (option.type === "array" && option.items) return `list of ${typeText(option.items, root)}`;
    return kindOf(option);
  }).join(" or ");
  return nullable && text ? `${text}, or null` : text || "null";
}

/** Return all errors of a value as `[{at, fault}]`, worded like those of the server. */
export function faultsIn(value, schema, root, at = "") {
  const whole = resolved(schema, root);
  if (whole.anyOf || whole.oneOf) {
    const each = (whole.anyOf || whole.oneOf).map((entry) => faultsIn(value, entry, root, at));
    if (each.some((faults) => faults.length === 0)) return [];
    const typed = each.filter((faults) => !faults.some((fault) => fault.at === at && fault.isType));
    return typed.length ? typed[0] : [{ at, fault: `must be ${typeText(whole, root)}`, isType: true }];
  }
  if ("const" in whole && value !== whole.const) return [{ at, fault: `must be ${JSON.stringify(whole.const)}`, isType: true }];
  if (whole.enum && !whole.enum.includes(value)) return [{ at, fault: `must be one of ${whole.enum.join(", ")}` }];
  const types = whole.type === undefined ? [] : [whole.type].flat();
  if (types.length && !types.some((type) => isA(value, type))) return [{ at, fault: `must be ${typeText(whole, root)}`, isType: true }];
  if (typeof value === "number") return numberFaults(value, whole, at);
  if (typeof value === "string") return textFaults(value, whole, at);
  if (Array.isArray(value)) return listFaults(value, whole, root, at);
  if (value && typeof value === "object") return objectFaults(value, whole, root, at);
  return [];
}

function isA(value, type) {
  if (type === "null") return value === null;
  if (type === "array") return Array.isArray(value);
  if (type === "object") return value !== null && typeof value === "object" && !Array.isArray(value);
  if (type === "integer") return Number.isInteger(value);
  return typeof value === type;
}

function numberFaults(value, schema, at) {
  const faults = [];
  if (schema.minimum !== undefined && value < schema.minimum) faults.push({ at, fault: `must be at least ${schema.minimum}` });
  if (schema.maximum !== undefined && value > schema.maximum) faults.push({ at, fault: `must be at most ${schema.maximum}` });
  if (schema.exclusiveMinimum !== undefined && value <= schema.exclusiveMinimum) faults.push({ at, fault: `must be over ${schema.exclusiveMinimum}` });
  if (schema.exclusiveMaximum !== undefined && value >= schema.exclusiveMaximum) faults.push({ at, fault: `must be under ${schema.exclusiveMaximum}` });
  return faults;
}

function textFaults(value, schema, at) {
  const faults = [];
  const size = [...value].length;
  if (schema.minLength !== undefined && size < schema.minLength) faults.push({ at, fault: `must have at least ${schema.minLength} characters` });
  if (schema.maxLength !== undefined && size > schema.maxLength) faults.push({ at, fault: `must have at most ${schema.maxLength} characters` });
  if (schema.pattern) {
    try {
      if (!new RegExp(schema.pattern, "u").test(value)) faults.push({ at, fault: `must match ${schema.pattern}` });
    } catch {
      // A pattern that a browser cannot read is left to the server.
    }
  }
  return faults;
}

function listFaults(value, schema, root, at) {
  const faults = [];
  if (schema.minItems !== undefined && value.length < schema.minItems) faults.push({ at, fault: `must have at least ${schema.minItems} entries` });
  if (schema.maxItems !== undefined && value.length > schema.maxItems) faults.push({ at, fault: `must have at most ${schema.maxItems} entries` });
  if (schema.items) value.forEach((entry, index) => faults.push(...faultsIn(entry, schema.items, root, join(at, index))));
  return faults;
}

function objectFaults(value, schema, root, at) {
  const faults = [];
  const properties = schema.properties || {};
  for (const name of schema.required || []) {
    if (!(name in value)) faults.push({ at: join(at, name), fault: "is required" });
  }
  for (const [name, entry] of Object.entries(value)) {
    if (properties[name]) faults.push(...faultsIn(entry, properties[name], root, join(at, name)));
    else if (schema.additionalProperties === false) faults.push({ at: join(at, name), fault: "is not known here" });
    else if (schema.additionalProperties && schema.additionalProperties !== true) faults.push(...faultsIn(entry, schema.additionalProperties, root, join(at, name)));
  }
  return faults;
}

/** Return the path of a part. */
export function join(at, part) {
  return at === "" ? String(part) : `${at}.${part}`;
}
