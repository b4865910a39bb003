// Live: events as they arrive, and what each did.

import { ask } from "./api.js";
import { announce, asText, button, clock, closing, count, counted, el, failure, fill, note, sayFailure, tag } from "./dom.js";

export const title = "Live";
export const lead = "Events as they arrive, the newest first, and what the rules made of each.";
const MOST = 200;
const EVERY_MS = 1000;
const SOON_MS = 200;
const SOON_FOR_MS = 3000;
const STATES = {
  applied: ["applied", "good"],
  in_plan: ["being applied", "warn"],
  waiting: ["waiting", "warn"],
  passed: ["wrote nothing", ""],
  copy: ["copy, no effect", ""],
  unknown: ["not known", "warn"],
};
const COLUMNS = ["Received", "App", "Type", "Chat", "What it did", "Rows", "State", ""];

export function show(root, { app, signal }) {
  let cursor = null;
  let older = 0;
  let paused = false;
  let timer = 0;
  const waiting = new Map();
  const activations = new Set();
  const problem = el("div");
  const body = el("tbody");
  const empty = el("p", { class: "quiet" }, "Waiting for the first answer…");
  const pause = button("Pause", () => {
    paused = !paused;
    pause.textContent = paused ? "Go on" : "Pause";
    state.textContent = paused ? "paused" : "looking every second";
    if (!paused) look();
  });
  const state = el("span", { class: "quiet" }, "looking every second");
  const detail = el("section", { class: "sheet", "aria-label": "Event", hidden: true });
  fill(root, problem, el("div", { class: "row" }, pause, state), detail, el("div", { class: "sheet" },
    el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Events" },
      el("table", {}, el("caption", {}, `The newest ${MOST} events`),
        el("thead", {}, el("tr", {}, COLUMNS.map((each, index) => el("th", { scope: "col", class: index === 5 ? "number" : undefined }, each || el("span", { class: "visually-hidden" }, "Details"))))), body)),
    empty));

  async function look() {
    clearTimeout(timer);
    if (paused || signal.aborted) return;
    try {
      const first = cursor === null;
      const pending = [...waiting.keys()].slice(0, 100);
      const found = await ask("live", { app, cursor, pending, limit: 50 }, { signal });
      cursor = found.cursor;
      if (found.partly) older = found.scanned;
      fill(problem, found.graph_fault && note("The graph server does not answer, so the state of some events is not known.", "warn"),
        found.letters_partly && note("Not all dead letters were looked at, so an event or a mutation below may be one without a mark. The button Why beside it looks at more, and `graphweft dlq list` shows all.", "warn"),
        older > 0 && note(`The newest ${counted(older, "entry of the log was", "entries of the log were")} read, those of other apps among them: older events are not listed. \`graphweft events tail\` reads more.`, "warn"),
        found.cut && note("More events arrived than one look shows: the oldest of them are not listed here. `graphweft events tail --follow` shows all.", "warn"));
      for (const event of found.events.toReversed()) {
        // An activation stands in every partition.
        if (event.kind === "activation" && !event.note && activations.has(event.number)) continue;
        if (event.kind === "activation") activations.add(event.number);
        addRow(event, first);
      }
      for (const [position, each] of Object.entries(found.states)) update(position, each);
      if (!first && found.events.length) announce(`${found.events.length} new events`);
      empty.textContent = body.children.length || older ? "" : app ? `No events of ${app} yet. \`graphweft emit FILE\` publishes events.` : "No events yet. `graphweft emit FILE` publishes events.";
    } catch (error) {
      if (signal.aborted) return;
      if (cursor === null) empty.textContent = "";
      sayFailure(problem, error, body.children.length ? "This page asks again every second; the events below are those from before." : "This page asks again every second.");
    }
    timer = setTimeout(look, soon() ? SOON_MS : EVERY_MS);
  }

  // An event that has just arrived is looked at sooner, so that the time until its effect is told more exactly.
  function soon() {
    const since = Date.now() - SOON_FOR_MS;
    return [...waiting.values()].some((each) => !each.first && each.at > since);
  }

  function addRow(event, first) {
    const cell = el("td", { class: "keep" }, stateOf(event));
    const effects = el("td", {}, did(event));
    const row = el("tr", { class: first ? undefined : "new" },
      el("td", { class: "keep" }, clock(event.received).slice(11)),
      el("td", { class: "name" }, event.app === "*" ? "all apps" : event.app ?? ""),
      el("td", {}, event.type ?? event.kind, event.kind === "retry" && [" ", tag("retry")], el("div", { class: "quiet mono preview" }, preview(event))),
      el("td", { class: "name" }, event.chat ?? ""),
      effects,
      el("td", { class: "number" }, event.rows === undefined ? "" : count(event.rows)),
      cell,
      el("td", { class: "keep" }, event.kind !== "activation" && button("Why", () => explain(event), { class: "small", "aria-label": `Why, event ${event.id ?? event.position}` })));
    body.prepend(row);
    while (body.children.length > MOST) body.lastElementChild.remove();
    if (["waiting", "in_plan"].includes(event.state) && event.type) waiting.set(event.position, { cell, effects, event, first, at: Date.now() });
    while (waiting.size > 100) waiting.delete(waiting.keys().next().value);
  }

  function update(position, each) {
    const known = waiting.get(position);
    if (!known) return;
    const { cell, effects, event, first } = known;
    // An event that was there before the page looked may have waited for long: its time would say nothing.
    const ms = each.state === "applied" && !first ? each.ms : undefined;
    const now = { ...event, ...each, ms };
    fill(cell, stateOf(now));
    fill(effects, did(now));
    if (!["waiting", "in_plan"].includes(each.state)) waiting.delete(position);
  }

  async function explain(event, opener = document.activeElement) {
    detail.hidden = false;
    fill(detail, el("h2", { tabindex: "-1" }, `${event.type ?? event.kind} ${event.id ?? ""}`), el("p", {}, "Reading the log…"));
    detail.firstElementChild.focus();
    try {
      const found = await ask("event", { app: event.app && event.type ? event.app : app, position: event.position }, { signal });
      const heading = el("h2", {}, `${event.type ?? event.kind} ${event.id ?? ""}`);
      fill(detail, heading, closing(detail, opener), eventDetail(found));
      announce("The explanation is here");
    } catch (error) {
      if (!signal.aborted) fill(detail, failure(error, () => explain(event, opener)), closing(detail, opener));
    }
  }
  look();
  signal.addEventListener("abort", () => clearTimeout(timer));
}

