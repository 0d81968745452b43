// A form made from a JSON Schema: what is in it is checked before it is sent, and what the server
// finds wrong is shown in the same places.

import { h } from "./dom.js";
import { FieldError, field, LEFT_OUT, object } from "./fields.js";
import { faultsIn, resolved } from "./schema.js";

/** The form of one schema. `read()` gives the value, or null if something is wrong, and shows what. */
export class SchemaForm {
  constructor(schema) {
    this.root = schema;
    this.places = new Map();
    this._general = h("p", { class: "fault", role: "alert", hidden: true });
    const whole = resolved(schema, schema);
    this._isObject = whole.type === "object" && Boolean(whole.properties);
    this._field = this._isObject ? object(this, whole, "", true) : field(this, schema, "", "Answer", true);
    this.element = h("div", { class: "schema-form", oninput: (event) => this._changed(event.target) }, this._field.element, this._general);
  }

  /** Fill in values. */
  write(value) {
    this._field.write(value);
  }

  /** The value if it is one; otherwise null, and the faults are shown. */
  read() {
    this.clear();
    let value;
    try {
      value = this._field.read();
    } catch (error) {
      if (!(error instanceof FieldError)) throw error;
      this.show([{ at: error.at, fault: error.message }]);
      return null;
    }
    const isMissing = value === LEFT_OUT;
    const faults = isMissing ? [{ at: "", fault: "is required" }] : faultsIn(value, this.root, this.root);
    if (faults.length) {
      this.show(faults);
      return null;
    }
    return { value };
  }

  /** What is in it now, right or wrong; for showing, not for sending. */
  draft() {
    try {
      const value = this._field.read();
      return value === LEFT_OUT ? {} : value;
    } catch {
      return {};
    }
  }

  /** Show what is wrong, each where it is, and go to the first. */
  show(faults) {
    let first = null;
    const elsewhere = [];
    for (const { at, fault } of faults) {
      const place = this._place(String(at).replace(/\[(\d+)\]/g, ".$1").replace(/^\./, ""));
      if (!place) {
        elsewhere.push(at ? `${at}: ${fault}` : fault);
        continue;
      }
      place.fault.textContent = fault;
      place.fault.hidden = false;
      if (/^(INPUT|TEXTAREA|SELECT)$/.test(place.target.tagName)) place.target.setAttribute("aria-invalid", "true");
      first = first || place.target;
    }
    this._general.textContent = elsewhere.join("; ");
    this._general.hidden = elsewhere.length === 0;
    if (first) first.focus();
  }

  /** Nothing is wrong any more. */
  clear() {
    this._general.hidden = true;
    for (const { fault, target } of this.places.values()) {
      fault.hidden = true;
      fault.textContent = "";
      target.removeAttribute("aria-invalid");
    }
  }

  /** What was wrong with a field may not be any more. */
  _changed(field) {
    for (const { fault, target } of this.places.values()) {
      if (target !== field) continue;
      fault.hidden = true;
      target.removeAttribute("aria-invalid");
    }
  }

  /** The field of a place, or the one that it is inside of. */
  _place(at) {
    for (let path = at; ; path = path.slice(0, path.lastIndexOf("."))) {
      if (this.places.has(path)) return this.places.get(path);
      if (!path.includes(".")) return null;
    }
  }
}
