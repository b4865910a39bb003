// Elements made of text only. Nothing here reads HTML, so data of events can never become markup.

export function el(name, attributes, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key === "on") {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    } else if (key === "value") {
      element.value = value;
    } else {
      element.setAttribute(key, value === true ? "" : String(value));
    }
  }
  add(element, children);
  return element;
}

export function add(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

export function fill(element, ...children) {
  element.replaceChildren();
  add(element, children);
  return element;
}

// Columns are {name, title, number, keep, cell}; `cell` gets the row and returns text or elements.
export function table(caption, columns, rows, { low = false } = {}) {
  const body = el("tbody");
  const classes = (column) => (column.number ? "number" : column.keep ? "keep" : undefined);
  for (const row of rows) {
    const cells = columns.map((column, index) =>
      el(index === 0 && column.header ? "th" : "td", { class: classes(column), scope: index === 0 && column.header ? "row" : undefined },
        column.cell(row)));
    body.append(el("tr", {}, cells));
  }
  const head = el("tr", {}, columns.map((column) => el("th", { scope: "col", class: classes(column) }, column.title)));
  // A region that scrolls can be reached by the keyboard.
  return el("div", { class: low ? "scroll low" : "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el("table", {}, el("caption", {}, caption), el("thead", {}, head), body));
}

export function tag(text, kind) {
  return el("span", { class: kind ? `tag ${kind}` : "tag" }, text);
}

export function note(text, kind) {
  return el("p", { class: kind ? `note ${kind}` : "note", role: kind === "bad" ? "alert" : undefined }, text);
}

// A failure, with a button to try again where that may help. Where the server says when, the page asks again by itself.
export function failure(error, again) {
  const box = el("div", {}, note(error.message, error.passes ? "warn" : "bad"));
  announce(error.message);
  if (!error.passes || !again) return box;
  const retry = button("Try again", () => again(), { class: "small" });
  const soon = el("span", { class: "quiet" });
  box.append(el("div", { class: "row retry" }, retry, soon));
  if (error.retryAfter) {
    soon.textContent = `The page asks again in ${error.retryAfter} s.`;
    setTimeout(() => {
      // Whoever is at the button decides, and would lose the place.
      if (document.activeElement === retry) soon.textContent = "";
      else if (box.isConnected) again();
    }, error.retryAfter * 1000);
  }
  return box;
}

// A failure on a page that looks again by itself; it is written once, so that it is read out once.
export function sayFailure(where, error, every) {
  const text = `${error.message} ${every}`;
  if (where.textContent === text) return;
  fill(where, note(text, error.passes ? "warn" : "bad"));
  announce(text);
}

export function field(label, input) {
  return el("label", {}, label, input);
}

export function button(text, onClick, attributes = {}) {
  return el("button", { type: "button", ...attributes, on: { click: onClick } }, text);
}

// Closes a part of the page that a button has opened; who uses the keyboard is at that button again.
export function closing(part, opener) {
  return button("Close", () => { part.hidden = true; if (opener?.isConnected) opener.focus(); }, { class: "small" });
}

export function values(map) {
  return el("dl", { class: "values" },
    Object.entries(map).flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, asText(value))]));
}

export function asText(value) {
  if (value === null || value === undefined) return "none";
  return typeof value === "string" ? value : JSON.stringify(value);
}

export function clock(text) {
  return text ? text.replace("T", " ").replace(/(\.\d{3})\d*/, "$1").replace("+00:00", "Z") : "";
}

export function count(number) {
  return typeof number === "number" ? number.toLocaleString("en") : String(number ?? "");
}

// The number with its noun, "1 entry" or "2,000 entries"; `many` where the plural is not just one "s" more at the end.
export function counted(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

// Says a short sentence to people who cannot see the page change.
export function announce(text) {
  const status = document.getElementById("status");
  if (status.textContent !== text) status.textContent = text;
}
