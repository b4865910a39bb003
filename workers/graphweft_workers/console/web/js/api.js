// Questions to the console. The token is kept for this tab only, and goes into a header, never into a URL or a cookie.

const KEY = "graphweft-console-token";

export class Refused extends Error {
  constructor(status, problem) {
    const faults = (problem.errors ?? []).map((each) => `${each.pointer ?? each.header ?? ""}: ${each.detail}`);
    super([problem.detail ?? `the console answered ${status}`, ...faults].join("\n"));
    this.status = status;
  }
}

export const token = {
  get: () => sessionStorage.getItem(KEY),
  set: (value) => sessionStorage.setItem(KEY, value),
  forget: () => sessionStorage.removeItem(KEY),
};

export async function ask(path, question = {}, { signal } = {}) {
  let response;
  try {
    response = await fetch(`/api/${path}`, {
      method: "POST",
      headers: { "Content-Type": "application/json", Authorization: `Bearer ${token.get() ?? ""}` },
      body: JSON.stringify(question),
      credentials: "omit",
      cache: "no-store",
      signal,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, { detail: "the console does not answer: is it still running?" });
  }
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) {
    const refused = new Refused(response.status, answer);
    if (response.status === 401) document.dispatchEvent(new CustomEvent("token-refused", { detail: refused.message }));
    throw refused;
  }
  return answer;
}
