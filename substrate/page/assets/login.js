// The session: a token behind the `#` of the address is changed for a cookie and dropped.

const JSON_HEADERS = { "content-type": "application/json", accept: "application/json" };

/** Take the token out of the address, before anything else can see it. */
function takeToken() {
  if (!location.hash.startsWith("#token=") && !location.hash.includes("&token=")) return null;
  const given = new URLSearchParams(location.hash.slice(1));
  history.replaceState(null, "", location.pathname);
  return given.get("token");
}

/** Begin a session with a token; what is wrong, or null. */
export async function beginSession(token) {
  const headers = { ...JSON_HEADERS, authorization: `Bearer ${token}` };
  const answer = await fetch("/session", { method: "POST", headers, body: "{}" });
  // A server that asks nobody for a token begins no session either.
  if (answer.ok || answer.status === 403) return null;
  return (await answer.json()).error || `the server answered ${answer.status}`;
}

/** Come in with what the address has, or with the cookie there is. */
export async function comeIn() {
  const token = takeToken();
  return token === null ? null : beginSession(token);
}
