// Settings and drafts of this browser. A browser that stores nothing loses them on a reload.

const PREFIX = "substrate.";

/** Return a stored value, or the default.
    @template T @param {string} key @param {T} otherwise @returns {T} */
export function load(key, otherwise) {
  try {
    const text = localStorage.getItem(PREFIX + key);
    return text === null ? otherwise : JSON.parse(text);
  } catch {
    return otherwise;
  }
}

/** Store a value, or remove it with undefined. Returns whether it was stored.
    @param {string} key @param {unknown} value */
export function save(key, value) {
  try {
    if (value === undefined) localStorage.removeItem(PREFIX + key);
    else localStorage.setItem(PREFIX + key, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}
