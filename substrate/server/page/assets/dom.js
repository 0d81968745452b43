// Building the page out of nodes. Data only ever becomes text: nothing here reads markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(9).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** An element with attributes (functions are listeners: `onclick`) and children. */
export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for pictures. */
export function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** Put other children in the place of those there are. */
export function replace(element, ...children) {
  element.replaceChildren(...children.flat(9).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Something to click. */
export function button(label, onclick, attributes = {}) {
  return h("button", { type: "button", onclick, ...attributes }, label);
}

let numbers = 0;
/** An id that no other element of the page has. */
export function newId(prefix = "n") {
  numbers += 1;
  return `${prefix}-${numbers}`;
}

const announcer = () => document.getElementById("announcer");
/** Have a screen reader say something. */
export function announce(text) {
  const place = announcer();
  if (place) place.textContent = text;
}

/** A time of day, to the millisecond. */
export function clock(ms) {
  const at = new Date(ms);
  const two = (n) => String(n).padStart(2, "0");
  return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}.${String(at.getMilliseconds()).padStart(3, "0")}`;
}

/** How long, as a person says it. */
export function lasting(ms) {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60000) return `${(ms / 1000).toFixed(1)} s`;
  if (ms < 3600000) return `${Math.floor(ms / 60000)} min ${Math.floor(ms / 1000) % 60} s`;
  return `${Math.floor(ms / 3600000)} h ${Math.floor(ms / 60000) % 60} min`;
}

/** A day and a time. */
export function moment(ms) {
  return new Date(ms).toLocaleString();
}

/** The state of a run as a person sees it, `{state, text}`: a command that ran and failed is
    complete for the server, and failed for a person. */
export function stateOf(state, exitCode, failed = Boolean(exitCode)) {
  if (state !== "complete" || !failed) return { state, text: state };
  return { state: "error", text: exitCode === undefined ? "failed" : `failed (${exitCode})` };
}

/** What went wrong, in one element. */
export function trouble(error) {
  return h("p", { class: "trouble", role: "alert" }, error && error.message ? error.message : String(error));
}

/** Show a short note for a moment. */
export function toast(text) {
  const note = h("div", { class: "toast" }, text);
  document.getElementById("toasts").append(note);
  announce(text);
  setTimeout(() => note.remove(), 4000);
}

/** Have a function called at most once a frame, however often it is asked for. */
export function perFrame(work) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      work();
    });
  };
}
