// Plays one scenario with the generated client, and prints what it saw as JSON.
// Lines that must not compile are marked, so that the compiler fails if one does.

import { Call, connect, PlexusError, SCHEMA_HASH } from "./client.js";
import type { CountUpEvent, DemoCountEvent, DemoCounted, Plexus } from "./client.js";

const [scenario, url = "", token, mark = ""] = process.argv.slice(2);

interface Failure {
  name: string;
  code?: string;
  message: string;
  data?: unknown;
}

function failure(error: unknown): Failure {
  if (error instanceof PlexusError) {
    return { name: error.name, code: error.code, message: error.message, data: error.data };
  }
  if (error instanceof Error) return { name: error.name, message: error.message };
  throw error;
}

async function stateOf(plexus: Plexus, run: number | undefined): Promise<unknown> {
  const runs = await plexus.plexus.runs();
  return runs.find((each) => each["run"] === run)?.["state"];
}

/** Every kind of event is known, and each has its own fields. */
function text(event: DemoCountEvent): string {
  switch (event.type) {
    case "content":
      // @ts-expect-error: another event has this
      event.done;
      return event.text;
    case "progress":
      return `${event.done}/${event.total ?? "?"}`;
    case "complete":
      return `total ${event.total}`;
    case "log":
      return event.message;
    case "request":
      return event.request;
    case "answered":
      return `${event.outcome} ${event.request}`;
    case "gap":
      return `${event.from}-${event.to}`;
    case "restarted":
      return `${event.epoch} restarts`;
    default: {
      const none: never = event;
      return none;
    }
  }
}

function numbers(events: CountUpEvent[]): number[] {
  return events.flatMap((event) => (event.type === "content" ? [Number(event.text)] : []));
}

/** A fetch whose first response breaks off after so many bytes; `change` may alter later bodies. */
function breaking(bytes: number, change: (body: string) => string): typeof fetch {
  let requests = 0;
  return async (input, init) => {
    requests += 1;
    if (requests > 1 && typeof init?.body === "string") {
      return await fetch(input, { ...init, body: change(init.body) });
    }
    const response = await fetch(input, init);
    let left = bytes;
    const cut = new TransformStream<Uint8Array, Uint8Array>({
      transform(chunk, controller) {
        if (left > 0) controller.enqueue(chunk.slice(0, left));
        left -= chunk.length;
        // Later, because an error throws away what was not yet read.
        if (left <= 0) setTimeout(() => controller.error(new TypeError("cut")), 50);
      },
    });
    const { status, headers } = response;
    return new Response(response.body?.pipeThrough(cut) ?? null, { status, headers });
  };
}

