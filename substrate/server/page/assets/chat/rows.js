// The messages of a conversation as rows: what a person said, and each answer with its thoughts and
// tool calls. A tool call and its result are one part of an answer.

/** @typedef {{kind: string, node_id?: string, created_ms?: number, text?: string, size?: number,
      status?: string, error?: {code: string, message: string}, model?: string, stop_reason?: string,
      usage?: {input_tokens: number, output_tokens: number, cost_usd?: number}, tool_name?: string, tool_use_id?: string,
      is_error?: boolean, run?: number, name?: string, mime_type?: string, output?: string, level?: string}} Message */

/** `node` is the node of the row's last message, `user` that of the message it belongs to.
    @typedef {{key: string, kind: "user" | "answer" | "summary", messages: Message[], node?: string,
      user?: string, isLive?: boolean}} Row */

/** Return the rows of stored messages. @param {Message[]} messages @returns {Row[]} */
export function rowsOf(messages) {
  /** @type {Row[]} */
  const rows = [];
  /** @type {Message[]} */
  let attachments = [];
  let user = "";
  for (const message of messages) {
    const node = message.node_id;
    if (message.kind === "attachment") attachments.push(message);
    else if (message.kind === "user") {
      user = node || "";
      rows.push({ key: `u ${user}`, kind: "user", messages: [...attachments, message], node, user });
      attachments = [];
    } else if (message.kind === "summary") rows.push({ key: `s ${node}`, kind: "summary", messages: [message], node });
    else {
      let row = rows[rows.length - 1];
      // The key of an answer stays the same when it is stored, and when another one takes its place.
      if (row?.kind !== "answer") rows.push(row = { key: `a ${user || node}`, kind: "answer", messages: [], user });
      row.messages.push(message);
      row.node = node || row.node;
    }
  }
  return rows;
}

/** Return the messages of an answer with results joined to their tool calls. @param {Message[]} messages @returns {Message[]} */
export function partsOf(messages) {
  /** @type {Message[]} */
  const parts = [];
  for (const message of messages) {
    const call = message.kind === "tool_result" ? parts.findLast((part) => part.kind === "tool_use" && part.tool_use_id === message.tool_use_id) : null;
    if (call) Object.assign(call, { output: message.text ?? "", size: message.size, is_error: message.is_error, run: message.run, result_node: message.node_id });
    else parts.push({ ...message });
  }
  return parts;
}

/** Return rows in groups of about ten, each with a key. A group begins at a message whose id says so:
    groups stay the same when rows are added at either end. @param {Row[]} rows */
export function groupsOf(rows) {
  /** @type {{key: string, rows: Row[]}[]} */
  const groups = [];
  for (const row of rows) {
    const begins = row.kind === "user" && Number.parseInt(row.key.slice(-2), 16) % 5 === 0;
    if (begins || !groups.length) groups.push({ key: row.key, rows: [row] });
    else groups[groups.length - 1].rows.push(row);
  }
  return groups;
}
