// The scores with their formulas, what to do first, and by what everything was measured.

import { count } from "../core/format.js";
import { html } from "../core/html.js";

const SCORES = [
  { name: "overall_health", title: "Health", unit: "of 100" },
  { name: "complexity_score", title: "Complexity score", unit: "of 100" },
  { name: "maintainability_index", title: "Maintainability", unit: "of 100" },
  { name: "technical_debt_hours", title: "Technical debt", unit: "hours, estimated" },
];

/** The scores in one row. A score that was not measured shows the reason. @param {{card: any}} props */
export function Scores({ card }) {
  return html`<dl class="analysis-scores">${SCORES.map(({ name, title, unit }) => html`<div class="card" key=${name}><dt>${title}</dt>
    ${card[name] === undefined ? html`<dd class="dim">not measured: ${card.absent?.[name]}</dd>` : html`<dd><b>${count(card[name])}</b> <small>${unit}</small></dd><dd><details><summary>Formula</summary><small>${card.formulas[name]}</small></details></dd>`}</div>`)}</dl>`;
}

/** @param {{report: any}} props */
export function Overview({ report }) {
  const { measurements, files } = report.metadata;
  return html`<section aria-label="Report" class="analysis-report">
    <div class="card"><h2>Recommendations</h2>${report.recommendations.length ? html`<ul>${report.recommendations.map((/** @type {any} */ each) => html`<li key=${each.title}><b>${each.title}</b> <span class="tag">${each.priority}</span><br />${each.description} ${each.evidence.map((/** @type {string} */ place) => html`<code key=${place}>${place}</code> `)}</li>`)}</ul>` : html`<p class="none">None follow from the figures.</p>`}</div>
    <div class="card"><h2>Findings <small>${count(report.summary.findings)}</small></h2><ul>${report.findings.slice(0, 50).map((/** @type {any} */ each) => html`<li key=${`${each.file}:${each.line} ${each.rule}`}><span class="tag">${each.rule}</span> <code>${each.file}:${each.line}</code> ${each.message}</li>`)}</ul></div>
    <div class="card"><h2>Measured by</h2><div class="analysis-table" tabindex="0" role="region" aria-label="Measurements"><table><thead><tr><th scope="col">Figure</th><th scope="col">Analyser</th><th scope="col">Measured</th></tr></thead>
      <tbody>${measurements.map((/** @type {any} */ each) => html`<tr key=${each.metric}><td>${each.metric}</td><td>${each.analyser} ${each.version}</td><td>${each.measured ? `${count(each.count)} ${each.of}` : `no: ${each.reason}`}${Object.entries(each.absent || {}).map(([reason, number]) => html`<br /><small>${number} without: ${reason}</small>`)}</td></tr>`)}</tbody></table></div></div>
    <div class="card"><h2>Files</h2><p>${count(files.measured)} measured of ${count(files.seen)} seen.</p><ul>${Object.entries(files.skipped).map(([reason, number]) => html`<li key=${reason}>${count(number)} skipped: ${reason}</li>`)}</ul></div>
    ${report.omitted ? html`<p class="e-note">Left out of the report for its size: ${Object.entries(report.omitted).map(([name, number]) => `${count(number)} of ${name}`).join(", ")}.</p>` : null}</section>`;
}
