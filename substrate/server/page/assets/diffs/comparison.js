// Two texts next to each other, to read only.

import { html, useEffect, useRef } from "../core/html.js";
import { lineEndOf } from "../editor/setup.js";
import { Review } from "./review.js";

/** @param {{old: string, text: string, language: string, titles: string[]}} props */
export function Comparison({ old, text, language, titles }) {
  const host = useRef(/** @type {HTMLDivElement | null} */ (null));
  useEffect(() => {
    const review = new Review({ old, text, language, eol: lineEndOf(old, text), hunks: [], titles, isReadOnly: true }, undefined, () => {});
    review.mount(/** @type {HTMLDivElement} */ (host.current), { isSplit: innerWidth > 720, isCollapsed: true, wrap: true });
    return () => review.unmount();
  }, [old, text]);
  return html`<div class="diff-titles"><span>${titles[0]}</span><span>${titles[1]}</span></div><div class="diff-host comparison" ref=${host}></div>`;
}
