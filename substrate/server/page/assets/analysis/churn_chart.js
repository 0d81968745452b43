// Changes over time: commits in each interval as bars, with the lines that were added and deleted.

import { count } from "../core/format.js";
import { html, useState } from "../core/html.js";

/** @typedef {{from: string, days: number, commits: number, additions: number, deletions: number}} Interval */

const WIDTH = 900;
const HEIGHT = 200;
const EDGES = { left: 44, right: 8, top: 10, bottom: 24 };
/** Labels of the time axis. */
const LABELS = 6;

/** @param {{churn: any}} props */
export function ChurnChart({ churn }) {
  const [isOpen, setOpen] = useState(false);
  if (churn.absent) return html`<p class="e-note">Not measured: ${churn.absent}.</p>`;
  /** @type {Interval[]} */
  const intervals = churn.over_time;
  const { summary } = churn;
  const most = Math.max(1, ...intervals.map((each) => each.commits));
  const step = (WIDTH - EDGES.left - EDGES.right) / intervals.length;
  const y = (/** @type {number} */ commits) => HEIGHT - EDGES.bottom - (commits / most) * (HEIGHT - EDGES.top - EDGES.bottom);
  const text = `${plural(summary.commits, "commit")} by ${plural(summary.authors, "author")} in ${plural(summary.period_days, "day")} changed ${plural(summary.files, "file")}: +${count(summary.additions)} −${count(summary.deletions)} lines`;
  const each = Math.max(1, Math.ceil(intervals.length / LABELS));
  return html`<section aria-label="Churn" class="analysis-churn"><figure class="card chart"><figcaption><h3>Commits over time</h3></figcaption>
    <svg viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label=${text}>
      <g class="chart-axis">${[0, most].map((value) => html`<g key=${value}><line x1=${EDGES.left} x2=${WIDTH - EDGES.right} y1=${y(value)} y2=${y(value)} /><text x=${EDGES.left - 6} y=${y(value) + 4} text-anchor="end">${count(value)}</text></g>`)}
        ${intervals.map((one, index) => (index % each === 0 ? html`<text key=${one.from} x=${EDGES.left + index * step} y=${HEIGHT - 6}>${one.from}</text>` : null))}</g>
      ${intervals.map((one, index) => html`<rect key=${one.from} class="churn-bar" x=${EDGES.left + index * step + 1} width=${Math.max(1, step - 2)} y=${y(one.commits)} height=${HEIGHT - EDGES.bottom - y(one.commits)}><title>${describe(one)}</title></rect>`)}
    </svg><p class="dim">${text}.</p>
    <details onToggle=${(/** @type {any} */ event) => setOpen(event.target.open)}><summary>Values</summary>
      ${isOpen ? html`<div class="chart-table" tabindex="0" role="region" aria-label="Commits over time, values"><table><thead><tr><th scope="col">From</th><th scope="col">Days</th><th scope="col">Commits</th><th scope="col">Added</th><th scope="col">Deleted</th></tr></thead>
        <tbody>${intervals.map((one) => html`<tr key=${one.from}><td>${one.from}</td><td>${one.days}</td><td>${count(one.commits)}</td><td>${count(one.additions)}</td><td>${count(one.deletions)}</td></tr>`)}</tbody></table></div>` : null}</details></figure>
    <div class="analysis-table card" tabindex="0" role="region" aria-label="Most changed files"><table><thead><tr><th scope="col">File</th><th scope="col">Commits</th><th scope="col">Authors</th><th scope="col">Added</th><th scope="col">Deleted</th><th scope="col">Last changed</th></tr></thead>
      <tbody>${churn.files.slice(0, 100).map((/** @type {any} */ file) => html`<tr key=${file.file}><th scope="row"><code>${file.file}</code></th><td class="number">${file.commits}</td><td class="number">${file.authors}</td><td class="number">${count(file.additions)}</td><td class="number">${count(file.deletions)}</td><td>${file.last_changed}</td></tr>`)}</tbody></table></div></section>`;
}

/** @param {Interval} one */
function describe(one) {
  return `${one.from}, ${plural(one.days, "day")}: ${plural(one.commits, "commit")}, +${count(one.additions)} −${count(one.deletions)} lines`;
}

/** @param {number} number @param {string} word */
function plural(number, word) {
  return `${count(number)} ${word}${number === 1 ? "" : "s"}`;
}
