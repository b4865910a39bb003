/** Ids of events. */

const NAMESPACE_URL = "6ba7b8119dad11d180b400c04fd430c8";

/** Return a random UUID. */
export function newId(): string {
  return globalThis.crypto.randomUUID();
}

/** Return the UUID (version 5) of the parts, as the Python client derives it. Different parts have different ids. */
export async function derivedId(...parts: readonly string[]): Promise<string> {
  const named = parts.map((part) => (part === "None" ? "\n4' None" : `\n${[...part].length} ${part}`));
  const name = new TextEncoder().encode(`graphweft${named.join("")}`);
  const hashed = new Uint8Array(16 + name.length);
  hashed.set(bytesOf(NAMESPACE_URL));
  hashed.set(name, 16);
  const digest = new Uint8Array(await globalThis.crypto.subtle.digest("SHA-1", hashed)).slice(0, 16);
  digest[6] = ((digest[6] ?? 0) & 0x0f) | 0x50;
  digest[8] = ((digest[8] ?? 0) & 0x3f) | 0x80;
  const hex = [...digest].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join("-");
}

function bytesOf(hex: string): Uint8Array {
  return Uint8Array.from(hex.match(/../g) ?? [], (byte) => Number.parseInt(byte, 16));
}
