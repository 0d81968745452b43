// Starts runs that do not depend on this page.

import { subscribe, whenOpen } from "../core/connection.js";
import { methods } from "../core/schema.js";

const MAX_ATTEMPTS = 4;

/** Start a run that continues without this page. Returns its number; throws RpcError.
    @param {string} method @param {Record<string, any>} args @returns {Promise<number>} */
export async function startRun(method, args) {
  // With a key, a call that is repeated because its reply was lost does not start a second run.
  const key = Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
  const params = { ...args, _run: key, _times: true, _on_disconnect: "keep" };
  for (let attempt = 1; ; attempt += 1) {
    await whenOpen();
    try {
      return await new Promise((resolve, reject) => {
        const end = subscribe(method, params, {
          onStart: (run) => {
            resolve(run);
            // The view of the run reads it. Calls that only read the server would end with their subscription.
            if (!methods.peek().get(method)?.hints?.read_only) queueMicrotask(() => end());
          },
          onItem: () => {},
          onError: reject,
        });
      });
    } catch (error) {
      if (/** @type {any} */ (error).code !== "lost" || attempt === MAX_ATTEMPTS) throw error;
    }
  }
}
