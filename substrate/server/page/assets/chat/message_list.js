// The messages of a conversation in a scrollable list of any length.
//
// Rows are in groups. A group far from the viewport is an empty box of its measured height, so the
// document stays small. Older pages are loaded before the person reaches the top, and the position on
// the screen stays the same. The list follows its end until the person scrolls up.

import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../core/html.js";
import { questions, seesQuestions } from "../core/live.js";
import { QuestionCard } from "../ui/question_card.js";
import { Notice } from "../ui/run_parts.js";
import { announce, attempt } from "../ui/toast.js";
import { Row } from "./message.js";
import { groupsOf, rowsOf } from "./rows.js";

/** @typedef {import("./conversation.js").Conversation} Conversation */

/** How far from the viewport rows are rendered and older pages are loaded, in pixels. */
const MARGIN = 1200;
const NEAR_END = 40;

/** @param {{conversation: Conversation, onFork: (node: string) => void}} props */
export function MessageList({ conversation, onFork }) {
  const messages = conversation.messages.value;
  const turn = conversation.turn.value;
  const node = turn ? turn.userNode.value : null;
  const end = node ? messages.findLastIndex((message) => message.node_id === node) : -1;
  const groups = useMemo(() => {
    const rows = rowsOf(end < 0 ? messages : messages.slice(0, end + 1));
    if (end >= 0) rows.push({ key: `a ${node}`, kind: "answer", messages: [], isLive: true });
    return groupsOf(rows);
  }, [messages, end, node]);
  const { scroller, content, isAway, toEnd, onScroll, onClick } = useFollowing(conversation);
  useStablePosition(scroller, groups[0]?.rows[0]?.key);
  const near = useNearness(scroller);
  const older = conversation.older.value;
  const top = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => {
    if (!older || !top.current) return undefined;
    const observer = new IntersectionObserver((entries) => entries.some((entry) => entry.isIntersecting) && attempt(() => conversation.loadOlder()), { root: scroller.current, rootMargin: `${MARGIN}px 0px` });
    observer.observe(top.current);
    return () => observer.disconnect();
  }, [older]);
  useEffect(() => {
    if (turn) return () => announce("The answer has ended.");
    return undefined;
  }, [turn]);
  const isEmpty = conversation.session.value !== null && !messages.length && !turn;
  return html`<div class="message-frame">
    <div class="message-list" ref=${scroller} onScroll=${onScroll} onClick=${onClick} tabindex="0" role="region" aria-label=${`Messages of ${conversation.name}`}>
      <div class="message-content" ref=${content}>
        ${older ? html`<p class="older" ref=${top}>Loading earlier messages…</p>` : null}
        ${isEmpty ? html`<${Notice} title="No messages yet"><p>Write a message below. ${conversation.session.value?.model.startsWith("echo:") ? "This session uses the built-in echo model, which repeats what you write; choose another model above." : ""}</p><//>` : null}
        ${groups.map((group) => html`<${Group} key=${group.key} group=${group} conversation=${conversation} onFork=${onFork} near=${near} />`)}
        <${LastFailure} conversation=${conversation} isAnswered=${messages[messages.length - 1]?.kind !== "user"} />
        <${TurnQuestions} conversation=${conversation} />
      </div>
    </div>
    ${isAway ? html`<button type="button" class="to-end" onClick=${toEnd}>↓ Jump to latest</button>` : null}</div>`;
}

/** @param {{group: {key: string, rows: import("./rows.js").Row[]}, conversation: Conversation, onFork: (node: string) => void, near: any}} props */
function Group({ group, conversation, onFork, near }) {
  const element = useRef(/** @type {HTMLElement | null} */ (null));
  const [height, setHeight] = useState(0); // of the empty box; 0 while the rows are rendered
  useEffect(() => (element.current ? near(element.current, setHeight) : undefined), []);
  if (height) return html`<div class="chat-group" ref=${element} style=${{ height: `${height}px` }}></div>`;
  return html`<div class="chat-group" ref=${element} style=${{ height: "auto" }}>${group.rows.map((row) => html`<div class="chat-row" key=${row.key} data-key=${row.key}><${Row} row=${row} conversation=${conversation} onFork=${onFork} /></div>`)}</div>`;
}

/** Return a function that observes an element: its callback gets 0 when the element is near the
    viewport, and its height when it is not. @param {{current: HTMLElement | null}} scroller */
function useNearness(scroller) {
  const state = useRef(/** @type {{observer: IntersectionObserver | null, callbacks: Map<Element, (height: number) => void>}} */ ({ observer: null, callbacks: new Map() }));
  useEffect(() => () => state.current.observer?.disconnect(), []);
  return useMemo(() => (/** @type {Element} */ element, /** @type {(height: number) => void} */ callback) => {
    const { callbacks } = state.current;
    state.current.observer ||= new IntersectionObserver((entries) => {
      for (const entry of entries) callbacks.get(entry.target)?.(entry.isIntersecting ? 0 : entry.boundingClientRect.height);
    }, { root: scroller.current, rootMargin: `${MARGIN}px 0px` });
    callbacks.set(element, callback);
    state.current.observer.observe(element);
    return () => {
      callbacks.delete(element);
      state.current.observer?.unobserve(element);
    };
  }, []);
}

/** Follow the end of the content until the person scrolls up. @param {Conversation} conversation */
function useFollowing(conversation) {
  const scroller = useRef(/** @type {HTMLElement | null} */ (null));
  const content = useRef(/** @type {HTMLElement | null} */ (null));
  const follows = useRef(true);
  const lastTop = useRef(0);
  const [isAway, setAway] = useState(false);
  const toEnd = () => {
    follows.current = true;
    setAway(false);
    if (scroller.current) scroller.current.scrollTop = scroller.current.scrollHeight;
  };
  useEffect(() => {
    const observer = new ResizeObserver(() => {
      if (follows.current) toEnd();
      else onScroll();
    });
    for (const element of [content.current, scroller.current]) if (element) observer.observe(element);
    return () => observer.disconnect();
  }, []);
  const wanted = conversation.wantsEnd.value;
  useLayoutEffect(toEnd, [wanted]);
  const onScroll = () => {
    const { scrollTop = 0, scrollHeight = 0, clientHeight = 0 } = scroller.current || {};
    if (scrollHeight - scrollTop - clientHeight < NEAR_END) follows.current = true;
    // Growing content moves the end away without a scroll: only an upward scroll is the person's.
    else if (scrollTop < lastTop.current) follows.current = false;
    lastTop.current = scrollTop;
    setAway(!follows.current);
  };
  // What a person unfolds stays in view instead of moving up to the end.
  const onClick = (/** @type {any} */ event) => {
    if (event.target.closest("summary")) follows.current = false;
  };
  return { scroller, content, isAway, toEnd, onScroll, onClick };
}

/** Keep what is visible in its place when rows are added above. `first` is the key of the first row.
    @param {{current: HTMLElement | null}} scroller @param {string | undefined} first */
function useStablePosition(scroller, first) {
  const known = useRef(/** @type {string | undefined} */ (undefined));
  // The document still has the former rows while the component renders.
  const list = scroller.current;
  const isAdded = list && known.current !== undefined && first !== known.current;
  const seen = isAdded ? [...list.querySelectorAll("[data-key]")].find((row) => row.getBoundingClientRect().bottom > list.getBoundingClientRect().top) : null;
  const before = seen ? { key: seen.getAttribute("data-key"), top: seen.getBoundingClientRect().top } : null;
  useLayoutEffect(() => {
    known.current = first;
    const row = before && list ? list.querySelector(`[data-key="${CSS.escape(before.key || "")}"]`) : null;
    if (!row || !before || !list) return;
    // The browser's own anchoring would move it twice.
    list.style.overflowAnchor = "none";
    list.scrollTop += row.getBoundingClientRect().top - before.top;
    requestAnimationFrame(() => { list.style.overflowAnchor = ""; });
  }, [first]);
}

/** Why the last message has no answer. @param {{conversation: Conversation, isAnswered: boolean}} props */
function LastFailure({ conversation, isAnswered }) {
  const failure = conversation.failure.value;
  const session = conversation.session.value;
  if (conversation.turn.value || !session || session.busy || (isAnswered && !failure)) return null;
  if (!failure && !conversation.messages.value.length) return null;
  // An error after the first words is shown at the stored part of the answer.
  const last = conversation.messages.value[conversation.messages.value.length - 1];
  if (failure && last?.error?.message === failure.error.message) return null;
  return html`<div class="failure" role="alert"><p><span aria-hidden="true">✕</span> ${failure ? `No answer: ${failure.error.message}` : "This message has no answer."}</p>
    <button type="button" onClick=${() => conversation.regenerate(failure?.node || last?.node_id || "")}>Retry</button></div>`;
}

/** The open questions of the turn and of its tools. @param {{conversation: Conversation}} props */
function TurnQuestions({ conversation }) {
  const turn = conversation.turn.value;
  if (!turn) return null;
  turn.version.value;
  const own = new Set([turn.run.value, ...turn.parts.map((part) => part.run)]);
  const asked = seesQuestions.value ? questions.value.filter((each) => own.has(each.run))
    : [...turn.requests.values()].slice(-1).map((each) => ({ ...each, run: turn.run.value, approval_id: `${turn.run.value}.${each.request}` }));
  return asked.map((question) => html`<${QuestionCard} key=${question.approval_id} question=${question} compact=${true} />`);
}
