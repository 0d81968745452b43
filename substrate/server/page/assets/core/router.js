// The location of the page: `#/view/part/part?name=value`. Reloading, bookmarks and the back button
// lead to the same place.

import { signal } from "./html.js";

/** Addresses of earlier versions, which are in old results and bookmarks. */
const RENAMED = { explore: "tools", run: "runs", watch: "runs", arbor: "trees", health: "status" };

/** @typedef {{view: string, parts: string[], query: URLSearchParams}} Place */

/** The current place. @type {import("@preact/signals").Signal<Place>} */
export const place = signal(read());

/** Return the address of a place. @param {...(string | number)} parts */
export function link(...parts) {
  return `#/${parts.map((part) => encodeURIComponent(part)).join("/")}`;
}

/** Go to a place. @param {...(string | number)} parts */
export function go(...parts) {
  location.hash = link(...parts);
}

/** Change parameters of the current place; null removes one. No new entry in the browser history.
    @param {Record<string, string | null>} changes */
export function setQuery(changes) {
  const { view, parts, query } = place.peek();
  const next = new URLSearchParams(query);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === "") next.delete(name);
    else next.set(name, value);
  }
  const text = next.toString();
  history.replaceState(null, "", link(view, ...parts) + (text ? `?${text}` : ""));
  place.value = { view, parts, query: next };
}

/** @returns {Place} */
function read() {
  // A token is no place; session.js takes it out of the address.
  if (/^#(?:.*&)?token=/.test(location.hash)) return { view: "", parts: [], query: new URLSearchParams() };
  const [path, search = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
  const parts = path.split("/").filter(Boolean).map(decode);
  const view = parts.shift() || "";
  return { view: RENAMED[view] || view, parts, query: new URLSearchParams(search) };
}

/** @param {string} part */
function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

addEventListener("hashchange", () => {
  place.value = read();
});
