/** Copies of a runtime's values that JSON can represent, of limited size. */

const MOST_VALUES = 20_000;
const LONGEST_TEXT = 200_000;
const MOST_CHARACTERS = 600_000;
const DEPTH = 100;
const LARGEST = 10n ** 1000n;
const UNREADABLE = "<unreadable>";

/** Return a copy of a value. What JSON has not becomes the name of its kind, such as `<Socket>`. Never throws. */
export function plainCopy(value: unknown): unknown {
  let values = MOST_VALUES;
  let characters = MOST_CHARACTERS;

  const text = (said: string): string => {
    const most = Math.min(LONGEST_TEXT, characters);
    characters -= Math.min(said.length, most);
    return wellFormed(said.length > most ? `${said.slice(0, most)}…` : said);
  };
  const guarded = (read: () => unknown, above: readonly object[]): unknown => {
    try {
      return copy(read(), above);
    } catch {
      return UNREADABLE; // a getter of a user's object
    }
  };
  const copy = (item: unknown, above: readonly object[]): unknown => {
    values -= 1;
    if (item === null || item === undefined || typeof item === "boolean") return item;
    if (typeof item === "bigint") return item < LARGEST && item > -LARGEST ? item : "<bigint>";
    if (typeof item === "number") return Number.isFinite(item) ? item : null;
    if (typeof item === "string") return text(item);
    if (typeof item !== "object") return undefined;
    const kind = kindOf(item);
    if (item instanceof Date) return Number.isNaN(item.getTime()) ? null : item.toISOString();
    if (item instanceof URL) return text(item.href);
    if (item instanceof Error) return { name: item.name, message: text(item.message) };
    if (values < 0 || above.length >= DEPTH || above.includes(item) || ArrayBuffer.isView(item)) return kind;
    const inside = [...above, item];
    if (Array.isArray(item)) return item.length > values ? kind : item.map((each) => copy(each, inside) ?? null);
    const names = Object.keys(item);
    if (names.length > values) return kind;
    return Object.fromEntries(
      names.map((name) => [text(name), guarded(() => (item as Record<string, unknown>)[name], inside)]),
    );
  };
  return guarded(() => value, []);
}

/** Return the kind of an object. Its constructor may be a value that a model has made up. */
function kindOf(item: object): string {
  const maker: unknown = item.constructor;
  return typeof maker === "function" && /^[\w$]{1,64}$/.test(maker.name) ? `<${maker.name}>` : "<object>";
}

/** Return a text without signs that could write into a terminal or begin a line of a log. */
export function printable(text: string): string {
  return wellFormed(text).replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, " ");
}

/** Return a text without halves of characters, which are no UTF-8. */
export function wellFormed(text: string): string {
  return text.replace(/[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g, "\ufffd");
}
