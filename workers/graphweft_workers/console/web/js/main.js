// The frame of the console: the token, the choice of the app, and which page is shown.

import { ask, token, tokenOf } from "./api.js";
import { announce, el, failure, field, fill, note } from "./dom.js";
import { watchFaults } from "./faults.js";
import * as context from "./context.js";
import * as graph from "./graph.js";
import * as letters from "./letters.js";
import * as live from "./live.js";
import * as memory from "./memory.js";
import * as operation from "./operation.js";
import * as rules from "./rules.js";

const PAGES = { live, graph, context, memory, letters, rules, operation };
const main = document.getElementById("main");
const theme = { key: "graphweft-console-theme" };
let session = null;
let app = null;
const CHOSEN = "graphweft-console-app";
const OTHER = "…";
let leave = () => {};
let current = null;

function takeToken() {
  if (!location.hash.startsWith("#token=")) return;
  token.set(tokenOf(location.hash));
  history.replaceState(null, "", location.pathname);
}

function route() {
  const [, name, query] = /^#\/([a-z-]+)(?:\?(.*))?$/.exec(location.hash) ?? [];
  return { name: PAGES[name] ? name : "live", query: new URLSearchParams(query ?? "") };
}

async function start() {
  takeToken();
  fill(main, el("p", { class: "quiet" }, "Asking the console…"));
  showTheme(localStorage.getItem(theme.key));
  if (!token.get()) return signIn();
  try {
    session = await ask("session");
  } catch (error) {
    if ([401, 403].includes(error.status)) return signIn(error.message);
    document.title = "Not available · graphweft";
    fill(main, el("div", { class: "login sheet" }, el("h1", {}, "The console has no data"), failure(error, start)));
    return;
  }
  app = session.all_apps ? sessionStorage.getItem(CHOSEN) || null : session.apps[0];
  const gone = app !== null && !session.apps.includes(app) && session.apps_total === session.apps.length;
  if (gone) app = null;
  showFrame();
  show({ focus: false });
}

function signIn(problem) {
  leave();
  current = null;
  fill(document.getElementById("pages"));
  fill(document.getElementById("controls"));
  const input = el("input", { type: "password", name: "token", autocomplete: "off", required: true, size: 50 });
  const form = el("form", { on: { submit: (event) => {
    event.preventDefault();
    token.set(tokenOf(input.value));
    start();
  } } }, el("div", { class: "row" }, field("Token", input), el("button", { class: "main" }, "Sign in")));
  document.title = "Sign in · graphweft";
  fill(main, el("div", { class: "login sheet" }, el("h1", {}, "Sign in"),
    el("p", { class: "lead" }, "The console needs a token. `graphweft up` prints a link that holds one. For `graphweft run console`, the operator has it."),
    problem && note(problem, "bad"), form));
  input.focus();
}

function showFrame() {
  const links = Object.entries(PAGES).map(([name, page]) => el("li", {}, el("a", { href: `#/${name}`, id: `to-${name}` }, page.title)));
  fill(document.getElementById("pages"), el("ul", {}, links));
  const choices = [session.all_apps ? el("option", { value: "" }, "all apps") : null,
    app !== null && !session.apps.includes(app) ? el("option", { value: app, selected: true }, app) : null,
    session.apps.map((each) => el("option", { value: each, selected: each === app }, each)),
    session.apps_total > session.apps.length ? el("option", { value: OTHER }, `another of ${session.apps_total} apps…`) : null];
  const select = el("select", { id: "app", on: { change: () => {
    const chosen = select.value === OTHER ? prompt("The name of the app")?.trim() : select.value;
    if (chosen !== undefined) app = chosen || null;
    sessionStorage.setItem(CHOSEN, app ?? "");
    if (select.value === OTHER) showFrame();
    show({ focus: false });
  } } }, choices);
  const dark = el("button", { type: "button", class: "small", on: { click: () => {
    const next = isDark() ? "light" : "dark";
    localStorage.setItem(theme.key, next);
    showTheme(next);
    document.dispatchEvent(new CustomEvent("theme-changed"));
    dark.textContent = next === "dark" ? "Light" : "Dark";
  } } }, isDark() ? "Light" : "Dark");
  const out = el("button", { type: "button", class: "small", on: { click: () => { token.forget(); signIn(); } } }, "Sign out");
  fill(document.getElementById("controls"), el("label", { class: "visually-hidden", for: "app" }, "App"), select, dark, out);
}

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function showTheme(name) {
  if (name === "dark" || name === "light") document.documentElement.dataset.theme = name;
}

function show({ focus }) {
  if (!session) return;
  leave();
  const { name, query } = route();
  current = name;
  const page = PAGES[name];
  if (page.needsApp && !app && session.apps.length === 1 && session.apps_total === 1) {
    [app] = session.apps;
    showFrame();
  }
  markPage();
  document.title = `${page.title} · graphweft`;
  const body = el("div");
  const faults = el("div");
  const unknown = el("div");
  fill(main, el("h1", {}, page.title), el("p", { class: "lead" }, page.lead), faults, unknown, body);
  const stopped = new AbortController();
  leave = () => stopped.abort();
  watchFaults(faults, { app, signal: stopped.signal });
  if (session.all_apps) learnApps(unknown, stopped.signal);
  if (page.needsApp && !app) {
    fill(body, note(session.apps.length ? "Choose an app at the top right first."
      : "No app is known yet: an app is known once it has published an event (`graphweft emit FILE`), has rules of its own, or has a dead letter."));
  } else {
    page.show(body, { app, session, query, signal: stopped.signal, isDark });
  }
  scrollTo(0, 0);
  if (focus) main.focus({ preventScroll: true });
  announce(`${page.title}`);
}

// Apps come and go while the page is open.
async function learnApps(where, signal) {
  try {
    const found = await ask("session", { app }, { signal });
    if (!signal.aborted && !found.knows_app) fill(where, note(`No app named ${app} is known, so the page is empty. Choose another one at the top right: an app is known once it has published an event, has rules of its own, or has a dead letter.`, "warn"));
    if (signal.aborted || found.apps.join("\n") === session.apps.join("\n")) return;
    const first = session.apps.length === 0;
    session = found;
    showFrame();
    if (first && !app) show({ focus: false });
    else markPage();
  } catch {
    // The page itself says what is wrong.
  }
}

function markPage() {
  for (const link of document.querySelectorAll("#pages a")) {
    if (link.id === `to-${current}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

document.getElementById("skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
document.addEventListener("token-refused", (event) => { if (current) { session = null; signIn(event.detail); } });
addEventListener("hashchange", () => {
  if (location.hash.startsWith("#token=")) start();
  else show({ focus: true });
});
start();
