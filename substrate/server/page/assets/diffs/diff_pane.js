// A change that a program proposes, and everything that a person does with it before answering.

import { RpcError, call } from "../core/connection.js";
import { clientName, clock, readable } from "../core/format.js";
import { html, useEffect, useMemo, useRef, useState } from "../core/html.js";
import { questions } from "../core/live.js";
import { link } from "../core/router.js";
import { load, save } from "../core/storage.js";
import { lineEndOf } from "../editor/setup.js";
import { closed, diffs, isKnown } from "../files/ide.js";
import { diffLink, fileLink, nameOf } from "../files/places.js";
import { QuestionCard } from "../ui/question_card.js";
import { drafts, recordAnswer } from "../ui/question_log.js";
import { Notice } from "../ui/run_parts.js";
import { title } from "../ui/title.js";
import { announce, toast } from "../ui/toast.js";
import { Comments } from "./comments.js";
import { DiffBar } from "./diff_bar.js";
import { RejectDialog } from "./reject_dialog.js";
import { Review } from "./review.js";

/** @typedef {import("../files/ide.js").DiffInfo} DiffInfo */
/** @typedef {import("../files/ide.js").DiffClosed} DiffClosed */
/** @typedef {import("./comments.js").Place} Place */
/** What the server knows of a change.
    @typedef {{diff: DiffInfo, old_text: string, new_text: string, eol: string, hunks: import("./review.js").Hunk[],
      comments: import("./comments.js").Comment[], answered: DiffClosed | null}} Loaded */

const LAYOUT = "diffs.layout";
/** The width below which two editors do not fit next to each other. */
const NARROW = 720;

/** @param {{diff: string}} props */
export function DiffPane({ diff }) {
  const [loaded, setLoaded] = useState(/** @type {Loaded | null} */ (null));
  const [error, setError] = useState(/** @type {RpcError | null} */ (null));
  const count = diffs.value.get(diff)?.comments;
  // It was closed while the page had no connection.
  const isMissing = isKnown.value && !diffs.value.has(diff) && !closed.value.has(diff);
  useEffect(() => {
    let isOver = false;
    call("ide.diff", { diff }).then((found) => {
      if (isOver) return;
      setLoaded((known) => (known ? { ...known, comments: found.comments, answered: found.answered } : found));
      setError(null);
    }, (failure) => {
      if (isOver || failure.code === "lost") return;
      setError(failure);
      // The server was restarted, and the program has lost its connection.
      setLoaded((known) => known && { ...known, answered: { diff, path: known.diff.path, outcome: "closed", reason: null, by: null, at_ms: Date.now() } });
    });
    return () => { isOver = true; };
  }, [diff, count, isMissing]); // another window may have commented
  if (loaded) return html`<${Loaded} loaded=${loaded} onComments=${(/** @type {any} */ comments) => setLoaded({ ...loaded, comments })} />`;
  const question = questions.value.find((each) => each.kind === "diff" && each.details?.diff === diff);
  if (error && question) return html`<div class="diff-elsewhere"><p>This change waits in another process of this project. You can answer it here, but not edit it.</p><${QuestionCard} question=${question} /></div>`;
  if (error) return html`<${Notice} title="This change is not here any more"><p>${readable(error.message)}</p><a class="button" href=${link("files")}>Show all files</a><//>`;
  return html`<p class="dim" role="status">Loading the change …</p>`;
}

