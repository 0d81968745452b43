// A small plot of the last few minutes.

import { h, svg } from "./dom.js";

const WIDTH = 240;
const HEIGHT = 48;

/** Values as they come; the newest is on the right. */
export class Plot {
  constructor(title, { unit = "", most = 180 } = {}) {
    this._title = title;
    this._unit = unit;
    this._most = most;
    this._values = [];
    this._line = svg("polyline", { class: "plot-line", points: "" });
    this._area = svg("polygon", { class: "plot-area", points: "" });
    this._picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "plot", role: "img", "aria-label": title, preserveAspectRatio: "none" }, this._area, this._line);
    this._now = h("span", { class: "plot-now" }, "–");
    this._peak = h("span", { class: "plot-peak" });
    this.element = h("figure", { class: "plot-figure" }, h("figcaption", {}, h("span", {}, title), this._now), this._picture, this._peak);
  }

  /** One value more. */
  add(value) {
    this._values.push(value);
    if (this._values.length > this._most) this._values.shift();
    const peak = Math.max(1e-9, ...this._values);
    const top = Math.max(1, peak);
    const step = WIDTH / (this._most - 1);
    const start = WIDTH - (this._values.length - 1) * step;
    const points = this._values.map((each, index) => `${(start + index * step).toFixed(1)},${(HEIGHT - 2 - (each / top) * (HEIGHT - 6)).toFixed(1)}`);
    this._line.setAttribute("points", points.join(" "));
    this._area.setAttribute("points", `${start.toFixed(1)},${HEIGHT} ${points.join(" ")} ${WIDTH},${HEIGHT}`);
    this._now.textContent = said(value) + this._unit;
    this._peak.textContent = `most ${said(peak < 1e-6 ? 0 : peak)}${this._unit}`;
    this._picture.setAttribute("aria-label", `${this._title}: now ${said(value)}${this._unit}, most ${said(peak < 1e-6 ? 0 : peak)}${this._unit}`);
  }
}

const said = (value) => (Number.isInteger(value) ? String(value) : value.toFixed(1));
