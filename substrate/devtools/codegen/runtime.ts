// --- How it works: nothing below depends on the schema. -----------------------------------------

export interface ConnectOptions {
  /** The token that `substrate token` prints, or the session secret that `POST /session` gives for
   * it: a page should keep the session rather than the token. */
  token?: string | undefined;
  /** How long a lost connection is sought again, in milliseconds; 0 for not at all. The server
   * gives a run up whose caller has not come back after 10 s. */
  reconnectMs?: number | undefined;
  /** In place of the global `fetch`. */
  fetch?: typeof fetch | undefined;
}

export interface CallOptions {
  /** Stops the run when it is aborted; whoever reads the call gets the signal's reason. */
  signal?: AbortSignal | undefined;
}

/** The last event of a method that returns a value. */
export interface ReturnedEvent<Value> {
  type: "complete";
  result: Value;
}

/** A call of a method that returns a value. */
export type ValueCall<Value> = Call<RunEvent | ReturnedEvent<Value>, Value>;

/** An event of which only its tag is known. */
export interface AnyEvent {
  type: string;
  [field: string]: unknown;
}

/** A call that was refused or failed: `code` is a word for programs, `message` is for people. */
export class PlexusError extends Error {
  override readonly name = "PlexusError";
  readonly code: string;
  readonly data: unknown;

  constructor(code: string, message: string, data?: unknown) {
    super(message);
    this.code = code;
    this.data = data;
  }
}

const REPLY_MS = 30_000;
/** A server says something every 15 s, if only a comment. */
const SILENCE_MS = 60_000;
const GOODBYE_MS = 5_000;
const RECONNECT_MS = 30_000;
const FIRST_PAUSE_MS = 50;
const LONGEST_PAUSE_MS = 2_000;
/** One event; a server refuses to send more than this. */
const EVENT_CHARS = 16 * 1024 * 1024;

const STATUSES: Readonly<Record<number, string>> = {
  401: "denied",
  403: "denied",
  413: "too_big",
  429: "busy",
};
const AWAY: readonly number[] = [502, 503, 504];

/** The connection is gone; the call may go on over another. */
class Lost extends Error {}

interface Message {
  id?: unknown;
  result?: unknown;
  error?: { code?: unknown; message?: unknown; data?: unknown };
  params?: { seq?: unknown; result?: unknown };
}

/** Where the server is, and what every request to it carries. */
export class Connection {
  readonly url: string;
  readonly reconnectMs: number;
  /** Whether the server has ever answered; one that never did is not waited for. */
  reached = false;
  readonly #token: string | undefined;
  readonly #fetch: typeof fetch;

  constructor(url: string, options: ConnectOptions) {
    const page = (globalThis as { location?: { href?: string } }).location?.href;
    const address = new URL(url, page);
    if (address.protocol === "ws:" || address.protocol === "wss:") {
      // The same server answers both; only HTTP can carry a token everywhere.
      address.protocol = address.protocol === "ws:" ? "http:" : "https:";
    }
    if (address.pathname === "/") address.pathname = "/rpc";
    this.url = address.href;
    this.reconnectMs = options.reconnectMs ?? RECONNECT_MS;
    this.#token = options.token;
    this.#fetch = options.fetch ?? ((input, init) => fetch(input, init));
  }

  /** Send one request; throws Lost. */
  async post(method: string, params: object, accept: string, signal: AbortSignal): Promise<Response> {
    const headers: Record<string, string> = { "Content-Type": "application/json", Accept: accept };
    if (this.#token !== undefined) headers["Authorization"] = `Bearer ${this.#token}`;
    const body = JSON.stringify({ jsonrpc: "2.0", id: 1, method, params });
    try {
      const response = await this.#fetch(this.url, {
        method: "POST",
        headers,
        body,
        signal,
        cache: "no-store",
        // There are no cookies to send, and the token goes to no other server.
        credentials: "omit",
        redirect: "error",
      });
      this.reached = true;
      return response;
    } catch (error) {
      throw new Lost(`cannot reach ${this.url}: ${said(error)}`);
    }
  }

  /** Stop a run that nobody reads; if that fails, the server gives it up in the end. */
  async stop(run: number): Promise<void> {
    const params = { run, reason: "its caller left" };
    try {
      const signal = AbortSignal.timeout(GOODBYE_MS);
      const response = await this.post("plexus.cancel", params, "application/json", signal);
      await response.text();
    } catch {
      // There is nobody to tell.
    }
  }
}

