// The Files view: the tree of the workspace, open files, and the changes that programs propose.

import { readable } from "../core/format.js";
import { html, useEffect } from "../core/html.js";
import { link } from "../core/router.js";
import { DiffPane } from "../diffs/diff_pane.js";
import { WaitingList } from "../diffs/waiting_list.js";
import { FilePane } from "../files/file_pane.js";
import { isKnown, refusal, reveal, status, watchIde } from "../files/ide.js";
import { IdeSwitch } from "../files/ide_switch.js";
import { fileLink, nameOf } from "../files/places.js";
import { Tabs } from "../files/tabs.js";
import { Tree } from "../files/tree.js";
import { Notice } from "../ui/run_parts.js";
import { title } from "../ui/title.js";
import { toast } from "../ui/toast.js";

/** `#/files`, `#/files/file/PATH`, `#/files/diff/NUMBER`. @param {{parts: string[]}} props */
export function View({ parts: [kind = "", name = ""] }) {
  const file = kind === "file" ? name : "";
  const diff = kind === "diff" ? name : "";
  useEffect(watchIde, []);
  useEffect(() => {
    if (!diff) title.value = file ? nameOf(file) : "";
    return () => { title.value = ""; };
  }, [file, diff]);
  const wanted = reveal.value;
  useEffect(() => {
    if (!wanted || wanted.path === file) return;
    // A program that shows a file must not take away a change that is being reviewed.
    if (diff) {
      reveal.value = null;
      toast(`A program has opened ${nameOf(wanted.path)}.`);
    } else location.hash = fileLink(wanted.path);
  }, [wanted]);
  const Heading = file || diff ? "h2" : "h1";
  if (refusal.value) return html`<${Notice} title="Files cannot be shown"><p>${refusal.value}</p><//>`;
  return html`<div class="files-view" data-open=${diff ? "diff" : file ? "pane" : "tree"}>
    <aside class="files-side" aria-label="Workspace"><${Heading} class="cut" title=${status.value?.workspace}>${readable(status.value?.name || "Files")}<//>
      <${IdeSwitch} /><${WaitingList} chosen=${diff} /><${Tree} chosen=${file} /></aside>
    <div class="files-main"><div class="files-top"><a class="button back" href=${link("files")}>← Files</a><${Tabs} file=${file} diff=${diff} /></div>
      ${diff ? html`<${DiffPane} key=${diff} diff=${diff} />` : file ? html`<${FilePane} key=${file} path=${file} />` : isKnown.value ? html`<${Notice} title="No file is shown"><p>Choose a file in the tree, or find one by the letters of its path. Changes that Claude Code proposes appear here and in Questions.</p><//>` : html`<p class="dim" role="status">Loading …</p>`}</div></div>`;
}
