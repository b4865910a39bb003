/** JSON that keeps integers beyond 2^53: here they are `bigint`. */

import { InvalidEvent } from "./errors.js";
import { newId } from "./ids.js";

const LONG = /\d{16}/;
const TOKENS = /"[^"\\]*(?:\\.[^"\\]*)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;
/** With more digits it stays a number: to read a million of them takes a second. */
const INTEGER = /^-?\d{16,1000}$/;
const MAYBE_HALF = /\\ud[89a-f]/;
const HALF = /[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/;

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
  if (MAYBE_HALF.test(text)) refuseHalves(text, what);
  return marked ? text.replace(new RegExp(`"${mark}(-?\\d+)"`, "g"), "$1") : text;
}

/** Throw for a text or a name with half a character, which is no UTF-8: the gateway would refuse the whole request. */
function refuseHalves(text: string, what: string): void {
  JSON.parse(text, (name, item: unknown) => {
    if (HALF.test(name) || (typeof item === "string" && HALF.test(item))) {
      throw new InvalidEvent(`${what}: ${JSON.stringify(name)} holds half a character (a lone surrogate)`, "cut texts between characters");
    }
    return item;
  });
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
