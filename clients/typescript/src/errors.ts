/** Errors of the client. Each says what failed and the next step. None holds the token or the data of an event. */

/** A place in a request that a gateway names as faulty. */
export interface Fault {
  /** A JSON pointer into the body, such as `#/0/data/tool_name`. */
  readonly pointer?: string;
  /** A header. */
  readonly header?: string;
  readonly detail: string;
}

/** The base of all errors that this package throws. */
export class GraphweftError extends Error {
  /** Names the kind of the error, such as `invalid-event`. */
  readonly code: string;
  /** What to do about it. */
  readonly nextStep: string;
  /** Whether the same call may succeed later. It is always safe to emit the same events again. */
  readonly retryable: boolean;
  /** Of `emit` and `emitAll`: the position of each event that the bus has confirmed, and null for the others. */
  positions: readonly (string | null)[] = [];

  constructor(code: string, message: string, nextStep: string, retryable = false) {
    super(`${message}: ${nextStep}`);
    this.name = new.target.name;
    this.code = code;
    this.nextStep = nextStep;
    this.retryable = retryable;
  }
}

/** A setting of the client cannot work. */
export class InvalidSettings extends GraphweftError {
  constructor(message: string, nextStep: string) {
    super("invalid-settings", message, nextStep);
  }
}

/** An event, a message or a search can never be accepted. Nothing was sent. */
export class InvalidEvent extends GraphweftError {
  constructor(message: string, nextStep: string) {
    super("invalid-event", message, nextStep);
  }
}

/** There was no answer: the gateway cannot be reached, or it took too long. Events may have been taken. */
export class Unavailable extends GraphweftError {
  constructor(code: "no-connection" | "timeout" | "too-many-pending" | "no-answer", message: string, nextStep: string) {
    super(code, message, nextStep, true);
  }
}

/** The gateway, or something before it, answered with an error. The subclasses say which kind. */
export class ProblemError extends GraphweftError {
  readonly status: number;
  /** What the gateway says about it. */
  readonly detail: string;
  /** The first faults of the request. */
  readonly faults: readonly Fault[];
  /** How long the gateway asks to wait, from `Retry-After`. */
  readonly retryAfterMs: number | null;

  constructor(problem: Problem, nextStep: string, retryable: boolean) {
    const places = problem.faults.map((fault) => `${fault.pointer ?? fault.header ?? "?"} ${fault.detail}`);
    const told = [problem.detail, ...places].filter(Boolean).join("; ");
    super(problem.code, `${problem.status} ${problem.code}${told && ` (${told})`}`, nextStep, retryable);
    this.status = problem.status;
    this.detail = problem.detail;
    this.faults = problem.faults;
    this.retryAfterMs = problem.retryAfterMs;
  }
}

/** 401 and 403: the token is missing, unknown or expired, or may not do this. */
export class AccessDenied extends ProblemError {}

/** 400, 404, 405, 415 and 422: the request breaks the contract. None of its events was taken. */
export class Refused extends ProblemError {}

/** 413: an event, or a question, is too large. None of the request's events was taken. */
export class TooLarge extends ProblemError {}

/**
 * 429 and 507: too many open requests, the app is above a quota, or the bus takes no events for a partition. Only with
 * the code `partition-refused` or `event-refused` may some of the request's events have been taken.
 */
export class OverLimit extends ProblemError {}

/** 408 and 5xx: the gateway or the bus cannot take the request now. Events may have been taken. */
export class ServerTrouble extends ProblemError {}

/** An answer that is no success, in the words of a problem document (RFC 9457). */
export interface Problem {
  readonly status: number;
  readonly code: string;
  readonly detail: string;
  readonly faults: readonly Fault[];
  readonly retryAfterMs: number | null;
}

const NEXT_STEPS: Readonly<Record<string, string>> = {
  "no-token": "pass a token of `graphweft token new` as `token`, and check that the gateway reads its file",
  "token-expired": "make a new token with `graphweft token new`",
  "missing-role": "use a token with this role",
  "other-workflow": "name a workflow that the token and its app may use",
  "other-app": "leave appId out, or name the app of the token",
  "other-host": "address the gateway as 127.0.0.1 or localhost, or run it with tokens",
  "internal-event": "do not emit this type: only graphweft's workers do",
  "event-too-large": "shorten the event's data: one event has at most 1,000,000 bytes",
  "body-too-large": "send less at a time",
  "batch-too-large": "send smaller batches",
  "partition-refused": "ask the operator to mend the partition by the command that the text names",
  "event-refused": "shorten the event's data, or ask the operator for a larger limit of the bus",
  "over-quota": "send the same events again later, or ask the operator for a larger quota",
  "too-many-requests": "send the same events again when other requests are answered",
  "bus-unavailable": "emit the same events again until they are taken: they take effect once",
  "not-found": "give the gateway's own address as `url`, with the path that a proxy adds, if any",
  "no-gateway": "check that `url` is the address of a graphweft gateway",
};

/** Return the error of an answer. */
export function problemError(problem: Problem): ProblemError {
  const { status, code } = problem;
  const step = (other: string): string => NEXT_STEPS[code] ?? other;
  if (status === 401 || status === 403) {
    return new AccessDenied(problem, step("check the token, and what it may do"), false);
  }
  if (status === 413) return new TooLarge(problem, step("send less at a time"), false);
  if (status === 429) return new OverLimit(problem, step("send the same again later"), true);
  if (status === 507) return new OverLimit(problem, step("ask the operator for a larger quota"), false);
  if (status === 408 || status >= 500) return new ServerTrouble(problem, step("send the same again later"), true);
  return new Refused(problem, step("correct the request"), false);
}
