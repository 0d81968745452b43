// What one says next, with the files that go along.

import { button, h, replace, toast } from "./dom.js";

const MOST_FILES = 20;
/** A request holds a mebibyte; base64 makes a third more of it, and there is the rest. */
const MOST_BYTES = 700_000;

export class Composer {
  constructor({ onSend, onStop }) {
    this._onSend = onSend;
    this._files = [];
    this._text = h("textarea", { rows: 2, "aria-label": "Your message", placeholder: "Say something…  (Enter sends, Shift+Enter begins a new line)" });
    this._text.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this._submit();
    });
    this._picker = h("input", { type: "file", multiple: true, "aria-label": "Attach files" });
    this._picker.addEventListener("change", () => this._add([...this._picker.files]));
    this._listed = h("ul", { class: "plain files" });
    this._send = button("Send", () => this._submit(), { class: "primary" });
    this._stop = button("Stop", () => onStop(), { class: "danger", hidden: true });
    this.element = h("div", { class: "composer" }, this._listed, this._text, h("div", { class: "bar" }, this._send, this._stop, this._picker));
  }

  setBusy(busy) {
    this._busy = busy;
    this._send.hidden = busy;
    this._stop.hidden = !busy;
  }

  async _submit() {
    const text = this._text.value;
    if (this._busy || !text.trim()) return;
    this._text.value = "";
    const files = this._files.splice(0);
    this._list();
    if (!(await this._onSend(text, files.map(({ attachment }) => attachment)))) {
      this._text.value = text;
      this._files = files;
      this._list();
    }
  }

  async _add(files) {
    this._picker.value = "";
    for (const file of files) {
      const size = this._files.reduce((sum, each) => sum + each.size, file.size);
      if (this._files.length >= MOST_FILES || size > MOST_BYTES) {
        toast(`${file.name} does not fit: a message takes ${MOST_FILES} files and ${MOST_BYTES / 1000} KB.`);
        continue;
      }
      this._files.push({ size: file.size, attachment: await attached(file) });
    }
    this._list();
  }

  _list() {
    replace(this._listed, this._files.map((file, index) => h("li", {}, file.attachment.name, " ", button("Remove", () => {
      this._files.splice(index, 1);
      this._list();
    }, { class: "small", "aria-label": `Remove ${file.attachment.name}` }))));
  }
}

/** A file as the server takes it: a text if it is one, and base64 otherwise. */
async function attached(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    if (!text.includes("\0")) return { name: file.name, text, ...(file.type ? { mime_type: file.type } : {}) };
  } catch {
    // It is no text.
  }
  let binary = "";
  for (let at = 0; at < bytes.length; at += 8192) binary += String.fromCharCode(...bytes.subarray(at, at + 8192));
  return { name: file.name, data: btoa(binary), mime_type: file.type || "application/octet-stream" };
}
