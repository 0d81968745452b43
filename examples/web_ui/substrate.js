// A client for web pages of another origin. The server must allow the origin of the page:
//
//   substrate --allow-origin https://app.example.org
//
// fetch sends the session in a header. A WebSocket and an EventSource cannot, so each of them is
// opened with a ticket, which is good for one connection within 30 seconds.

const JSON_TYPE = "application/json";
const STREAM = "text/event-stream";
const TERMINALS = new Set(["complete", "error", "cancelled"]);
const RETRY_MS = 500;

const pause = () => new Promise((resolve) => setTimeout(resolve, RETRY_MS));

export class Substrate {
  #key;
  #secret;

  constructor(url) {
    this.url = new URL(url).origin;
    this.#key = `substrate ${this.url}`;
    this.#secret = localStorage.getItem(this.#key);
  }

  get isLoggedIn() {
    return this.#secret !== null;
  }

  /** Exchange a token for a session. Keep the session, never the token. */
  async login(token) {
    this.#secret = token;
    const answer = await this.#post("/session", {});
    this.#secret = answer.session;
    if (this.#secret !== null) localStorage.setItem(this.#key, this.#secret);
  }

  /** Revoke the session. */
  async logout() {
    await this.#request("/session", { method: "DELETE" });
    localStorage.removeItem(this.#key);
    this.#secret = null;
  }

  /** Start a run. Yields its items, `{run, seq, event}`, to the terminal. */
  async *run(method, params) {
    const key = crypto.randomUUID(); // a call that is sent twice runs once
    const message = { jsonrpc: "2.0", id: 1, method, params: { ...params, _run: key } };
    const options = {
      method: "POST",
      headers: { "content-type": JSON_TYPE, accept: STREAM },
      body: JSON.stringify(message),
    };
    let run = null;
    let last = 0;
    while (true) {
      try {
        const response = await (run === null
          ? this.#request("/rpc", options)
          : this.#request(`/runs/${run}/events`, {
              headers: { accept: STREAM, "last-event-id": `${run}:${last}` },
            }));
        for await (const data of eventsOf(response)) {
          if (data.error) throw new Refused(data.error.message);
          if (!data.params) run = data.result;
          else if (data.params.seq > last) {
            last = data.params.seq;
            yield { run, seq: last, event: data.params.result };
            if (TERMINALS.has(data.params.result.type)) return;
          }
        }
      } catch (error) {
        if (error instanceof Refused) throw error;
      }
      await pause(); // the connection is lost: continue after the last item
    }
  }

  /** Follow a run over an EventSource. Yields its items to the terminal. */
  async *followEvents(run) {
    const path = `/runs/${run}/events`;
    let last = 0;
    while (true) {
      const ticket = await this.#ticket(path);
      const items = queue();
      const source = new EventSource(`${this.url}${path}?after=${last}&ticket=${ticket}`);
      source.onmessage = ({ data, lastEventId }) => items.push({ data, lastEventId });
      // The browser would reconnect with the same address, whose ticket is spent. So close it, and
      // open another one with a new ticket that continues after the last item.
      source.onerror = () => items.end();
      try {
        for await (const { data, lastEventId } of items) {
          last = Number(lastEventId.split(":")[1]); // an id is `run:seq`
          const event = JSON.parse(data).params.result;
          yield { run, seq: last, event };
          if (TERMINALS.has(event.type)) return;
        }
      } finally {
        source.close();
      }
      await pause();
    }
  }

  /** Follow a run over a WebSocket. Yields its items to the terminal. */
  async *followSocket(run) {
    let last = 0;
    while (true) {
      const ticket = await this.#ticket("/rpc");
      const items = queue();
      const socket = new WebSocket(`${this.url.replace(/^http/, "ws")}/rpc?ticket=${ticket}`);
      const attach = { jsonrpc: "2.0", id: 1, method: "plexus.attach", params: { run, after: last } };
      socket.onopen = () => socket.send(JSON.stringify(attach));
      socket.onmessage = ({ data }) => items.push(JSON.parse(data));
      socket.onclose = () => items.end();
      try {
        for await (const { error, params } of items) {
          if (error) throw new Refused(error.message);
          if (!params) continue; // the answer to the request
          last = params.seq;
          yield { run, seq: last, event: params.result };
          if (TERMINALS.has(params.result.type)) return;
        }
      } finally {
        socket.close();
      }
      await pause();
    }
  }

  /** A ticket for one connection to this path; waits for a server that is away. */
  async #ticket(path) {
    while (true) {
      try {
        return (await this.#post("/tickets", { path })).ticket;
      } catch (error) {
        if (error instanceof Refused) throw error;
      }
      await pause();
    }
  }

  async #post(path, body) {
    const headers = { "content-type": JSON_TYPE, accept: JSON_TYPE };
    const options = { method: "POST", headers, body: JSON.stringify(body) };
    return (await this.#request(path, options)).json();
  }

  async #request(path, options) {
    const headers = { ...options.headers };
    if (this.#secret !== null) headers.authorization = `Bearer ${this.#secret}`;
    const response = await fetch(this.url + path, { ...options, headers, credentials: "omit" });
    if (response.ok || response.status >= 502) return response;
    const { error } = await response.json();
    throw new Refused(typeof error === "string" ? error : error.message);
  }
}

/** The server has answered, and does not want to be asked again. */
export class Refused extends Error {}

/** The data of each server-sent event of a response. */
async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  while (true) {
    const { done, value } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const line = event.split("\n").find((each) => each.startsWith("data: "));
      if (line) yield JSON.parse(line.slice(6));
    }
  }
}

/** What callbacks push, to be read with `for await` until it is ended. */
function queue() {
  const values = [];
  let ended = false;
  let wake = () => {};
  return {
    push(value) {
      values.push(value);
      wake();
    },
    end() {
      ended = true;
      wake();
    },
    async *[Symbol.asyncIterator]() {
      while (true) {
        while (values.length) yield values.shift();
        if (ended) return;
        await new Promise((resolve) => { wake = resolve; });
      }
    },
  };
}
