// How each block of a run looks.

import { lineElement } from "./ansi.js";
import { clock, h } from "./dom.js";
import { jsonTree } from "./jsontree.js";
import { markdown, webLink } from "./markdown.js";
import { link } from "./router.js";

/** A block as an element, with its time and numbers beside it. */
export function blockElement(block) {
  const numbers = block.from === block.to ? `${block.to}` : `${block.from}–${block.to}`;
  return h("div", { class: `block b-${block.kind}` },
    h("div", { class: "margin" }, h("span", { class: "seq" }, `#${numbers}`), " ", h("time", {}, clock(block.at))),
    h("div", { class: "body" }, (LOOKS[block.kind] || LOOKS.data)(block)));
}

const LOOKS = {
  output: (block) => h("div", { class: "terminal" }, block.lines.map(lineElement), block.open.length ? lineElement(block.open) : null),
  text: (block) => markdown(block.text),
  thinking: (block) => h("div", { class: "thinking" }, h("span", { class: "tag" }, "thinking"), markdown(block.text)),
  progress: ({ event }) => progressBar(event),
  image: ({ event }) => picture(event),
  audio: ({ event }) => sound(event),
  resource: ({ event }) => resource(event),
  log: ({ event }) => h("p", { class: `log log-${event.level}` }, h("span", { class: "tag" }, event.level), " ", event.message),
  gap: ({ event }) => h("p", { class: "note" }, `Items ${event.from} to ${event.to} are no longer kept by the server.`),
  // While it is open, it stands above all this, where nothing scrolls away.
  request: ({ event }) => h("p", { class: "asked" }, h("span", { class: "tag" }, "asks"), " ", event.message),
  tool_use: ({ event }) => h("div", {}, h("span", { class: "tag" }, "tool"), " ", h("code", {}, event.tool_name), jsonTree(event.input, 1)),
  tool_start: ({ event }) => h("p", { class: "note" }, "The tool runs as ", h("a", { href: link("run", event.run) }, `run ${event.run}`), "."),
  tool_result: ({ event }) => h("div", { class: event.is_error ? "failed" : "" }, h("span", { class: "tag" }, event.is_error ? "tool failed" : "tool answered"), h("pre", { class: "code", tabindex: "0", "aria-label": "What the tool answered" }, event.output)),
  message: ({ event }) => h("div", {}, h("span", { class: "tag" }, event.role), content(event.content)),
  complete: ({ event }) => ended(event),
  error: ({ event }) => h("div", { class: "end failed" }, h("strong", {}, event.message), " ", h("code", {}, event.code), event.data === undefined || event.data === null ? null : jsonTree(event.data, 1)),
  cancelled: ({ event }) => h("p", { class: "end stopped" }, event.reason ? `Stopped: ${event.reason}` : "Stopped"),
  data: ({ event }) => {
    const { type, ...rest } = event;
    return h("div", {}, h("span", { class: "tag" }, type), " ", fieldsOf(rest));
  },
};

/** A few plain values stand in one line; everything else is a tree. */
function fieldsOf(value) {
  const entries = Object.entries(value);
  const isShort = entries.length <= 4 && entries.every(([, each]) => each === null || (typeof each !== "object" && String(each).length < 80));
  if (!isShort) return jsonTree(value, 1);
  return h("span", { class: "short" }, entries.map(([name, each]) => [h("span", { class: "j-key" }, `${name}: `), `${each}  `]));
}

/** How far the work is. */
function progressBar({ done, total, message }) {
  const known = typeof total === "number" && total > 0;
  const text = known ? `${Math.round((done / total) * 100)} % (${done} of ${total})` : String(done);
  return h("div", { class: "progress" },
    known ? h("progress", { max: total, value: Math.min(done, total), "aria-label": message || "Progress" }) : h("progress", { "aria-label": message || "Progress" }),
    h("span", {}, text, message ? ` ${message}` : ""));
}

/** A picture that came along. */
export function picture({ data, mime_type: type }) {
  if (!/^image\/[\w.+-]+$/.test(type || "")) return h("p", {}, `[${type}]`);
  return h("img", { src: `data:${type};base64,${data}`, alt: `A picture (${type})`, class: "picture" });
}

function sound({ data, mime_type: type }) {
  if (!/^audio\/[\w.+-]+$/.test(type || "")) return h("p", {}, `[${type}]`);
  return h("audio", { src: `data:${type};base64,${data}`, controls: true, "aria-label": `A sound (${type})` });
}

function resource({ uri, name, content: text, mime_type: type, blob }) {
  return h("div", {}, h("span", { class: "tag" }, "resource"), " ", webLink(uri, name || uri) || h("code", {}, name ? `${name} ${uri}` : uri),
    blob && /^image\//.test(type || "") ? picture({ data: blob, mime_type: type }) : null,
    text ? h("pre", { class: "code", tabindex: "0", "aria-label": name || uri }, text) : null);
}

function content(event) {
  if (event.type === "content") return markdown(event.text);
  return (LOOKS[event.type] || LOOKS.data)({ event });
}

function ended(event) {
  const { type: _, ...rest } = event;
  if (!Object.keys(rest).length) return h("p", { class: "end" }, "Done.");
  if ("exit_code" in rest) {
    return h("p", { class: rest.exit_code ? "end failed" : "end" }, `Exit code ${rest.exit_code}${rest.signal ? ` (${rest.signal})` : ""} after ${rest.duration_ms} ms`);
  }
  if (Object.keys(rest).length === 1 && "result" in rest) {
    if (typeof rest.result === "string") return h("pre", { class: "end code", tabindex: "0", "aria-label": "Result" }, rest.result);
    return h("div", { class: "end" }, jsonTree(rest.result, 2));
  }
  return h("div", { class: "end" }, jsonTree(rest, 2));
}
