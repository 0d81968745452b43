// The addresses of files and of changes in the page.

import { readable } from "../core/format.js";
import { link } from "../core/router.js";

/** Return the address of a file. @param {string} path */
export function fileLink(path) {
  return link("files", "file", path);
}

/** Return the address of a change that waits. @param {string} diff */
export function diffLink(diff) {
  return link("files", "diff", diff);
}

/** Return the last part of a path, as people can read it. @param {string} path */
export function nameOf(path) {
  return readable(path.slice(path.lastIndexOf("/") + 1) || path);
}
