// --- Runtime: nothing below depends on the schema. ----------------------------------------------

export interface ConnectOptions {
  /** The token that `substrate token` prints, or the session secret that `POST /session` returns
   * for it: a page should store the session secret instead of the token. */
  token?: string | undefined;
  /** How long to try to reconnect, in milliseconds; 0 disables it. The server cancels a run whose
   * caller has not reconnected after 10 s. */
  reconnectMs?: number | undefined;
  /** Used instead of the global `fetch`. */
  fetch?: typeof fetch | undefined;
}

export interface CallOptions {
  /** Aborting it cancels the run; reading the call then throws the signal's reason. */
  signal?: AbortSignal | undefined;
}

/** The terminal event of a method that returns a value. */
export interface ReturnedEvent<Value> {
  type: "complete";
  result: Value;
}

/** A call of a method that returns a value. */
export type ValueCall<Value> = Call<RunEvent | ReturnedEvent<Value>, Value>;

/** An event of an unknown type. */
export interface AnyEvent {
  type: string;
  [field: string]: unknown;
}

/** A refused or failed call: `code` is for programs, `message` is for people. */
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
/** A server sends something every 15 s, at least a comment. */
const IDLE_MS = 60_000;
const CANCEL_MS = 5_000;
const RECONNECT_MS = 30_000;
const MIN_BACKOFF_MS = 50;
const MAX_BACKOFF_MS = 2_000;
/** Maximum size of one event; a server does not send larger ones. */
const EVENT_CHARS = 16 * 1024 * 1024;

const STATUSES: Readonly<Record<number, string>> = {
  401: "denied",
  403: "denied",
  413: "too_big",
  429: "busy",
};
const UNAVAILABLE: readonly number[] = [502, 503, 504];

/** The connection was lost; the call may continue over another. */
class ConnectionLost extends Error {}

interface Message {
  id?: unknown;
  result?: unknown;
  error?: { code?: unknown; message?: unknown; data?: unknown };
  params?: { seq?: unknown; result?: unknown };
}

/** The address of the server, and the headers of every request. */
export class Connection {
  readonly url: string;
  readonly reconnectMs: number;
  /** Whether the server has ever responded; otherwise there is no reconnecting. */
  reached = false;
  readonly #token: string | undefined;
  readonly #fetch: typeof fetch;

  constructor(url: string, options: ConnectOptions) {
    const page = (globalThis as { location?: { href?: string } }).location?.href;
    const address = new URL(url, page);
    if (address.protocol === "ws:" || address.protocol === "wss:") {
      // The same server serves both; only HTTP can carry a token everywhere.
      address.protocol = address.protocol === "ws:" ? "http:" : "https:";
    }
    if (address.pathname === "/") address.pathname = "/rpc";
    this.url = address.href;
    this.reconnectMs = options.reconnectMs ?? RECONNECT_MS;
    this.#token = options.token;
    this.#fetch = options.fetch ?? ((input, init) => fetch(input, init));
  }

  /** Send one request. Throws ConnectionLost. */
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
        // No cookies are used, and the token must not reach another server.
        credentials: "omit",
        redirect: "error",
      });
      this.reached = true;
      return response;
    } catch (error) {
      throw new ConnectionLost(`cannot reach ${this.url}: ${describeError(error)}`);
    }
  }

  /** Cancel a run that is no longer read. If that fails, the server cancels it later. */
  async stop(run: number): Promise<void> {
    const params = { run, reason: "its caller stopped reading" };
    try {
      const signal = AbortSignal.timeout(CANCEL_MS);
      const response = await this.post("plexus.cancel", params, "application/json", signal);
      await response.text();
    } catch {
      // Best effort.
    }
  }
}

