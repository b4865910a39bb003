// Questions to the console. The token is kept for this tab only, and goes into a header, never into a URL or a cookie.

const KEY = "graphweft-console-token";

export class Refused extends Error {
  constructor(status, problem) {
    const faults = (problem.errors ?? []).map((each) => `${each.pointer ?? each.header ?? ""}: ${each.detail}`);
    super([problem.detail ?? `the console answered ${status}`, ...faults].join("\n"));
    this.status = status;
  }
}

const SIGN_IN = "`graphweft up` prints a link that holds a token; `graphweft token new --app APP --role read` makes one for `graphweft run console`.";

export const token = {
  get: () => sessionStorage.getItem(KEY),
  set: (value) => sessionStorage.setItem(KEY, value),
  forget: () => sessionStorage.removeItem(KEY),
};

// Returns the token of a link or of an input, in which people also paste the whole link.
export function tokenOf(text) {
  const given = /#token=([^&\s]+)/.exec(text);
  if (!given) return text.trim();
  try {
    return decodeURIComponent(given[1]);
  } catch {
    return given[1];
  }
}

export async function ask(path, question = {}, { signal } = {}) {
  let response;
  const known = token.get() ?? "";
  // A header cannot hold other characters, and the browser would refuse to send it.
  if (!/^[\x21-\x7e]*$/.test(known)) throw refusedToken(401, "no-token");
  try {
    response = await fetch(`/api/${path}`, {
      method: "POST",
      headers: { "Content-Type": "application/json", Authorization: `Bearer ${known}` },
      body: JSON.stringify(question),
      credentials: "omit",
      cache: "no-store",
      signal,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, { detail: "The console does not answer: is it still running? `graphweft up` and `graphweft run console` start it." });
  }
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) {
    const refused = response.status === 401 ? refusedToken(401, answer.type ?? "", answer.detail) : new Refused(response.status, answer);
    if (response.status === 401) document.dispatchEvent(new CustomEvent("token-refused", { detail: refused.message }));
    throw refused;
  }
  return answer;
}

// The text of the server is for programs that send headers.
function refusedToken(status, type, detail) {
  const said = type.endsWith("token-expired") ? detail : "The console does not know this token: it may be mistyped or of another server, or it was removed.";
  return new Refused(status, { detail: `${said} ${SIGN_IN}` });
}
