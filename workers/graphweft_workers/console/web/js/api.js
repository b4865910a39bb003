// Questions to the console. The token is kept for this tab only, and goes into a header, never into a URL or a cookie.

const KEY = "graphweft-console-token";

export class Refused extends Error {
  // `retryAfter`: after so many seconds it makes sense to ask again; 0 if a person should decide.
  constructor(status, problem, retryAfter = 0) {
    const faults = (problem.errors ?? []).map((each) => `${each.pointer ?? each.header ?? ""}: ${each.detail}`);
    const said = problem.detail || `The console answered ${status}: load the page again.`;
    super([said[0].toUpperCase() + said.slice(1), ...faults].join("\n"));
    this.status = status;
    this.retryAfter = retryAfter;
  }

  // Whether the same question may be answered later.
  get passes() {
    return [0, 429, 503, 504].includes(this.status);
  }
}

// A replay may wait for its turn; see the limits in history.py and pages.py.
const SLOW_S = { "graph/why": 80, "graph/past": 80, "context/past": 80, "letters/retry": 40, "letters/correct": 40, "letters/drop": 40 };
const ANSWER_S = 20;
const AGAIN_S = 3;

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
  let text;
  const known = token.get() ?? "";
  // A header cannot hold other characters, and the browser would refuse to send it.
  if (!/^[\x21-\x7e]*$/.test(known)) throw refusedToken(401, "no-token");
  if (signal?.aborted) throw new DOMException("The page was left.", "AbortError");
  const limit = SLOW_S[path] ?? ANSWER_S;
  const ended = new AbortController();
  const leave = () => ended.abort();
  let late = false;
  const timer = setTimeout(() => { late = true; leave(); }, limit * 1000);
  signal?.addEventListener("abort", leave);
  try {
    response = await fetch(`/api/${path}`, {
      method: "POST",
      headers: { "Content-Type": "application/json", Authorization: `Bearer ${known}` },
      body: JSON.stringify(question),
      credentials: "omit",
      cache: "no-store",
      signal: ended.signal,
    });
    text = await response.text();
  } catch (error) {
    if (late) throw new Refused(0, { detail: `The console gave no answer within ${limit} seconds: is its process still running, and is this machine's network? Its log says more.` });
    if (error.name === "AbortError") throw error;
    throw new Refused(0, { detail: "The console does not answer: is it still running? `graphweft up` and `graphweft run console` start it." }, AGAIN_S);
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", leave);
  }
  const answer = parsed(text);
  if (!response.ok) {
    const after = Math.min(60, Number(response.headers.get("Retry-After")) || 0);
    const refused = response.status === 401 ? refusedToken(401, answer.type ?? "", answer.detail) : new Refused(response.status, answer, after);
    if (response.status === 401) document.dispatchEvent(new CustomEvent("token-refused", { detail: refused.message }));
    throw refused;
  }
  return answer;
}

// A proxy, or a server without room for a connection, answers in plain text.
function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return { detail: text.startsWith("<") ? undefined : text.trim().slice(0, 500) || undefined };
  }
}

// The text of the server is for programs that send headers.
function refusedToken(status, type, detail) {
  const said = type.endsWith("token-expired") ? detail : "The console does not know this token: it may be mistyped or of another server, or it was removed.";
  return new Refused(status, { detail: `${said} ${SIGN_IN}` });
}
