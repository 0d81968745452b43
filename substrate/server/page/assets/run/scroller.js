// A list of any number of rows of any height, of which only those in view are in the document.
//
// Browsers limit the height of an element to about 33 million pixels, so the scroll height is capped
// and is only an approximation of the position, which is a row and an offset in it. Small movements of
// the scroll position move the rows by the same distance; large ones, of the thumb, move to the same
// fraction of all rows. When scrolling pauses, the scroll position is set to that of the rows.
//
// The rows are in a layer that stays in view, so that the pane is never blank while scrolling.

import { html, useLayoutEffect, useMemo, useRef, useState } from "../core/html.js";

/** The height of a line, which is the smallest row. */
export const LINE = 19;
const MAX_HEIGHT = 4_000_000;
const OVERSCAN = 3;
const IDLE_MS = 150;
/** Times that the rows are drawn until their measured heights fill the view. */
const MAX_PASSES = 4;

/** The commands of a list. @typedef {{show: (index: number) => void, move: (pixels: number) => void, toStart: () => void, toEnd: () => void, first: () => number}} ScrollerHandle */

/** The position, and what is known of heights. */
class Position {
  constructor() {
    /** The row at the top of the view, and the pixels of it above the view. */
    this.row = 0;
    this.offset = 0;
    this.height = 600;
    /** The last known scroll position of the element. */
    this.top = 0;
    this.isAtEnd = false;
    /** Whether a movement since the last drawing was downward. */
    this.isDown = false;
    /** Sum and number of the heights of all rows that were measured. */
    this._sum = 0;
    this._measured = 0;
    /** The row at the bottom of the view. */
    this.bottom = 0;
  }

  get average() {
    return this._measured ? this._sum / this._measured : LINE;
  }

  /** @param {number} height */
  measure(height) {
    this._sum += height;
    this._measured += 1;
    if (this._measured > 4000) { // so that recent rows count
      this._sum /= 2;
      this._measured /= 2;
    }
  }

  forgetHeights() {
    this._sum = this._measured = 0;
  }

  /** Return the estimated height of all rows. @param {number} count */
  total(count) {
    return Math.max(this.height, count * this.average);
  }

  /** Return the height of the element that scrolls. @param {number} count */
  scrollHeight(count) {
    return Math.min(MAX_HEIGHT, Math.round(this.total(count)));
  }

  /** Move by pixels. @param {number} pixels @param {number} count */
  move(pixels, count) {
    this.isDown = pixels > 0;
    this.offset += pixels;
    // Rows that are far away are not measured on the way.
    if (Math.abs(this.offset) > 2 * this.height) {
      const rows = Math.trunc(this.offset / this.average);
      this.row = Math.max(0, Math.min(count - 1, this.row + rows));
      this.offset -= rows * this.average;
    }
  }

  /** Move as the scroll position has moved, by `delta` to `top`, of `most` pixels. @param {number} delta @param {number} most @param {number} count */
  scroll(delta, most, count) {
    const isCapped = this.total(count) > MAX_HEIGHT;
    if (Math.abs(delta) > 2 * this.height || (!isCapped && (this.top <= 0 || this.top >= most - 1))) {
      this.moveTo(this.top >= most - 1 ? 1 : this.top / Math.max(1, most), count);
      return;
    }
    // Where heights are estimates, the rows and the scroll position must reach the ends together.
    const before = this.top - delta;
    const known = this.row * this.average + this.offset;
    const ratio = delta < 0 ? known / before : (this.total(count) - this.height - known) / (most - before);
    this.move(delta * (isCapped || !(ratio > 0.2 && Math.abs(ratio - 1) > 0.1) ? 1 : ratio), count);
  }

  /** Move to a fraction of all rows. @param {number} fraction @param {number} count */
  moveTo(fraction, count) {
    const top = Math.max(0, Math.min(1, fraction)) * (this.total(count) - this.height);
    this.isDown = fraction >= 1;
    this.row = fraction >= 1 ? Math.max(0, count - 1) : Math.min(Math.max(0, count - 1), Math.floor(top / this.average));
    this.offset = fraction >= 1 ? this.height : top - this.row * this.average;
  }

  /** Return the scroll position of the rows. @param {number} count */
  scrollTop(count) {
    const most = this.scrollHeight(count) - this.height;
    if (this.isAtEnd) return most;
    if (this.row === 0 && this.offset <= 0) return 0;
    const fraction = (this.row * this.average + this.offset) / Math.max(1, this.total(count) - this.height);
    return Math.max(1, Math.min(most - 1, Math.round(fraction * most)));
  }
}