/** One request, and the messages that come back. */
class Exchange {
  readonly #connection: Connection;
  readonly #method: string;
  readonly #params: object;
  readonly #controller = new AbortController();
  readonly #decoder = new TextDecoder();
  #reader: ReadableStreamDefaultReader<Uint8Array> | undefined;
  #rest = "";
  #data: string[] = [];
  #size = 0;

  constructor(connection: Connection, method: string, params: object) {
    this.#connection = connection;
    this.#method = method;
    this.#params = params;
  }

  /** What has come since; throws Lost, or PlexusError if the request as such was refused. */
  async read(): Promise<Message[]> {
    if (this.#reader === undefined) {
      const accept = "text/event-stream, application/json";
      const response = await this.#within(
        REPLY_MS,
        this.#connection.post(this.#method, this.#params, accept, this.#controller.signal),
      );
      const kind = response.headers.get("Content-Type")?.split(";")[0]?.trim().toLowerCase();
      if (response.status !== 200 || kind !== "text/event-stream" || response.body === null) {
        return [await this.#refusal(response)];
      }
      this.#reader = response.body.getReader();
    }
    const { done, value } = await this.#within(SILENCE_MS, this.#reader.read());
    if (done) throw new Lost("the stream ended before the run did");
    return this.#feed(this.#decoder.decode(value, { stream: true }));
  }

  /** Give the connection back. Harmless when it is over. */
  close(): void {
    this.#controller.abort();
  }

  async #within<Value>(ms: number, promise: Promise<Value>): Promise<Value> {
    let late = false;
    const timer = setTimeout(() => {
      late = true;
      this.#controller.abort();
    }, ms);
    try {
      return await promise;
    } catch (error) {
      throw new Lost(late ? `${this.#connection.url} was silent for ${ms} ms` : said(error));
    } finally {
      clearTimeout(timer);
    }
  }

  /** Read what is no stream; it says why. */
  async #refusal(response: Response): Promise<Message> {
    const text = await this.#within(REPLY_MS, response.text());
    let body: unknown;
    try {
      body = JSON.parse(text);
    } catch {
      body = undefined;
    }
    const error = typeof body === "object" && body !== null ? (body as Message).error : undefined;
    if (typeof error === "object" && error !== null) return { error };
    const reason = typeof error === "string" ? error : text.slice(0, 200);
    const message = `${this.#connection.url} answered with HTTP ${response.status}: ${reason}`;
    if (AWAY.includes(response.status)) throw new Lost(message);
    throw new PlexusError(STATUSES[response.status] ?? "protocol", message);
  }

  /** Cut server-sent events out of the text; only their data matters to whoever counts items. */
  #feed(text: string): Message[] {
    const all = this.#rest + text;
    // The other half of a line's end may still be on its way.
    const whole = all.endsWith("\r") ? all.slice(0, -1) : all;
    const lines = whole.split(/\r\n|\n|\r/);
    this.#rest = (lines.pop() ?? "") + all.slice(whole.length);
    const messages: Message[] = [];
    for (const line of lines) {
      if (line === "") {
        if (this.#data.length > 0) messages.push(parsed(this.#data.join("\n")));
        this.#data = [];
        this.#size = 0;
      } else if (line.startsWith("data:")) {
        this.#data.push(line.slice(line[5] === " " ? 6 : 5));
        this.#size += line.length;
      }
    }
    if (this.#size + this.#rest.length > EVENT_CHARS) {
      throw new PlexusError("protocol", `an event is over the limit of ${EVENT_CHARS} characters`);
    }
    return messages;
  }
}

/**
 * One call of one method: to loop over with `for await`, or to await.
 *
 * Nothing is sent before that, and a call runs once. Leaving the loop, or aborting the signal,
 * stops the run on the server. When the connection breaks, the call goes on after its last event
 * over another: nothing is lost, nothing comes twice, nothing runs twice.
 */