/** One request, and the messages of its response. */
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

  /** Return new messages. Throws ConnectionLost, or PlexusError if the request was refused. */
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
    const { done, value } = await this.#within(IDLE_MS, this.#reader.read());
    if (done) throw new ConnectionLost("the stream ended before the run");
    return this.#feed(this.#decoder.decode(value, { stream: true }));
  }

  /** Release the connection. Idempotent. */
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
      const reason = `no data from ${this.#connection.url} for ${ms} ms`;
      throw new ConnectionLost(late ? reason : describeError(error));
    } finally {
      clearTimeout(timer);
    }
  }

  /** Return the error in a response that is not a stream. */
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
    const message = `${this.#connection.url} responded with HTTP ${response.status}: ${reason}`;
    if (UNAVAILABLE.includes(response.status)) throw new ConnectionLost(message);
    throw new PlexusError(STATUSES[response.status] ?? "protocol", message);
  }

  /** Parse server-sent events; only their data is used, because items carry their numbers. */
  #feed(text: string): Message[] {
    const all = this.#rest + text;
    // The second half of a CRLF may still arrive.
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
      throw new PlexusError("protocol", `an event exceeds the limit of ${EVENT_CHARS} characters`);
    }
    return messages;
  }
}

/**
 * One call of a method: iterate with `for await`, or await it.
 *
 * Nothing is sent before that, and a call runs once. Leaving the loop, or aborting the signal,
 * cancels the run on the server. When the connection breaks, the call resumes after its last event
 * over another: no event is lost or repeated, and nothing runs twice.
 */
export class Call<Event, Result> implements AsyncIterable<Event>, PromiseLike<Result> {
  readonly method: string;
  readonly #connection: Connection;
  readonly #params: Readonly<Record<string, unknown>>;
  readonly #signal: AbortSignal | undefined;
  /** The result: the value in the terminal event, or that event itself. */
  readonly #resultKind: "value" | "event";
  /** Whether it attaches to an existing run. */
  readonly #attaches: boolean;
  readonly #key = randomKey();
  #started = false;
  #run: number | undefined;
  #seq = 0;
  #pending: Promise<Message[]> | undefined;
  #promise: Promise<Result> | undefined;

  constructor(
    connection: Connection,
    method: string,
    params: object,
    options: CallOptions = {},
    resultKind: "value" | "event" = "value",
  ) {
    this.method = method;
    this.#resultKind = resultKind;
    this.#connection = connection;
    this.#params = { ...params };
    this.#signal = options.signal;
    this.#attaches = method === "plexus.attach";
    if (this.#attaches) {
      const { run, after } = this.#params;
      if (typeof run === "number") this.#run = run;
      if (typeof after === "number") this.#seq = after;
    }
  }

  /** The run's number, once the server has sent it. */
  get run(): number | undefined {
    return this.#run;
  }

  /** Wait for the result: the value of a plain method, the terminal event of a stream. */
  then<Fulfilled = Result, Rejected = never>(
    onFulfilled?: ((value: Result) => Fulfilled | PromiseLike<Fulfilled>) | null,
    onRejected?: ((reason: unknown) => Rejected | PromiseLike<Rejected>) | null,
  ): Promise<Fulfilled | Rejected> {
    this.#promise ??= this.#result();
    return this.#promise.then(onFulfilled, onRejected);
  }

