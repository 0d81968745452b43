// Where the page is: `#/view/part/part`. A reload, a bookmark and the back button come to the
// same place.

const views = new Map();
let leave = null;
let shown = null;

/** Have a view shown at `#/name...`: `show(parts, place)` returns what is to be called on leaving. */
export function addView(name, show) {
  views.set(name, show);
}

/** The address of a place. */
export function link(...parts) {
  return `#/${parts.map((part) => encodeURIComponent(part)).join("/")}`;
}

/** Go to a place. */
export function go(...parts) {
  location.hash = link(...parts);
}

function here() {
  const parts = location.hash.replace(/^#\/?/, "").split("/").filter(Boolean);
  return parts.map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  });
}

function render() {
  const [wanted, ...parts] = here();
  const name = views.has(wanted) ? wanted : views.keys().next().value;
  const place = document.getElementById("view");
  // A view that is shown already may only need to show something else.
  if (name === shown && leave && leave.update && leave.update(parts)) return;
  if (leave) leave();
  place.replaceChildren();
  place.className = `view-${name}`;
  shown = name;
  for (const tab of document.querySelectorAll("nav a[data-view]")) {
    if (tab.dataset.view === name) tab.setAttribute("aria-current", "page");
    else tab.removeAttribute("aria-current");
  }
  document.title = `${name[0].toUpperCase()}${name.slice(1)} · Substrate`;
  leave = views.get(name)(parts, place) || (() => {});
}

/** Show where the address points to, now and whenever it changes. */
export function startRouter() {
  window.addEventListener("hashchange", render);
  render();
}

/** Show nothing any more. */
export function stopRouter() {
  window.removeEventListener("hashchange", render);
  if (leave) leave();
  leave = null;
}
