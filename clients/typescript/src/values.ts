/** Copies of a runtime's values that JSON can represent, of limited size. */

const MOST_VALUES = 20_000;
const LONGEST_TEXT = 200_000;
const MOST_CHARACTERS = 600_000;
const DEPTH = 100;

/** Return a copy of a value. What JSON has not becomes the name of its kind, such as `<Socket>`. Never throws. */
export function plainCopy(value: unknown): unknown {
  let values = MOST_VALUES;
  let characters = MOST_CHARACTERS;

  const text = (said: string): string => {
    const most = Math.min(LONGEST_TEXT, characters);
    characters -= Math.min(said.length, most);
    return wellFormed(said.length > most ? `${said.slice(0, most)}…` : said);
  };
  const copy = (item: unknown, above: readonly object[]): unknown => {
    values -= 1;
    if (item === null || item === undefined || typeof item === "boolean" || typeof item === "bigint") return item;
    if (typeof item === "number") return Number.isFinite(item) ? item : null;
    if (typeof item === "string") return text(item);
    if (typeof item !== "object") return undefined;
    const kind = `<${item.constructor?.name ?? "object"}>`;
    if (item instanceof Date) return Number.isNaN(item.getTime()) ? null : item.toISOString();
    if (item instanceof URL) return text(item.href);
    if (item instanceof Error) return { name: item.name, message: text(item.message) };
    if (values < 0 || above.length >= DEPTH || above.includes(item) || ArrayBuffer.isView(item)) return kind;
    const inside = [...above, item];
    if (Array.isArray(item)) return item.length > values ? kind : item.map((each) => copy(each, inside) ?? null);
    const names = Object.keys(item);
    if (names.length > values) return kind;
    return Object.fromEntries(names.map((name) => [text(name), copy((item as Record<string, unknown>)[name], inside)]));
  };
  try {
    return copy(value, []);
  } catch {
    return "<unreadable>"; // a getter of a user's object
  }
}

/** Return a text without halves of characters, which are no UTF-8. */
export function wellFormed(text: string): string {
  return text.replace(/[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g, "\ufffd");
}
