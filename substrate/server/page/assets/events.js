// Reading server-sent events out of a response, as they come.

/** How long events are read at a time, in milliseconds; then the page may draw. */
const AT_A_TIME = 12;

/** Let everything else happen that waits. */
function breathe() {
  return new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      port1.close();
      resolve();
    };
    port2.postMessage(null);
  });
}

/** Each event of a response: its id and its data, decoded. Ends with the response. */
export async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let id = null;
  let data = [];
  let since = performance.now();
  let count = 0;
  try {
    for (;;) {
      // What has come already is read without a pause, so pauses are made.
      const { done, value } = await reader.read();
      if (done) return;
      rest += value;
      const lines = rest.split("\n");
      rest = lines.pop();
      for (const raw of lines) {
        const line = raw.endsWith("\r") ? raw.slice(0, -1) : raw;
        if (line === "") {
          if (data.length) yield { id, data: JSON.parse(data.join("\n")) };
          count += 1;
          if (count % 32 === 0 && performance.now() - since > AT_A_TIME) {
            await breathe();
            since = performance.now();
          }
          id = null;
          data = [];
        } else if (line.startsWith("data:")) {
          data.push(line.slice(line[5] === " " ? 6 : 5));
        } else if (line.startsWith("id:")) {
          id = line.slice(3).trim();
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
