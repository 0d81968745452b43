// The inbox: all open questions of runs, and those that were closed lately.

import { readable } from "../core/format.js";
import { html, useEffect } from "../core/html.js";
import { questions, seesQuestions, snapshots } from "../core/live.js";
import { NotifyButton } from "../ui/notifications.js";
import { QuestionCard, settledText } from "../ui/question_card.js";
import { loadSettled, settled } from "../ui/question_log.js";
import { Notice, RunLink } from "../ui/run_parts.js";

/** The Questions view. */
export function View() {
  const open = questions.value;
  // When the view opens, and after a lost connection.
  useEffect(() => { loadSettled().catch(() => {}); }, [snapshots.value]); // without it, those of this browser are shown
  return html`<div class="bar"><h1>Questions</h1><span class="dim" role="status">${open.length ? `${open.length} open` : "none open"}</span><span class="grow"></span><${NotifyButton} /></div>
    ${seesQuestions.value ? null : html`<p class="error">This session may not see questions: it lacks the scope <code>approvals</code>.</p>`}
    ${open.map((question) => html`<${QuestionCard} key=${question.approval_id} question=${question} />`)}
    ${open.length || !seesQuestions.value ? null : html`<${Notice} title="No open questions"><p>When a run needs an answer or a permission, it appears here, above the list of runs, and in the terminal that started it. The first answer counts.</p><//>`}
    <${Answered} />`;
}

function Answered() {
  if (!settled.value.length) return null;
  return html`<section class="answered" aria-labelledby="answered"><h2 id="answered">Answered</h2>
    <ul class="plain">${settled.value.map((entry) => html`<li key=${entry.approval_id} class="card"><div><strong>${readable(entry.message)}</strong><br /><small>${settledText(entry)}</small></div><${RunLink} run=${entry.run} /></li>`)}</ul></section>`;
}