/** @param {{loaded: Loaded, onComments: (comments: Loaded["comments"]) => void}} props */
function Loaded({ loaded, onComments }) {
  const { diff: info, comments } = loaded;
  const host = useRef(/** @type {HTMLDivElement | null} */ (null));
  const [layout, setLayout] = useState(() => ({ isSplit: innerWidth > NARROW, isCollapsed: true, wrap: true, ...load(LAYOUT, {}), ...(innerWidth > NARROW ? {} : { isSplit: false }) }));
  const [place, setPlace] = useState(/** @type {Place | null} */ (null));
  const [isRejecting, setRejecting] = useState(false);
  const [isSending, setSending] = useState(false);
  const [failure, setFailure] = useState("");
  const [answered, setAnswered] = useState(/** @type {DiffClosed | null} */ (null));
  const end = closed.value.get(info.diff) || answered || loaded.answered;
  const titles = [`${nameOf(info.path)} · ${info.new_file ? "does not exist yet" : "on disk"}`, `proposed by ${clientName(info.client || undefined)}`];
  const review = useMemo(() => new Review(
    { old: loaded.old_text, text: loaded.new_text, language: info.language, eol: lineEndOf(loaded.old_text, loaded.new_text), hunks: loaded.hunks, titles },
    drafts.get(info.approval_id),
    (side, line) => setPlace({ side, line }),
  ), [info.diff]);
  useEffect(() => {
    review.mount(/** @type {HTMLDivElement} */ (host.current), layout);
    return () => {
      review.unmount();
      // What was done is there when the person comes back, and is announced if another answer is faster.
      if (review.isTouched && !closed.peek().has(info.diff) && questions.peek().some((each) => each.approval_id === info.approval_id)) drafts.set(info.approval_id, { ...drafts.get(info.approval_id), ...review.progress });
    };
  }, [layout]);
  useEffect(() => {
    review.commented = { new: [], old: [] };
    for (const each of comments) review.commented[each.side].push(each.line);
    review.redraw();
  }, [comments, layout]);
  useEffect(() => { title.value = nameOf(info.path); }, [info.path]);
  useEffect(() => {
    if (!end) return;
    review.finish();
    setRejecting(false);
  }, [Boolean(end)]);
  useEffect(() => {
    const onLeave = (/** @type {Event} */ event) => !end && review.isEdited.peek() && event.preventDefault();
    addEventListener("beforeunload", onLeave);
    return () => removeEventListener("beforeunload", onLeave);
  }, [Boolean(end)]);

  const change = (/** @type {Partial<typeof layout>} */ changes) => {
    const next = { ...layout, ...changes };
    save(LAYOUT, next);
    setLayout(next);
  };
  const answer = async (/** @type {boolean} */ accept, /** @type {object} */ details, /** @type {string} */ summary) => {
    if (end || isSending) return;
    setSending(true);
    setFailure("");
    const question = questions.peek().find((each) => each.approval_id === info.approval_id);
    try {
      setAnswered(await call("ide.answer_diff", { diff: info.diff, accept, ...details }));
      drafts.delete(info.approval_id);
      if (question) recordAnswer(question, summary);
      announce(summary);
    } catch (problem) {
      // Another answer was faster: how the change was closed is on its way.
      if (/** @type {RpcError} */ (problem).code === "not_found") toast("This change was already answered.");
      else setFailure(/** @type {Error} */ (problem).message);
    } finally {
      setSending(false);
    }
  };
  // To accept none of the changes is to reject all of them.
  const accept = () => (review.chosen === 0 && review.chunks.peek().length ? setRejecting(true) : answer(true, review.answer, review.isEdited.peek() ? "accept with edits" : review.rejected.peek().length ? `accept ${review.chosen} of ${review.chunks.peek().length} changes` : "accept"));
  const acceptAll = () => {
    review.rejected.value = [];
    return accept();
  };
  const reject = (/** @type {string} */ reason) => {
    setRejecting(false);
    return answer(false, reason ? { reason } : {}, reason ? `reject: ${reason}` : "reject");
  };
  const step = (/** @type {number} */ by) => {
    review.show(review.current.peek() + by);
    const total = review.chunks.peek().length;
    announce(total ? `Change ${review.current.peek() + 1} of ${total}` : "No changes");
  };
  const acts = {
    j: () => step(1), k: () => step(-1), u: () => change({ isSplit: !layout.isSplit }), l: () => change({ isCollapsed: !layout.isCollapsed }),
    c: () => setPlace(review.place), ...(end ? {} : { a: accept, r: () => setRejecting(true), e: () => review.edit(true), x: () => review.toggle(review.current.peek()) }),
  };
  useKeys(acts);
  const tools = html`<span class="grow"></span><button type="button" class="plain" aria-pressed=${String(!layout.isCollapsed)} title="Show the lines that are equal" onClick=${acts.l}>All lines <kbd>l</kbd></button>
    <button type="button" class="plain" onClick=${acts.c}>Comment <kbd>c</kbd></button>`;
  const next = [...diffs.value.values()].find((each) => each.diff !== info.diff);
  return html`<section class="diff-pane" aria-label="Change">
    <${DiffBar} review=${review} info=${info} isOpen=${!end} isSending=${isSending} isSplit=${layout.isSplit} acts=${acts} onAcceptAll=${acceptAll} />
    ${end ? html`<${Ended} end=${end} info=${info} next=${next} />` : null}
    ${failure ? html`<p class="error" role="alert">${readable(failure)}</p>` : null}
    <div class="diff-box"><div class="diff-titles">${layout.isSplit ? html`<span><span class="cut">${titles[0]}</span>${tools}</span>` : null}<span><span class="cut">${titles[1]}</span>${end ? null : html` <${Choice} review=${review} />`}${layout.isSplit ? null : tools}</span></div>
      <div class="diff-host" data-layout=${layout.isSplit ? "split" : "unified"} ref=${host}></div></div>
    <${Comments} diff=${info.diff} path=${info.path} comments=${comments} place=${place} isOpen=${!end} onPlace=${setPlace} onShow=${(/** @type {Place} */ each) => review.showLine(each.side, each.line)} onChange=${onComments} />
    ${isRejecting ? html`<${RejectDialog} comments=${comments.length} onReject=${reject} onClose=${() => setRejecting(false)} />` : null}</section>`;
}

