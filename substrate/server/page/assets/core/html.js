// What views are written with: Preact, its hooks, signals, and templates instead of JSX.

import htm from "htm";
import { h } from "preact";

export { Fragment, h, render } from "preact";
export { useCallback, useEffect, useId, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
export { batch, computed, effect, signal, useComputed, useSignal, useSignalEffect } from "@preact/signals";

/** Create elements from a template: html`<p class=${name}>${text}</p>`. Text is never markup. */
export const html = htm.bind(h);