  /** Answer a question of the run, by the `request` of its event. null declines. */
  async respond(request: string, answer: unknown): Promise<void> {
    const params = { run: this.#run, request, answer };
    await new Call<AnyEvent, boolean>(this.#connection, "plexus.respond", params);
  }

  /** Cancel the run; reading it then throws a PlexusError `cancelled`. True if it was still
   * running. */
  async cancel(reason?: string): Promise<boolean> {
    if (this.#run === undefined) throw new Error(`${this.method} has not started`);
    const params = reason === undefined ? { run: this.#run } : { run: this.#run, reason };
    return await new Call<AnyEvent, boolean>(this.#connection, "plexus.cancel", params);
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Event, void, undefined> {
    if (this.#started) throw new Error(`this call of ${this.method} was used already`);
    this.#started = true;
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
          if (!(error instanceof ConnectionLost)) throw error;
          exchange.close();
          until ??= Date.now() + this.#connection.reconnectMs;
          // Retry once even without any response: the response may have been lost.
          if (Date.now() + pause >= until || (pause > 0 && !this.#connection.reached)) {
            throw new PlexusError("connection_lost", error.message);
          }
          await unlessAborted(sleep(pause), this.#signal);
          // Jitter, so that not all clients reconnect to a restarted server simultaneously.
          pause = Math.min(Math.max(pause * 2, MIN_BACKOFF_MS), MAX_BACKOFF_MS);
          pause *= 0.75 + Math.random() / 4;
          exchange = this.#exchange();
        }
        for (const message of messages) {
          const event = this.#receive(message);
          // The connection worked, so the reconnect deadline is reset.
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
      if (!ended) await this.#abandon(exchange);
      exchange.close();
    }
  }

  async #result(): Promise<Result> {
    let last: unknown;
    for await (const event of this) last = event;
    const terminal = last as AnyEvent;
    return (this.#resultKind === "value" && "result" in terminal ? terminal["result"] : terminal) as Result;
  }

  /** Return the request: the first one, or one that resumes after the last event. */
  #exchange(): Exchange {
    const params: Record<string, unknown> = { ...this.#params };
    if (this.#attaches) {
      params["after"] = this.#seq;
    } else {
      params["_run"] = this.#key;
      if (this.#run !== undefined) params["_after"] = this.#seq;
    }
    return new Exchange(this.#connection, this.method, params);
  }

  /** Process a message and return its event, if it is new. */
  #receive(message: Message): AnyEvent | undefined {
    if (message.error !== undefined) throw this.#refused(message.error);
    if (typeof message.result === "number") {
      const known = this.#run;
      if (known === undefined || this.#attaches) {
        this.#run ??= message.result;
      } else if (known !== message.result) {
        this.#run = message.result; // a new run was just started; it is cancelled on the way out
        throw this.#runLost(known);
      }
      return undefined;
    }
    const { seq, result } = message.params ?? {};
    if (typeof seq !== "number" || typeof result !== "object" || result === null) {
      throw new PlexusError("protocol", `${this.method}: the server sent an invalid item`);
    }
    const event = result as AnyEvent;
    if (event.type !== "gap" && seq !== this.#seq + 1) {
      if (seq <= this.#seq) return undefined; // received before the connection broke
      throw new PlexusError("protocol", `${this.method}: item ${seq} came after item ${this.#seq}`);
    }
    this.#seq = Math.max(this.#seq, seq);
    return event;
  }

  #refused(error: { code?: unknown; message?: unknown; data?: unknown }): PlexusError {
    const code = (typeof error.code === "number" ? CODES[error.code] : undefined) ?? "failed";
    if (code === "not_found" && this.#run !== undefined && !this.#attaches) {
      return this.#runLost(this.#run);
    }
    return new PlexusError(code, String(error.message ?? "the call was refused"), error.data);
  }

  #runLost(run: number): PlexusError {
    const message = `the server no longer has run ${run} of ${this.method}; it may have been restarted`;
    return new PlexusError("connection_lost", message);
  }

  /** Cancel the run, because it is no longer read. */
  async #abandon(exchange: Exchange): Promise<void> {
    if (this.#attaches) return;
    if (this.#run === undefined && this.#signal?.aborted) {
      // The server may have started the run. Its number, which is needed to cancel it, may still
      // arrive.
      const timer = setTimeout(() => exchange.close(), CANCEL_MS);
      await this.#waitForRun(exchange).catch(() => undefined);
      clearTimeout(timer);
    }
    exchange.close();
    if (this.#run !== undefined) await this.#connection.stop(this.#run);
  }

  async #waitForRun(exchange: Exchange): Promise<void> {
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
    // Reported below.
  }
  throw new PlexusError("protocol", "the server sent an invalid message");
}

function describeError(error: unknown): string {
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

/** Return the result of the promise, or throw the signal's reason if that comes first. */
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
