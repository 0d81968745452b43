// A list of any length whose rows have the same height. Only the rows in view are in the document.

import { html, useEffect, useLayoutEffect, useRef, useState } from "../core/html.js";

/** Rows before and after those in view. */
const OVERSCAN = 6;

/** `row(index)` renders a row, `keyOf(index)` returns its key. `onEnd` is called when the last row
    comes into view. `show` is the index of a row to scroll into view when it changes. With `idOf`, that
    row is the active one of the list, which keeps the focus: assistive technology reads it.
    @param {{count: number, height: number, row: (index: number) => any, keyOf: (index: number) => any,
      label: string, role?: string, onEnd?: () => void, show?: number, idOf?: (index: number) => string, class?: string}} props */
export function FixedList({ count, height, row, keyOf, label, role = "list", onEnd, show, idOf, class: name = "" }) {
  const element = useRef(/** @type {HTMLElement | null} */ (null));
  const [range, setRange] = useState({ first: 0, last: 30, isHidden: false });
  const measure = () => {
    const { scrollTop = 0, clientHeight = 0 } = element.current || {};
    const first = Math.max(0, Math.floor(scrollTop / height) - OVERSCAN);
    const last = Math.ceil((scrollTop + clientHeight) / height) + OVERSCAN;
    const isHidden = clientHeight === 0;
    setRange((known) => (known.first === first && known.last === last && known.isHidden === isHidden ? known : { first, last, isHidden }));
  };
  useLayoutEffect(measure, [count, height]);
  useEffect(() => {
    const observer = new ResizeObserver(measure);
    if (element.current) observer.observe(element.current);
    return () => observer.disconnect();
  }, []);
  useEffect(() => {
    if (onEnd && count > 0 && range.last >= count) onEnd();
  }, [range.last, count]);
  useLayoutEffect(() => {
    const list = element.current;
    if (show === undefined || show < 0 || !list) return;
    const top = show * height;
    if (top < list.scrollTop) list.scrollTop = top;
    else if (top + height > list.scrollTop + list.clientHeight) list.scrollTop = top + height - list.clientHeight;
  }, [show, range.isHidden]); // a list that was hidden has lost its position
  const rows = [];
  for (let index = range.first; index < Math.min(count, range.last); index += 1) {
    rows.push(html`<div class="fixed-row" key=${keyOf(index)} style=${{ height: `${height}px`, transform: `translateY(${index * height}px)` }} role=${role === "list" ? "listitem" : "presentation"}
      aria-setsize=${role === "list" ? count : null} aria-posinset=${role === "list" ? index + 1 : null}>${row(index)}</div>`);
  }
  const isShown = show !== undefined && show >= range.first && show < Math.min(count, range.last);
  return html`<div class=${`fixed-list ${name}`} ref=${element} onScroll=${measure} tabindex="0" role=${role} aria-label=${label} aria-activedescendant=${idOf && isShown ? idOf(show) : null}>
    <div class="fixed-sizer" role="presentation" style=${{ height: `${count * height}px` }}>${rows}</div></div>`;
}