export class Call<Event, Result> implements AsyncIterable<Event>, PromiseLike<Result> {
  readonly method: string;
  readonly #connection: Connection;
  readonly #params: Readonly<Record<string, unknown>>;
  readonly #signal: AbortSignal | undefined;
  /** What is waited for: the value in its last event, or that event itself. */
  readonly #ends: "value" | "event";
  /** Whether it only looks at a run that somebody began. */
  readonly #follows: boolean;
  readonly #key = randomKey();
  #begun = false;
  #run: number | undefined;
  #seq = 0;
  #pending: Promise<Message[]> | undefined;
  #promise: Promise<Result> | undefined;

  constructor(
    connection: Connection,
    method: string,
    params: object,
    options: CallOptions = {},
    ends: "value" | "event" = "value",
  ) {
    this.method = method;
    this.#ends = ends;
    this.#connection = connection;
    this.#params = { ...params };
    this.#signal = options.signal;
    this.#follows = method === "plexus.attach";
    if (this.#follows) {
      const { run, after } = this.#params;
      if (typeof run === "number") this.#run = run;
      if (typeof after === "number") this.#seq = after;
    }
  }

  /** The run's number, once the server has said it. */
  get run(): number | undefined {
    return this.#run;
  }

  /** Wait for the end: the value of a plain method, the last event of a stream. */
  then<Fulfilled = Result, Rejected = never>(
    onFulfilled?: ((value: Result) => Fulfilled | PromiseLike<Fulfilled>) | null,
    onRejected?: ((reason: unknown) => Rejected | PromiseLike<Rejected>) | null,
  ): Promise<Fulfilled | Rejected> {
    this.#promise ??= this.#result();
    return this.#promise.then(onFulfilled, onRejected);
  }

