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

// A failure, with a button to try again where that may help.
export function failure(error, again) {
  const passing = [0, 429, 503, 504].includes(error.status);
  return el("div", {}, note(error.message, passing ? "warn" : "bad"), passing && again && button("Try again", again, { class: "small retry" }));
}

export function field(label, input) {
  return el("label", {}, label, input);
}

export function button(text, onClick, attributes = {}) {
  return el("button", { type: "button", ...attributes, on: { click: onClick } }, text);
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

// Says a short sentence to people who cannot see the page change.
export function announce(text) {
  document.getElementById("status").textContent = text;
}