/** `row(index)` renders a row; `stamp(index)` returns a value that changes when the row must be rendered
    again, and `epoch` one that changes when all must. `onRange` is called with the rows in view.
    While `follows` is true the end is shown; `onFollow` is called when scrolling changes that.
    @param {{count: number, row: (index: number) => any, stamp: (index: number) => unknown, epoch: unknown, label: string,
      follows?: boolean, onFollow?: (follows: boolean) => void, onRange?: (first: number, last: number) => void,
      handle?: {current: ScrollerHandle | null}, class?: string}} props */
export function Scroller({ count, row, stamp, epoch, label, follows = false, onFollow, onRange, handle, class: name = "" }) {
  const element = useRef(/** @type {HTMLElement | null} */ (null));
  const layer = useRef(/** @type {HTMLElement | null} */ (null));
  const sizer = useRef(/** @type {HTMLElement | null} */ (null));
  const position = useMemo(() => new Position(), []);
  const drawn = useMemo(() => ({ rows: new Map(), heights: new Map(), epoch, passes: 0, timer: 0, sizer: 0, layer: 0 }), []);
  const [, setTick] = useState(0);
  const draw = () => setTick((tick) => tick + 1);
  const current = useRef({ count, follows, onFollow });
  current.current = { count, follows, onFollow };

  if (drawn.epoch !== epoch) {
    drawn.epoch = epoch;
    drawn.rows.clear();
    drawn.heights.clear();
    position.forgetHeights();
  }
  const { height } = position;
  if (follows) {
    position.row = Math.max(0, count - 1);
    position.offset = height;
  }
  position.row = Math.max(0, Math.min(count - 1, position.row));
  // Rows are taken to be half as high as the average; if that is too much, more are drawn at once.
  const unit = Math.max(LINE, position.average / 2 ** (1 + drawn.passes));
  const above = position.offset < 0 ? -position.offset : position.row >= count - height / unit ? height : 0;
  const first = Math.max(0, position.row - Math.ceil(above / unit) - OVERSCAN);
  const last = Math.min(count, position.row + Math.ceil((height + Math.max(0, position.offset)) / unit) + OVERSCAN);
  const rows = [];
  const kept = new Map();
  for (let index = first; index < last; index += 1) {
    const mark = stamp(index);
    let known = drawn.rows.get(index);
    // The same element again means that nothing is compared.
    if (!known || known.mark !== mark) known = { mark, element: html`<div class="log-row" key=${index} data-row=${index}>${row(index)}</div>` };
    kept.set(index, known);
    rows.push(known.element);
  }
  drawn.rows = kept;

  useLayoutEffect(() => {
    const list = element.current;
    const view = layer.current;
    if (!list || !view) return;
    const heights = measured(view, position, drawn.heights);
    drawn.heights = heights;
    drawn.layer = [...heights.values()].reduce((sum, each) => sum + each, 0);
    const isSettled = normalize(position, heights, first, last, count);
    if (!isSettled && drawn.passes < MAX_PASSES) {
      drawn.passes += 1;
      draw();
      return;
    }
    drawn.passes = 0;
    let top = -position.offset;
    for (let index = first; index < position.row; index += 1) top -= heights.get(index) ?? position.average;
    view.style.transform = `translateY(${Math.round(top)}px)`;
    const size = position.scrollHeight(count);
    if (sizer.current && size !== drawn.sizer) {
      const isMoving = isPending(list, position);
      sizer.current.style.height = `${size}px`;
      // A browser moves the scroll position of a list that became shorter; that is no movement of a person.
      if (size < drawn.sizer && !isMoving) position.top = list.scrollTop;
      drawn.sizer = size;
    }
    if (follows) synchronize(list, position, count);
    else if (position.isAtEnd && position.isDown) onFollow?.(true);
    position.isDown = false;
    onRange?.(position.row, Math.min(count, last));
  });

  useLayoutEffect(() => {
    const list = /** @type {HTMLElement} */ (element.current);
    const rows = /** @type {HTMLElement} */ (layer.current);
    const resize = () => {
      // What is opened inside a row makes it higher.
      if (position.height === list.clientHeight && Math.abs(rows.getBoundingClientRect().height - drawn.layer) < 1) return;
      position.height = list.clientHeight;
      list.style.setProperty("--view", `${list.clientHeight}px`);
      list.style.setProperty("--log-width", `${list.clientWidth}px`);
      draw();
    };
    const observer = new ResizeObserver(resize);
    observer.observe(list);
    observer.observe(rows);
    resize();
    return () => {
      observer.disconnect();
      clearTimeout(drawn.timer);
    };
  }, []);

  const pauseLater = () => {
    clearTimeout(drawn.timer);
    drawn.timer = setTimeout(() => element.current && synchronize(element.current, position, current.current.count), IDLE_MS);
  };
  const onScroll = () => {
    const list = element.current;
    if (!list) return; // the event of a list that was removed
    const delta = list.scrollTop - position.top;
    if (Math.abs(delta) < 1) return;
    position.top = list.scrollTop;
    position.scroll(delta, list.scrollHeight - list.clientHeight, count);
    if (follows && delta < 0) onFollow?.(false);
    draw();
    pauseLater();
  };
  /** Move without the scroll bar, which follows. @param {() => void} change @param {boolean} [isFollowing] */
  const moveBy = (change, isFollowing = false) => {
    change();
    if (current.current.follows !== isFollowing) current.current.onFollow?.(isFollowing);
    draw();
    pauseLater();
  };
  const actions = {
    show: (/** @type {number} */ index) => moveBy(() => {
      if (index > position.row && index < position.bottom) return;
      position.row = index;
      position.offset = -Math.round(position.height / 3);
    }),
    move: (/** @type {number} */ pixels) => moveBy(() => position.move(pixels, current.current.count)),
    toStart: () => moveBy(() => position.moveTo(0, current.current.count)),
    toEnd: () => moveBy(() => position.moveTo(1, current.current.count), onFollow !== undefined),
    first: () => position.row,
  };
  if (handle) handle.current = actions;
  const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
    if (event.target !== element.current || event.ctrlKey || event.metaKey || event.altKey) return;
    const page = Math.max(LINE, position.height - 2 * LINE);
    /** @type {Record<string, () => void>} */
    const keys = { ArrowDown: () => actions.move(2 * LINE), ArrowUp: () => actions.move(-2 * LINE), PageDown: () => actions.move(page), PageUp: () => actions.move(-page),
      " ": () => actions.move(event.shiftKey ? -page : page), Home: actions.toStart, End: actions.toEnd };
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  };
  return html`<div class=${`log ${name}`} ref=${element} onScroll=${onScroll} onKeyDown=${onKeyDown} tabindex="0" role="region" aria-label=${label}>
    <div class="log-sizer" ref=${sizer}><div class="log-view"><div class="log-rows" ref=${layer}>${rows}</div></div></div></div>`;
}