  /** Answer what the run asks, by the `request` of its event; null declines. */
  async respond(request: string, answer: unknown): Promise<void> {
    const params = { run: this.#run, request, answer };
    await new Call<AnyEvent, boolean>(this.#connection, "plexus.respond", params);
  }

  /** Stop the run and let its end come; whoever reads it gets a PlexusError `cancelled`. True if
   * it was still running. */
  async cancel(reason?: string): Promise<boolean> {
    if (this.#run === undefined) throw new Error(`${this.method} has not begun`);
    const params = reason === undefined ? { run: this.#run } : { run: this.#run, reason };
    return await new Call<AnyEvent, boolean>(this.#connection, "plexus.cancel", params);
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Event, void, undefined> {
    if (this.#begun) throw new Error(`this call of ${this.method} was made already`);
    this.#begun = true;
    this.#signal?.throwIfAborted();
    let exchange = this.#exchange();
    let ended = false;
    let pause = 0;
    let until: number | undefined;
    try {
      while (true) {
        let messages: Message[] = [];
        try {
          this.#pending = exchange.read();
          messages = await unlessAborted(this.#pending, this.#signal);
        } catch (error) {
          if (!(error instanceof Lost)) throw error;
          exchange.close();
          until ??= Date.now() + this.#connection.reconnectMs;
          // One that never answered is asked once more: the answer may have been lost.
          if (Date.now() + pause >= until || (pause > 0 && !this.#connection.reached)) {
            throw new PlexusError("connection_lost", error.message);
          }
          await unlessAborted(sleep(pause), this.#signal);
          // Scattered, so that a server that comes back is not met by all at once.
          pause = Math.min(Math.max(pause * 2, FIRST_PAUSE_MS), LONGEST_PAUSE_MS);
          pause *= 0.75 + Math.random() / 4;
          exchange = this.#exchange();
        }
        for (const message of messages) {
          const event = this.#receive(message);
          // That connection was of use, so the time for the next starts anew.
          pause = 0;
          until = undefined;
          if (event === undefined) continue;
          ended = event.type === "complete" || event.type === "error" || event.type === "cancelled";
          const failure = failureOf(event);
          if (failure !== undefined) throw failure;
          yield event as Event;
          if (ended) return;
          this.#signal?.throwIfAborted();
        }
      }
    } finally {
      if (!ended) await this.#leave(exchange);
      exchange.close();
    }
  }

  async #result(): Promise<Result> {
    let last: unknown;
    for await (const event of this) last = event;
    const terminal = last as AnyEvent;
    return (this.#ends === "value" && "result" in terminal ? terminal["result"] : terminal) as Result;
  }

  /** The request: for the first time, or to go on after the last event that came. */
  #exchange(): Exchange {
    const params: Record<string, unknown> = { ...this.#params };
    if (this.#follows) {
      params["after"] = this.#seq;
    } else {
      params["_run"] = this.#key;
      if (this.#run !== undefined) params["_after"] = this.#seq;
    }
    return new Exchange(this.#connection, this.method, params);
  }

  /** Take a message; the event in it, if it has a new one. */
  #receive(message: Message): AnyEvent | undefined {
    if (message.error !== undefined) throw this.#refused(message.error);
    if (typeof message.result === "number") {
      const known = this.#run;
      if (known === undefined || this.#follows) {
        this.#run ??= message.result;
      } else if (known !== message.result) {
        this.#run = message.result; // it was begun anew just now, and is stopped on the way out
        throw this.#forgotten(known);
      }
      return undefined;
    }
    const { seq, result } = message.params ?? {};
    if (typeof seq !== "number" || typeof result !== "object" || result === null) {
      throw new PlexusError("protocol", `${this.method}: the server sent what is no item`);
    }
    const event = result as AnyEvent;
    if (event.type !== "gap" && seq !== this.#seq + 1) {
      if (seq <= this.#seq) return undefined; // it came before the connection broke
      throw new PlexusError("protocol", `${this.method}: item ${seq} came after item ${this.#seq}`);
    }
    this.#seq = Math.max(this.#seq, seq);
    return event;
  }

  #refused(error: { code?: unknown; message?: unknown; data?: unknown }): PlexusError {
    const code = (typeof error.code === "number" ? CODES[error.code] : undefined) ?? "failed";
    if (code === "not_found" && this.#run !== undefined && !this.#follows) {
      return this.#forgotten(this.#run);
    }
    return new PlexusError(code, String(error.message ?? "the call was refused"), error.data);
  }

  #forgotten(run: number): PlexusError {
    const message = `the server has forgotten run ${run} of ${this.method}; it may have been restarted`;
    return new PlexusError("connection_lost", message);
  }

  /** Nobody wants any more of it. */
  async #leave(exchange: Exchange): Promise<void> {
    if (this.#follows) return;
    if (this.#run === undefined && this.#signal?.aborted) {
      // The server may have begun it. Its number is on the way, and without that nothing can be
      // stopped.
      const timer = setTimeout(() => exchange.close(), GOODBYE_MS);
      await this.#learnRun(exchange).catch(() => undefined);
      clearTimeout(timer);
    }
    exchange.close();
    if (this.#run !== undefined) await this.#connection.stop(this.#run);
  }

  async #learnRun(exchange: Exchange): Promise<void> {
    let messages = (await this.#pending) ?? [];
    while (messages.every((message) => message.error === undefined)) {
      for (const { result } of messages) {
        if (typeof result === "number") {
          this.#run = result;
          return;
        }
      }
      messages = await exchange.read();
    }
  }
}

function failureOf(event: AnyEvent): PlexusError | undefined {
  if (event.type === "cancelled") {
    return new PlexusError("cancelled", String(event["reason"] ?? "the run was cancelled"));
  }
  if (event.type !== "error") return undefined;
  return new PlexusError(String(event["code"]), String(event["message"]), event["data"]);
}

function parsed(data: string): Message {
  try {
    const message: unknown = JSON.parse(data);
    if (typeof message === "object" && message !== null) return message;
  } catch {
    // Said below.
  }
  throw new PlexusError("protocol", "the server sent what is no message");
}

function said(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  return error.cause instanceof Error ? `${error.message}: ${error.cause.message}` : error.message;
}

function randomKey(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function sleep(ms: number): Promise<undefined> {
  return new Promise((resolve) => setTimeout(() => resolve(undefined), ms));
}

/** The same promise, or the signal's reason if that comes first. */
async function unlessAborted<Value>(promise: Promise<Value>, signal: AbortSignal | undefined): Promise<Value> {
  if (signal === undefined) return await promise;
  let stop = (): void => undefined;
  const aborted = new Promise<never>((_, reject) => {
    const onAbort = (): void => reject(signal.reason);
    stop = () => signal.removeEventListener("abort", onAbort);
    if (signal.aborted) onAbort();
    else signal.addEventListener("abort", onAbort);
  });
  try {
    return await Promise.race([promise, aborted]);
  } finally {
    stop();
  }
}