/** The box of the current change. @param {{review: Review}} props */
function Choice({ review }) {
  if (!review.chunks.value.length) return null;
  const at = review.current.value;
  return html`<label class="check"><input type="checkbox" checked=${review.isChosen(at)} onChange=${() => review.toggle(at)} /> accept this change <kbd>x</kbd></label>`;
}

/** How the change was closed, and what comes next. @param {{end: DiffClosed, info: DiffInfo, next: DiffInfo | undefined}} props */
function Ended({ end, info, next }) {
  const words = { accepted: "Accepted", edited: "Accepted with changes", rejected: "Rejected", closed: `No longer needed by ${clientName(info.client || undefined)}` };
  const kinds = { accepted: "done", edited: "done", rejected: "failed", closed: "stopped" };
  return html`<div class="card ended" role="status"><span class="outcome" data-kind=${kinds[end.outcome]}>${words[end.outcome]}</span>
    <span class="grow">${end.by && end.outcome !== "closed" ? `by ${clientName(end.by)}, ` : ""}${clock(end.at_ms).slice(0, 8)}${end.reason ? `: ${readable(end.reason)}` : ""}</span>
    <a class="button small" href=${link("runs", info.run)}>Run</a>${end.outcome === "closed" ? null : html`<a class="button small" href=${fileLink(info.path)}>Open the file</a>`}
    ${next ? html`<a class="button small primary-link" href=${diffLink(next.diff)}>Next: ${nameOf(next.path)}</a>` : null}</div>`;
}

/** Call an action for its key, except in fields and in other lists. @param {Record<string, () => unknown>} acts */
function useKeys(acts) {
  const latest = useRef(acts);
  latest.current = acts;
  useEffect(() => {
    let before = "";
    const onKey = (/** @type {KeyboardEvent} */ event) => {
      const last = before;
      before = event.key;
      const target = /** @type {HTMLElement} */ (event.target);
      // "g" and a letter go to another view.
      if (last === "g" || event.ctrlKey || event.metaKey || event.altKey || target.closest("input:not([type=checkbox]),textarea,select,dialog,[role=tree],[contenteditable=true]")) return;
      const act = Object.hasOwn(latest.current, event.key) ? latest.current[event.key] : undefined;
      if (!act || event.repeat && !"jk".includes(event.key)) return;
      event.preventDefault();
      act();
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
}
