/** Times in milliseconds, as callers give them. */

import { InvalidSettings } from "./errors.js";

/** The longest that a timer runs: with more it would end at once. */
const LONGEST_MS = 2_147_483_647;

/** Return a time of a caller. Throws `InvalidSettings` for what is no number: it would never end, or end at once. */
export function checkMs(value: unknown, name: string): number {
  if (typeof value === "number" && !Number.isNaN(value)) return value;
  throw new InvalidSettings(`${name} is not a number`, "pass milliseconds, or leave it out");
}

/** Run `work` after a time; one that is too long for a timer is shortened. */
export function after(ms: number, work: () => void): ReturnType<typeof setTimeout> {
  return setTimeout(work, Math.min(Math.max(0, ms), LONGEST_MS));
}
