// A line chart over time: plain SVG with axes, the value under the pointer, and a table for those who
// do not see it.

import { clock } from "../core/format.js";
import { html, useEffect, useRef, useState } from "../core/html.js";

/** @typedef {{at: number, value: number}} Point */

const HEIGHT = 150;
/** Space for the labels of the axes. */
const EDGES = { left: 58, right: 10, top: 10, bottom: 22 };
const MAX_TABLE_ROWS = 48;
/** A pause this many times as long as usual breaks the line: nothing was measured there. */
const GAP = 4;
const TICK_MS = [60_000, 120_000, 300_000, 600_000, 900_000, 1_800_000, 3_600_000, 7_200_000, 14_400_000, 21_600_000];

/** Values over time. `format` writes a value with its unit. `to` is the right end, in milliseconds; the chart
    shows `span` milliseconds before it. `isWhole` is for values that are counted.
    @param {{title: string, points: Point[], format: (value: number) => string, to: number, span: number, isWhole?: boolean, missing: string}} props */
export function Chart({ title, points, format, to, span, isWhole = false, missing }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const [width, setWidth] = useState(480);
  const [hovered, setHovered] = useState(/** @type {number | null} */ (null));
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(Math.max(220, Math.round(entry.contentRect.width))));
    if (box.current) observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  const from = to - span;
  const shown = points.filter((point) => point.at >= from && point.at <= to);
  const values = shown.map((point) => point.value);
  const least = values.reduce((one, two) => Math.min(one, two), Infinity);
  const most = values.reduce((one, two) => Math.max(one, two), 0);
  const { ticks, top } = scale(most, isWhole);
  const x = (/** @type {number} */ at) => EDGES.left + ((at - from) / span) * (width - EDGES.left - EDGES.right);
  const y = (/** @type {number} */ value) => HEIGHT - EDGES.bottom - (value / top) * (HEIGHT - EDGES.top - EDGES.bottom);
  const onMove = (/** @type {PointerEvent} */ event) => {
    const left = /** @type {SVGElement} */ (event.currentTarget).getBoundingClientRect().left;
    setHovered(from + ((event.clientX - left - EDGES.left) / (width - EDGES.left - EDGES.right)) * span);
  };
  const under = hovered === null || !shown.length ? null : shown.reduce((one, two) => (Math.abs(two.at - hovered) < Math.abs(one.at - hovered) ? two : one));
  const last = shown[shown.length - 1];
  const summary = last ? `${title}: now ${format(last.value)}, minimum ${format(least)}, maximum ${format(most)}, in the last ${spanText(span)}` : `${title}: ${missing}`;
  return html`<figure class="chart card" ref=${box}><figcaption><h3>${title}</h3>
      <span class="chart-value">${under ? html`<b>${format(under.value)}</b> <small>${clock(under.at).slice(0, 8)}</small>` : last ? html`<b>${format(last.value)}</b>` : null}</span></figcaption>
    <svg viewBox=${`0 0 ${width} ${HEIGHT}`} height=${HEIGHT} role="img" aria-label=${summary} onPointerMove=${onMove} onPointerLeave=${() => setHovered(null)}>
      <g class="chart-axis">${ticks.map((value) => html`<g key=${value}><line x1=${EDGES.left} x2=${width - EDGES.right} y1=${y(value)} y2=${y(value)} /><text x=${EDGES.left - 6} y=${y(value) + 4} text-anchor="end">${format(value)}</text></g>`)}
        ${timeTicks(from, to, width).map((at) => html`<text key=${at} x=${x(at)} y=${HEIGHT - 6} text-anchor="middle">${clock(at).slice(0, 5)}</text>`)}</g>
      <path class="chart-line" d=${linePath(thin(shown, width), x, y)} />
      ${under ? html`<g class="chart-hover"><line x1=${x(under.at)} x2=${x(under.at)} y1=${EDGES.top} y2=${HEIGHT - EDGES.bottom} /><circle cx=${x(under.at)} cy=${y(under.value)} r="3.5" /></g>` : null}
    </svg>
    ${last ? html`<p class="dim">min ${format(least)} · max ${format(most)}</p>` : html`<p class="dim">${missing}</p>`}
    ${last ? html`<${Values} title=${title} points=${shown} format=${format} />` : null}</figure>`;
}

