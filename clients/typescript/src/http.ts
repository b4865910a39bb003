/** Requests to a gateway: one attempt each, limited in time and size. */

import { type Fault, InvalidSettings, type Problem, type ProblemError, Unavailable, problemError } from "./errors.js";
import { parse } from "./json.js";
import { after } from "./timers.js";
import { printable } from "./values.js";

const LONGEST_ANSWER = 8_000_000;
const LONGEST_TEXT = 1_000;
const MOST_FAULTS = 20;
const PROBLEM = "urn:graphweft:problem:";

/** A token, or a function that returns the token of the moment. */
export type TokenSource = string | (() => string | Promise<string>);

/** An answer: parsed JSON, or undefined if it is no JSON. */
export interface Answer {
  readonly status: number;
  readonly body: unknown;
}

/** Where requests go, and with which token. */
export class Connection {
  readonly #base: string;
  readonly #token: TokenSource | undefined;
  readonly #fetch: typeof fetch;

  constructor(url: string | URL, token: TokenSource | undefined, fetchFunction: typeof fetch | undefined) {
    this.#base = baseOf(url);
    this.#token = typeof token === "string" ? checkToken(token) : token;
    const found = fetchFunction ?? globalThis.fetch;
    if (typeof found !== "function") throw new InvalidSettings("there is no fetch here", "pass one as `fetch`");
    this.#fetch = found;
  }

  /** Send a body, with headers of its own in `more`. Throws `Unavailable` without an answer in time, and the reason of `signal` when it is aborted. */
  async post(
    path: string,
    body: string,
    contentType: string,
    limits: { timeoutMs: number; signal?: AbortSignal | undefined },
    more: Readonly<Record<string, string>> = {},
  ): Promise<Answer> {
    limits.signal?.throwIfAborted();
    const ends = new AbortController();
    const timer = after(limits.timeoutMs, () => ends.abort());
    const abort = (): void => ends.abort();
    limits.signal?.addEventListener("abort", abort, { once: true });
    try {
      return await unlessAborted(this.#send(path, body, contentType, ends.signal, more), ends.signal);
    } catch (error) {
      limits.signal?.throwIfAborted();
      if (ends.signal.aborted) {
        const waited = `the gateway gave no answer within ${Math.round(limits.timeoutMs)} ms`;
        throw new Unavailable("timeout", waited, "send it again, or allow more time");
      }
      if (error instanceof InvalidSettings) throw error;
      const step = "check that the gateway runs at this address (`graphweft run gateway`)";
      throw new Unavailable("no-connection", `no connection to the gateway (${causeOf(error)})`, step);
    } finally {
      clearTimeout(timer);
      limits.signal?.removeEventListener("abort", abort);
    }
  }

  /** Return the error of an answer that is no success. */
  errorOf(answer: Answer): ProblemError {
    return problemError(readProblem(answer as Received));
  }

  async #send(
    path: string,
    body: string,
    contentType: string,
    signal: AbortSignal,
    more: Readonly<Record<string, string>>,
  ): Promise<Received> {
    const headers: Record<string, string> = { ...more, "Content-Type": contentType, Accept: "application/json" };
    const token = await this.#currentToken();
    if (token) headers["Authorization"] = `Bearer ${token}`;
    // A redirect could carry the token to another address.
    const response = await this.#fetch(`${this.#base}${path}`, {
      method: "POST",
      headers,
      body,
      signal,
      redirect: "manual",
    });
    const text = await readText(response, LONGEST_ANSWER);
    const retryAfterMs = retryAfter(response.headers.get("retry-after"));
    return { status: response.status, body: parsed(text), retryAfterMs, token };
  }

  async #currentToken(): Promise<string> {
    if (this.#token === undefined) return "";
    if (typeof this.#token === "string") return this.#token;
    let token: unknown;
    try {
      token = await this.#token();
    } catch (error) {
      throw new InvalidSettings(`the token function failed (${nameOf(error)})`, "correct it");
    }
    return checkToken(token);
  }
}

interface Received extends Answer {
  readonly retryAfterMs: number | null;
  /** The token that was sent, which no error repeats. */
  readonly token: string;
}

