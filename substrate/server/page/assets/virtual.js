// A list of any length of which only what can be seen is in the page. Rows may have any height:
// it is guessed until a row was seen, and then measured.

import { h, perFrame } from "./dom.js";

const OVERSCAN = 4;

/** Sums of heights: each from the first row, in logarithmic time. */
class Heights {
  constructor(guess) {
    this._guess = guess;
    this.count = 0;
    this._size = 64;
    this._values = new Float64Array(64);
    this._sums = new Float64Array(65);
  }

  resize(count) {
    if (count > this._size) {
      while (this._size < count) this._size *= 2;
      const values = new Float64Array(this._size);
      values.set(this._values.subarray(0, this.count));
      this._values = values;
      for (let index = this.count; index < count; index += 1) values[index] = this._guess(index);
      this.count = count;
      this._rebuild();
      return;
    }
    const from = this.count;
    this.count = count;
    if (count < from) {
      this._values.fill(0, count, from);
      this._rebuild();
    } else for (let index = from; index < count; index += 1) this.set(index, this._guess(index));
  }

  /** Forget the first rows. */
  shift(rows) {
    this._values.copyWithin(0, rows, this.count);
    this.count -= rows;
    this._values.fill(0, this.count);
    this._rebuild();
  }

  _rebuild() {
    this._sums = new Float64Array(this._size + 1);
    for (let index = 1; index <= this._size; index += 1) {
      this._sums[index] += this._values[index - 1];
      const up = index + (index & -index);
      if (up <= this._size) this._sums[up] += this._sums[index];
    }
  }

  get(index) {
    return this._values[index];
  }

  set(index, height) {
    const more = height - this._values[index];
    if (more === 0) return;
    this._values[index] = height;
    for (let at = index + 1; at <= this._size; at += at & -at) this._sums[at] += more;
  }

  /** How far below the top a row begins. */
  top(index) {
    let sum = 0;
    for (let at = index; at > 0; at -= at & -at) sum += this._sums[at];
    return sum;
  }

  /** The row at this distance from the top. */
  at(distance) {
    let index = 0;
    let rest = distance;
    for (let step = this._size; step > 0; step >>= 1) {
      if (index + step <= this._size && this._sums[index + step] <= rest) {
        index += step;
        rest -= this._sums[index];
      }
    }
    return Math.min(index, Math.max(0, this.count - 1));
  }
}

/** The list. `render(index)` makes a row; `version(index)` changes when it has to be made anew;
    `guess(index)` says how high it may be. With `fixed`, all are as high as they are guessed. */
export class VirtualList {
  constructor({ render, version = () => 0, guess = () => 24, fixed = false, label, role = "region", rowRole = null, follow = false }) {
    this._render = render;
    this._version = version;
    this._fixed = fixed;
    this._heights = new Heights(guess);
    this._rows = new Map();
    this.follows = follow;
    this._canFollow = follow;
    this._sizer = h("div", { class: "v-sizer", role: rowRole && "none" });
    this.element = h("div", { class: "v-list", tabindex: "0", role, "aria-label": label }, this._sizer);
    this.refresh = perFrame(() => this._draw());
    this.element.addEventListener("scroll", () => {
      if (this._canFollow && !this._moving) {
        const { scrollTop, scrollHeight, clientHeight } = this.element;
        this.follows = scrollHeight - scrollTop - clientHeight < 30;
      }
      this._moving = false;
      this.refresh();
    }, { passive: true });
    this._observer = new ResizeObserver(() => this.refresh());
    this._observer.observe(this.element);
  }

  /** There are so many rows now. */
  resize(count) {
    if (count !== this._heights.count) this._heights.resize(count);
    this.refresh();
  }

  /** The first rows are gone; the others have new numbers. */
  shift(rows) {
    const gone = this._heights.top(rows);
    this._heights.shift(rows);
    for (const row of this._rows.values()) this._unmount(row);
    this._rows.clear();
    if (!this.follows) this._scrollTo(Math.max(0, this.element.scrollTop - gone));
    this.refresh();
  }

  /** Make a row visible. */
  show(index) {
    const top = this._heights.top(index);
    const bottom = top + this._heights.get(index);
    const { scrollTop, clientHeight } = this.element;
    if (top < scrollTop) this._scrollTo(top);
    else if (bottom > scrollTop + clientHeight) this._scrollTo(bottom - clientHeight);
    this._draw();
  }

  /** Keep to the end, or no longer. */
  setFollow(follow) {
    this.follows = follow;
    this.refresh();
  }

  /** Take it out of service. */
  close() {
    this._observer.disconnect();
  }

  _scrollTo(top) {
    if (Math.abs(this.element.scrollTop - top) < 1) return;
    this._moving = true;
    this.element.scrollTop = top;
  }

  _draw() {
    if (!this.element.isConnected) return;
    const heights = this._heights;
    const height = this.element.clientHeight;
    for (let round = 0; round < 3; round += 1) {
      const total = heights.top(heights.count);
      this._sizer.style.height = `${total}px`;
      if (this.follows) this._scrollTo(Math.max(0, total - height));
      const top = this.follows ? Math.max(0, total - height) : this.element.scrollTop;
      const first = Math.max(0, heights.at(top) - OVERSCAN);
      const last = Math.min(heights.count, heights.at(top + height) + OVERSCAN + 1);
      this._mount(first, last);
      if (this._fixed || !this._measure(top)) break;
    }
  }

  _mount(first, last) {
    for (const [index, row] of this._rows) {
      if (index < first || index >= last) {
        this._unmount(row);
        this._rows.delete(index);
      }
    }
    for (let index = first; index < last; index += 1) {
      const version = this._version(index);
      const row = this._rows.get(index);
      if (!row || row.version !== version) {
        const element = this._render(index);
        element.classList.add("v-row");
        if (row) this._unmount(row, element);
        else this._insert(index, element);
        // What is opened inside a row makes it higher.
        if (!this._fixed) this._observer.observe(element);
        this._rows.set(index, { element, version });
      }
      this._rows.get(index).element.style.transform = `translateY(${this._heights.top(index)}px)`;
    }
  }

  _unmount({ element }, instead = null) {
    this._observer.unobserve(element);
    if (instead) element.replaceWith(instead);
    else element.remove();
  }

  /** In the order of the list, for those who read or tab through it. */
  _insert(index, element) {
    const next = this._rows.get(index + 1);
    this._sizer.insertBefore(element, next ? next.element : this._after(index));
  }

  _after(index) {
    let best = null;
    for (const [each, row] of this._rows) if (each > index && (best === null || each < best[0])) best = [each, row.element];
    return best ? best[1] : null;
  }

  /** Whether a height was not as it was guessed; what is in view stays where it is. */
  _measure(top) {
    let changed = false;
    let above = 0;
    const measured = [...this._rows].map(([index, row]) => [index, row.element.offsetHeight]);
    for (const [index, height] of measured) {
      const known = this._heights.get(index);
      if (Math.abs(known - height) < 0.5) continue;
      if (this._heights.top(index) + known <= top) above += height - known;
      this._heights.set(index, height);
      changed = true;
    }
    if (above && !this.follows) this._scrollTo(this.element.scrollTop + above);
    return changed;
  }
}
