// The largest message that the server reads. One that is larger would end the connection, with all
// other calls and subscriptions on it, so it is not sent.

import { count } from "./format.js";
import { signal } from "./html.js";

/** In bytes; 0 until it is known. */
export const maxMessage = signal(0);

/** Return why a message cannot be sent, or null. @param {string} message */
export function tooLarge(message) {
  const most = maxMessage.peek();
  if (!most || message.length * 3 <= most) return null; // at most three bytes for each UTF-16 unit
  const bytes = new TextEncoder().encode(message).length;
  if (bytes <= most) return null;
  return `This is too large to send: ${count(bytes)} bytes, and the server reads at most ${count(most)} (the setting limits.message_bytes). Nothing was sent.`;
}