/** Return the name and the code of an error, without its text, which may quote what was sent. */
export function nameOf(error: unknown): string {
  if (!(error instanceof Error)) return "an error";
  const code: unknown = "code" in error ? error.code : undefined;
  return typeof code === "string" && /^[A-Z0-9_]{1,64}$/.test(code) ? `${error.name}, ${code}` : error.name;
}

/** Wait for work, or until a signal is aborted: then its reason is thrown. The signal keeps nothing of it. */
export async function unlessAborted<T>(work: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (!signal) return work;
  work.catch(() => undefined); // it may fail when nobody waits any more
  signal.throwIfAborted();
  let end: (() => void) | undefined;
  const aborted = new Promise<never>((_resolve, reject) => {
    end = () => reject(signal.reason as Error);
    signal.addEventListener("abort", end, { once: true });
  });
  try {
    return await Promise.race([work, aborted]);
  } finally {
    if (end) signal.removeEventListener("abort", end);
  }
}

function causeOf(error: unknown): string {
  return error instanceof Error && error.cause instanceof Error ? nameOf(error.cause) : nameOf(error);
}

function baseOf(url: string | URL): string {
  const step = "give the gateway's address, such as http://127.0.0.1:8765";
  let parts: URL;
  try {
    parts = new URL(url);
  } catch {
    throw new InvalidSettings("url is not a URL", step);
  }
  if (parts.protocol !== "http:" && parts.protocol !== "https:") throw new InvalidSettings("url is not of HTTP", step);
  if (parts.username || parts.password) {
    throw new InvalidSettings("url holds a user or a password", "leave them out, and pass the token as `token`");
  }
  return `${parts.origin}${parts.pathname.replace(/\/+$/, "")}`;
}

function checkToken(token: unknown): string {
  if (typeof token !== "string" || !/^[\x21-\x7e]+$/.test(token)) {
    const step = "pass the line that `graphweft token new` prints, without blanks and line ends";
    throw new InvalidSettings("token is not a token", step);
  }
  return token;
}

async function readText(response: Response, limit: number): Promise<string> {
  if (response.body === null) return "";
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let size = 0;
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return text + decoder.decode();
    size += value.byteLength;
    if (size > limit) {
      await reader.cancel().catch(() => undefined);
      return "";
    }
    text += decoder.decode(value, { stream: true });
  }
}

function parsed(text: string): unknown {
  try {
    return parse(text);
  } catch {
    return undefined;
  }
}

function retryAfter(header: string | null): number | null {
  if (header === null) return null;
  const text = header.trim();
  const ms = /^\d{1,9}$/.test(text) ? Number(text) * 1000 : Date.parse(text) - Date.now();
  return Number.isNaN(ms) ? null : Math.max(0, ms);
}

function readProblem(answer: Received): Problem {
  const safe = (text: unknown): string => {
    if (typeof text !== "string") return "";
    const hidden = printable(answer.token ? text.replaceAll(answer.token, "[REDACTED]") : text);
    return hidden.length > LONGEST_TEXT ? `${hidden.slice(0, LONGEST_TEXT)}…` : hidden;
  };
  const { status, retryAfterMs } = answer;
  const body = fields(answer.body);
  const type = body["type"];
  if (typeof type !== "string" || !type.startsWith(PROBLEM)) {
    // uvicorn and proxies answer with plain text. Its words are theirs, so they are left out.
    const code = status === 404 || status < 400 ? "no-gateway" : `http-${status}`;
    return { status, code, detail: "", faults: [], retryAfterMs };
  }
  const faults = Array.isArray(body["errors"]) ? body["errors"].slice(0, MOST_FAULTS) : [];
  return {
    status,
    code: safe(type.slice(PROBLEM.length)),
    detail: safe(body["detail"]),
    faults: faults.map(fields).map((fault) => ({
      ...(typeof fault["pointer"] === "string" && { pointer: safe(fault["pointer"]) }),
      ...(typeof fault["header"] === "string" && { header: safe(fault["header"]) }),
      detail: safe(fault["detail"]),
    })) satisfies Fault[],
    retryAfterMs,
  };
}

/** Return the fields of an object; nothing for other values. */
export function fields(value: unknown): Readonly<Record<string, unknown>> {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Record<string, unknown>) : {};
}
