// Memory: scopes, memories, facts with their validity, and search.

import { ask } from "./api.js";
import { announce, button, clock, count, counted, el, failure, field, fill, note, table, tag } from "./dom.js";

export const title = "Memory";
export const lead = "What is remembered in a scope, the latest first, and what a search would find.";
export const needsApp = true;
const SCOPES = { user_id: "User", thread_id: "Thread", agent_id: "Agent", application_id: "Application" };
const KINDS = ["all", "memories", "facts", "preferences", "summaries", "entities", "episodes", "profile"];

export function show(root, { app, signal }) {
  const inputs = Object.fromEntries(Object.keys(SCOPES).map((name) => [name, el("input", { name, maxlength: 256, size: 20, autocomplete: "off" })]));
  const text = el("input", { type: "search", name: "text", size: 36, maxlength: 10000 });
  const of = el("select", { name: "of" }, KINDS.map((each) => el("option", { value: each }, each)));
  const problem = el("div");
  const scopes = el("section", { class: "sheet", "aria-label": "Scopes" }, el("p", { class: "quiet" }, "Reading the scopes…"));
  const result = el("div");
  fill(root, problem, el("form", { class: "sheet", on: { submit: (event) => { event.preventDefault(); search(); } } },
    el("div", { class: "row" }, Object.entries(SCOPES).map(([name, label]) => field(label, inputs[name])), button("Show what is remembered", () => load())),
    el("div", { class: "row" }, field("Search in this scope", text), field("Of", of), el("button", { class: "main" }, "Search"))), result, scopes);

  const scope = () => Object.fromEntries(Object.entries(inputs).filter(([, input]) => input.value.trim()).map(([name, input]) => [name, input.value.trim()]));

  async function attempt(where, work, again) {
    fill(problem);
    try {
      return await work();
    } catch (error) {
      if (!signal.aborted) { fill(problem, failure(error, again)); fill(where); }
      return null;
    }
  }

  async function list() {
    const found = await attempt(scopes, () => ask("memory/scopes", { app }, { signal }), list);
    if (!found) return;
    fill(scopes, found.scopes.length ? table("Scopes with memories", [
      ...Object.entries(SCOPES).map(([name, label]) => ({ title: label, cell: (row) => row[name] ?? "" })),
      { title: "Memories", number: true, cell: (row) => count(row.memories) },
      { title: el("span", { class: "visually-hidden" }, "Choose"), cell: (row) => button("Choose", () => {
        for (const name of Object.keys(SCOPES)) inputs[name].value = row[name] ?? "";
        load();
      }, { class: "small", "aria-label": `Choose the scope ${Object.keys(SCOPES).map((name) => row[name]).filter(Boolean).join(", ")}` }) }], found.scopes)
      : el("p", {}, "This app has no memories yet. `graphweft memory add` adds one."),
      found.scopes_limit && el("p", { class: "quiet" }, `These are the ${counted(found.scopes_limit, "scope")} with the most memories; there are more. Write the user or thread above to see another one.`),
      found.memories_limit && el("p", { class: "quiet" }, `Only the first ${counted(found.memories_limit, "memory was", "memories were")} read, so scopes may be missing.`));
  }

  async function load() {
    const found = await attempt(result, () => ask("memory", { app, ...scope(), limit: 50 }, { signal }), load);
    if (!found) return;
    announce(`${counted(found.memories.length, "memory", "memories")} and ${counted(found.facts.length, "fact")}`);
    const now = new Date().toISOString();
    fill(result, el("div", { class: "columns even" },
      el("section", { class: "sheet", "aria-label": "Memories" }, found.memories.length ? table(`The latest memories (${found.limit} at most)`, [
        { title: "Time (UTC)", keep: true, cell: (row) => clock(row.time).slice(0, 19) }, { title: "Role", cell: (row) => tag(row.role ?? "none") },
        { title: "Text", cell: (row) => row.text },
        { title: "To", keep: true, cell: (row) => (row.expires_at ? clock(row.expires_at).slice(0, 19) : "open") }], found.memories) : el("p", { class: "quiet" }, "No memories in this scope.")),
      el("section", { class: "sheet", "aria-label": "Facts" }, found.facts.length ? table(`The latest facts (${found.limit} at most), past ones too`, [
        { title: "Fact", cell: (row) => row.text ?? `${row.subject} ${row.predicate} ${row.object}` },
        { title: "From", keep: true, cell: (row) => clock(row.valid_from).slice(0, 10) }, { title: "To", keep: true, cell: (row) => (row.valid_to ? clock(row.valid_to).slice(0, 10) : "open") },
        { title: "Holds", cell: (row) => holds(row, now) }], found.facts) : el("p", { class: "quiet" }, "No facts in this scope. They come from summaries and episodes."))));
  }

  async function search() {
    const found = await attempt(result, () => ask("memory/search", { app, ...scope(), text: text.value, of: of.value, limit: 20 }, { signal }), search);
    if (!found) return;
    announce(counted(found.results.length, "result"));
    fill(result, found.reason && note(`No answer: ${found.reason.replaceAll("_", " ")}. ${found.detail ?? ""}`, "warn"),
      el("section", { class: "sheet", "aria-label": "Results" }, found.results.length ? table(`What a search finds now, the best first; ${found.elapsed_ms.toFixed(1)} ms`, [
        { title: "Kind", cell: (row) => tag(row.kind ?? "") }, { title: "Text", cell: (row) => row.text },
        { title: "Score", number: true, cell: (row) => (typeof row.score === "number" ? row.score.toFixed(3) : "") },
        { title: "Time (UTC)", keep: true, cell: (row) => clock(row.timestamp ?? row.valid_at ?? "").slice(0, 19) }], found.results)
        : el("p", { class: "quiet" }, "Nothing was found.")),
      found.text && el("section", { class: "sheet", "aria-label": "Text" }, el("h2", {}, "The text that an agent would get"), el("pre", { tabindex: "0" }, found.text)));
  }
  list();
}

function holds(row, now) {
  if (row.valid_from && row.valid_from > now) return tag("not yet");
  if (row.valid_to && row.valid_to <= now) return tag("no longer", "warn");
  return tag("now", "good");
}