const scenarios: Record<string, (plexus: Plexus) => Promise<unknown>> = {
  async stream(plexus) {
    const texts: string[] = [];
    for await (const event of plexus.demo.count({ to: 2 })) texts.push(text(event));
    const last: DemoCounted = await plexus.demo.count({ to: 3, style: "dots" });
    return { texts, last, same: SCHEMA_HASH === (await plexus.plexus.hash()) };
  },

  async plain(plexus) {
    const echoed: string = await plexus.demo.echo({ text: "grüße 😀 \u2028", times: 2 });
    const health = await plexus.health.check();
    const moon = await plexus.count.luna.info();
    const all = await Promise.all([1, 2, 3].map((n) => plexus.demo.echo({ text: "x", times: n })));
    return { echoed, status: health.status, moon, all, untyped: await plexus.call("demo.echo", { text: "y" }) };
  },

  async errors(plexus) {
    const before: string[] = [];
    const failures: Failure[] = [];
    const attempts: (() => Promise<unknown>)[] = [
      async () => {
        for await (const event of plexus.demo.fail({ code: "no_planet", message: "no Vulcan" })) {
          if (event.type === "content") before.push(event.text);
        }
      },
      async () => await plexus.demo.crash(),
      async () => await plexus.call("demo.echo", { text: 5 }),
      async () => await plexus.call("demo.ecko"),
      async () => await plexus.plexus.attach({ run: 1 }),
    ];
    for (const attempt of attempts) {
      await attempt().catch((error: unknown) => failures.push(failure(error)));
    }
    return { before, failures };
  },

  async denied() {
    return failure(await connect(url).health.check().then(undefined, (error: unknown) => error));
  },

  async nobody(plexus) {
    return failure(await plexus.health.check().then(undefined, (error: unknown) => error));
  },

  async left(plexus) {
    const call = plexus.demo.wait();
    for await (const event of call) if (event.type === "content") break;
    const again = failure(await call.then(undefined, (error: unknown) => error));
    return { state: await stateOf(plexus, call.run), again };
  },

  async aborted(plexus) {
    const controller = new AbortController();
    const call = plexus.demo.wait({}, { signal: controller.signal });
    const seen: string[] = [];
    let caught: Failure | undefined;
    try {
      for await (const event of call) {
        seen.push(event.type);
        setTimeout(() => controller.abort(), 20);
      }
    } catch (error) {
      caught = failure(error);
    }
    return { seen, name: caught?.name, state: await stateOf(plexus, call.run) };
  },

  async aborted_at_once(plexus) {
    const controller = new AbortController();
    const call = plexus.demo.wait({}, { signal: controller.signal });
    const waiting = call.then(undefined, (error: unknown) => error);
    controller.abort(new Error("enough"));
    const caught = failure(await waiting);
    const never = plexus.demo.wait({}, { signal: AbortSignal.abort() });
    await never.then(undefined, () => undefined);
    return { message: caught.message, state: await stateOf(plexus, call.run), never: never.run ?? null };
  },

  async cancelled(plexus) {
    const call = plexus.demo.wait();
    const answers: boolean[] = [];
    let caught: Failure | undefined;
    try {
      for await (const _ of call) answers.push(await call.cancel("enough"));
    } catch (error) {
      caught = failure(error);
    }
    return { answers, caught };
  },

  async resumed(plexus) {
    const call = plexus.count.up({ to: 200, pause_ms: 1, mark });
    const events: CountUpEvent[] = [];
    for await (const event of call) events.push(event);
    return { numbers: numbers(events), last: events.at(-1) };
  },

  async followed(plexus) {
    const call = plexus.count.up({ to: 50, pause_ms: 2 });
    const seen: number[] = [];
    const own: CountUpEvent[] = [];
    for await (const event of call) {
      own.push(event);
      if (own.length === 1 && call.run !== undefined) {
        for await (const _ of plexus.plexus.attach({ run: call.run })) break;
        for await (const other of plexus.plexus.attach({ run: call.run, after: 10 })) {
          if (other.type === "content") seen.push(Number(other["text"]));
        }
      }
    }
    return { own: numbers(own), seen };
  },

  async forgotten(whole) {
    const change = (body: string): string => body.replace(/"_run":"[0-9a-f]+"/, '"_run":"another"');
    const plexus = connect(url, { token, fetch: breaking(150, change) });
    const call = plexus.demo.wait();
    const caught = failure(await call.then(undefined, (error: unknown) => error));
    return { code: caught.code, state: await stateOf(whole, call.run) };
  },

  async not_sought() {
    const plexus = connect(url, { token, reconnectMs: 0, fetch: breaking(400, (body) => body) });
    return failure(await plexus.count.up({ to: 100, pause_ms: 5 }).then(undefined, (error: unknown) => error));
  },

  async asked(plexus) {
    const call = plexus.demo.delete();
    const said: string[] = [];
    for await (const event of call) {
      if (event.type === "request") {
        said.push(event.message);
        if (event.kind === "confirm") {
          await call.respond(event.request, "yes").catch((error: unknown) => said.push(failure(error).code ?? ""));
        }
        await call.respond(event.request, event.kind === "confirm" ? true : event.options?.[1]?.["value"]);
      } else if (event.type === "content") {
        said.push(event.text);
      }
    }
    const plain = plexus.count.confirm();
    let value: boolean | undefined;
    for await (const event of plain) {
      if (event.type === "request") await plain.respond(event.request, false);
      else if (event.type === "complete") value = event.result;
    }
    const declined = plexus.demo.delete();
    let caught: Failure | undefined;
    try {
      for await (const event of declined) {
        if (event.type === "request") await declined.respond(event.request, null);
      }
    } catch (error) {
      caught = failure(error);
    }
    return { said, value, declined: caught?.code };
  },
};

/** Never called: what must not compile. */
export function wrong(plexus: Plexus): void {
  // @ts-expect-error: `to` is missing
  plexus.demo.count({});
  // @ts-expect-error: `to` is a number
  plexus.demo.count({ to: "3" });
  // @ts-expect-error: there is no such style
  plexus.demo.count({ to: 3, style: "roman" });
  // @ts-expect-error: there is no such parameter
  plexus.demo.count({ to: 3, tmes: 1 });
  // @ts-expect-error: it has no parameters
  plexus.health.check({ a: 1 });
  // @ts-expect-error: there is no such method
  plexus.demo.ecko();
  // @ts-expect-error: a stream's end is not a text
  const text: Call<DemoCountEvent, string> = plexus.demo.count({ to: 3 });
  void text;
}

const play = scenarios[scenario ?? ""];
if (play === undefined) throw new Error(`there is no scenario ${scenario}`);
console.log(JSON.stringify(await play(connect(url, { token }))));