function preview(event) {
  if (event.fault) return event.fault;
  if (event.kind === "activation") return `rules ${event.rules} for ${event.app === "*" ? "all apps" : event.app}`;
  return event.data && Object.keys(event.data).length ? asText(event.data).slice(0, 90) : "";
}

function stateOf(event) {
  if (event.letter) return tag("dead letter", "bad");
  if (event.kind === "activation") return tag("rules active", "");
  if (event.kind === "erased") return tag("erased", "");
  if (event.parked && event.state === "waiting") return tag(`parked: ${event.parked}`, "bad");
  const failed = (event.matched ?? []).filter((each) => each.letter).length;
  if (failed) return tag(failed === event.matched.length ? "dead letter" : `${failed} of ${event.matched.length} are dead letters`, "bad");
  if (event.state === "applied" && event.rows === 0) return tag("no effect", "");
  const [text, kind] = STATES[event.state] ?? [event.state, ""];
  const ms = event.ms === undefined ? "" : ` ≤ ${count(event.ms)} ms`;
  return tag(text + ms, kind);
}

function did(event) {
  const lines = [];
  for (const each of event.matched ?? []) lines.push(el("li", {}, `${each.rule}/${each.mutation}`, each.letter && [" ", tag(`dead letter: ${each.letter}`, "bad")]));
  for (const each of event.skipped ?? []) lines.push(el("li", {}, tag("skipped", "warn"), ` ${each.rule}/${each.mutation}: ${each.reason}`));
  if (event.reason) lines.push(el("li", { class: "quiet" }, event.reason));
  if (event.note) lines.push(el("li", {}, event.note));
  return el("ul", { class: "plain" }, lines);
}

export function eventDetail(found) {
  const parts = [el("p", { class: "quiet" }, `position ${found.position}, received ${clock(found.received)}, ${found.copy_of ? `copy of ${found.copy_of}, so it has no effect of its own` : `state: ${found.state}`}`)];
  if (found.rules) parts.push(el("p", {}, `Rules ${found.rules.rules.slice(0, 12)}, activation ${found.rules.number}.`));
  for (const each of found.mutations) {
    parts.push(el("h3", {}, `${each.rule}/${each.mutation} `, tag(each.outcome.replaceAll("_", " "), each.outcome === "applied" ? "good" : "warn")),
      el("p", { class: "quiet" }, each.place), el("pre", { tabindex: "0" }, `${each.statement}\n\nwith ${JSON.stringify(each.params, null, 1)}`));
  }
  const missed = [...found.skipped.map((each) => ["skipped", each]), ...found.failed.map((each) => ["failed", each])];
  if (missed.length) parts.push(el("h3", {}, "Not run"), el("ul", {}, missed.map(([word, each]) => el("li", {}, `${each.rule}/${each.mutation} (${each.place}) ${word}: ${each.reason}`))));
  if (found.unmatched.length) parts.push(el("h3", {}, "Rules that do not match"), el("ul", {}, found.unmatched.map((each) => el("li", {}, `${each.rule} (${each.place}): ${each.reason}`))));
  if (found.reason) parts.push(el("p", {}, `Nothing: ${found.reason}`));
  for (const each of found.dead_letters) parts.push(note(`Dead letter ${each.id}: ${each.reason}: ${each.message}`, "warn"));
  if (found.event) parts.push(el("h3", {}, "Event"), el("pre", { tabindex: "0" }, JSON.stringify(found.event, null, 1)));
  return parts;
}