/** Return the heights of the rows in the document. @param {HTMLElement} view @param {Position} position @param {Map<number, number>} known */
function measured(view, position, known) {
  /** @type {Map<number, number>} */
  const heights = new Map();
  for (const each of /** @type {Iterable<any>} */ (view.children)) {
    const index = Number(each.dataset.row);
    const { height } = each.getBoundingClientRect();
    heights.set(index, height);
    if (known.get(index) !== height) position.measure(height);
  }
  return heights;
}

/** Bring the position into bounds and onto the row at the top, with the measured heights. Returns
    false if rows that are needed for it are not in the document yet.
    @param {Position} position @param {Map<number, number>} heights @param {number} first @param {number} last @param {number} count */
function normalize(position, heights, first, last, count) {
  const of = (/** @type {number} */ index) => heights.get(index) ?? position.average;
  while (position.offset < 0 && position.row > first) {
    position.row -= 1;
    position.offset += of(position.row);
  }
  while (position.row < last - 1 && position.offset >= of(position.row)) {
    position.offset -= of(position.row);
    position.row += 1;
  }
  if (position.offset < 0 && first > 0) return false;
  if (position.row === 0 && position.offset < 0) position.offset = 0;
  let below = -position.offset;
  for (let index = position.row; index < last; index += 1) {
    if (below < position.height) position.bottom = index;
    below += of(index);
  }
  if (last < count && below < position.height) return false;
  position.isAtEnd = last === count && below <= position.height + 1;
  // Past the end: align the last row with the bottom of the view.
  if (position.isAtEnd) {
    let missing = position.height - below;
    while (missing > 0 && position.row > first) {
      const room = Math.min(missing, position.offset);
      position.offset -= room;
      missing -= room;
      if (missing <= 0) break;
      position.row -= 1;
      position.offset = of(position.row);
    }
    if (missing > 0) {
      if (first > 0) {
        position.offset -= missing;
        return false;
      }
      position.offset = Math.max(0, position.offset - missing);
    }
  }
  return true;
}

/** Whether a person has scrolled and the event is still to come. @param {HTMLElement} list @param {Position} position */
function isPending(list, position) {
  return Math.abs(list.scrollTop - position.top) >= 1;
}

/** Set the scroll position to that of the rows. @param {HTMLElement} list @param {Position} position @param {number} count */
function synchronize(list, position, count) {
  if (isPending(list, position)) return;
  const top = position.scrollTop(count);
  if (Math.abs(list.scrollTop - top) >= 1) list.scrollTop = top;
  position.top = list.scrollTop;
}
