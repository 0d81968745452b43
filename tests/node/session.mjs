// The session of a client in a test. It prints its observations as one line of JSON.

// A session that hangs must not outlive its test.
const SESSION_MS = 30_000;
// Timeout of the server for noticing that a call was cancelled.
const NOTICE_MS = 5_000;

export const NAME = "Ada";

const text = (result) => result.content.map((block) => block.text ?? `[${block.type}]`).join("");

// `call` calls a tool: (name, options) => result. `asked` contains the messages of the forms that
// the server sent.
export async function session(client, { revision, call, asked }) {
  const tooLong = setTimeout(() => {
    console.error("the session took too long");
    process.exit(3);
  }, SESSION_MS);
  const seen = { revision: revision(), server: client.getServerVersion()?.name };

  const { tools } = await client.listTools();
  seen.tools = tools.map((tool) => tool.name);
  seen.text = text(await call("test_simple_text"));

  const progress = [];
  const report = ({ progress: done, total }) => progress.push([done, total]);
  seen.after_progress = text(await call("test_tool_with_progress", { onprogress: report }));
  seen.progress = progress;

  seen.cancelled = await cancelled(call);
  seen.stopped = await stopped(call);

  const failed = await call("test_error_handling");
  seen.failed = [failed.isError, text(failed)];

  const { contents } = await client.readResource({ uri: "test://static-text" });
  seen.resource = contents.map((content) => content.text);
  const { messages } = await client.getPrompt({
    name: "test_prompt_with_arguments",
    arguments: { arg1: "hello", arg2: "world" },
  });
  seen.prompt = messages.map((message) => message.content.text);

  seen.elicited = text(await call("test_input_required_result_elicitation"));
  seen.asked = asked;

  await client.close();
  clearTimeout(tooLong);
  console.log(JSON.stringify(seen));
}

// Cancel a call that would never end, once it has reported progress.
async function cancelled(call) {
  const abort = new AbortController();
  let ended;
  await new Promise((begun, failed) => {
    ended = call("wait_for_cancel", { signal: abort.signal, onprogress: begun }).then(
      () => failed(new Error("the call ended by itself")),
      (error) => (abort.signal.aborted ? true : failed(error)),
    );
  });
  abort.abort("enough");
  return ended;
}

// Return how many calls the server has cancelled, once there is one.
async function stopped(call) {
  const until = Date.now() + NOTICE_MS;
  let count = 0;
  while (count === 0 && Date.now() < until) {
    count = Number(text(await call("stopped_calls")));
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  return count;
}
