/** JSON that keeps integers beyond 2^53: here they are `bigint`. */

import { InvalidEvent } from "./errors.js";
import { newId } from "./ids.js";

const LONG = /\d{16}/;
const TOKENS = /"[^"\\]*(?:\\.[^"\\]*)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;
const INTEGER = /^-?\d{16,}$/;

/** Parse a JSON text. Integers that a number cannot hold become `bigint`. Throws `SyntaxError`. */
export function parse(text: string): unknown {
  const value: unknown = JSON.parse(text);
  if (!LONG.test(text)) return value;
  const mark = newId();
  const marked = text.replace(TOKENS, (token) =>
    INTEGER.test(token) && !Number.isSafeInteger(Number(token)) ? `"${mark}${token}"` : token,
  );
  return JSON.parse(marked, (_name, item: unknown) =>
    typeof item === "string" && item.startsWith(mark) ? BigInt(item.slice(mark.length)) : item,
  );
}

/** Return a value as JSON. `what` names it in the error for a value that JSON has not: NaN, a cycle. */
export function stringify(value: unknown, what: string): string {
  const mark = newId();
  let marked = false;
  const text = attempt(what, () =>
    JSON.stringify(value, (name, item: unknown) => {
      if (typeof item === "number" && !Number.isFinite(item)) {
        throw new InvalidEvent(`${what}: ${JSON.stringify(name)} is not a finite number`, "send null or a text instead");
      }
      if (typeof item !== "bigint") return item;
      marked = true;
      return mark + item.toString();
    }),
  );
  return marked ? text.replace(new RegExp(`"${mark}(-?\\d+)"`, "g"), "$1") : text;
}

function attempt(what: string, write: () => string | undefined): string {
  let text: string | undefined;
  try {
    text = write();
  } catch (error) {
    if (error instanceof InvalidEvent) throw error;
    // The text of the error may quote values.
    const name = error instanceof Error ? error.name : "an error";
    throw new InvalidEvent(`${what} is not JSON (${name})`, "send plain values, without cycles");
  }
  if (text === undefined) throw new InvalidEvent(`${what} is not JSON`, "send an object with plain values");
  return text;
}