/** The values as a table, made when it is opened. @param {{title: string, points: Point[], format: (value: number) => string}} props */
function Values({ title, points, format }) {
  const [isOpen, setOpen] = useState(false);
  const step = Math.max(1, Math.ceil(points.length / MAX_TABLE_ROWS));
  const rows = isOpen ? points.filter((_, index) => (points.length - 1 - index) % step === 0).reverse() : [];
  return html`<details onToggle=${(/** @type {any} */ event) => setOpen(event.target.open)}><summary>Values</summary>
    ${isOpen ? html`<div class="chart-table" tabindex="0" role="region" aria-label=${`${title}, values`}><table><thead><tr><th scope="col">Time</th><th scope="col">${title}</th></tr></thead>
      <tbody>${rows.map((point) => html`<tr key=${point.at}><td>${clock(point.at).slice(0, 8)}</td><td>${format(point.value)}</td></tr>`)}</tbody></table></div>` : null}</details>`;
}

/** Return the ticks of the value axis, from 0 to a round number that is not below the maximum.
    @param {number} most @param {boolean} isWhole */
function scale(most, isWhole) {
  const raw = Math.max(most, 1e-9) / 3;
  const power = 10 ** Math.floor(Math.log10(raw));
  const round = most === 0 ? 1 : [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= raw) || raw;
  const step = isWhole ? Math.max(1, Math.round(round)) : round;
  const ticks = [0, step, 2 * step, 3 * step].filter((value, index) => index < 2 || value - step < most);
  return { ticks, top: ticks[ticks.length - 1] };
}

/** Return round times for the labels of the time axis. @param {number} from @param {number} to @param {number} width */
function timeTicks(from, to, width) {
  const most = Math.max(2, Math.floor((width - EDGES.left) / 70));
  const step = TICK_MS.find((each) => (to - from) / each <= most) || TICK_MS[TICK_MS.length - 1];
  const offset = new Date(from).getTimezoneOffset() * 60_000; // hours of the day are local
  const found = [];
  for (let at = Math.ceil((from - offset) / step) * step + offset; at < to; at += step) found.push(at);
  return found;
}

/** Keep the maximum of every two pixels, so that peaks stay visible. @param {Point[]} points @param {number} width */
function thin(points, width) {
  const most = width / 2;
  if (points.length <= most) return points;
  const size = points.length / most;
  const kept = [];
  for (let index = 0; index < most; index += 1) {
    const part = points.slice(Math.floor(index * size), Math.floor((index + 1) * size));
    if (part.length) kept.push(part.reduce((one, two) => (two.value > one.value ? two : one)));
  }
  return kept;
}

/** @param {Point[]} points @param {(at: number) => number} x @param {(value: number) => number} y */
function linePath(points, x, y) {
  const pauses = points.slice(1).map((point, index) => point.at - points[index].at).sort((one, two) => one - two);
  const usual = pauses[Math.floor(pauses.length / 2)] || 0;
  /** Whether there is a gap before a point; before the first and after the last too. @param {number} index */
  const isBroken = (index) => index === 0 || index === points.length || points[index].at - points[index - 1].at > Math.max(GAP * usual, 10_000);
  return points.map((point, index) => {
    const [left, top] = [x(point.at), y(point.value).toFixed(1)];
    // A value between two gaps, such as the first one, is a short line.
    if (isBroken(index) && isBroken(index + 1)) return `M${(left - 2).toFixed(1)} ${top}h4`;
    return `${isBroken(index) ? "M" : "L"}${left.toFixed(1)} ${top}`;
  }).join("");
}

/** @param {number} span */
function spanText(span) {
  return span < 3_600_000 ? `${Math.round(span / 60_000)} minutes` : `${Math.round(span / 3_600_000)} h`;
}
