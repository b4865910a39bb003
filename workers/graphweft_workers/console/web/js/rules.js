// Rules: the active rule set of an app, its findings, and a try of an event.

import { ask } from "./api.js";
import { announce, clock, count, counted, el, failure, fill, note, table, tag } from "./dom.js";

export const title = "Rules";
export const lead = "The rules that are active for one app, what the linter says of them, and what they would do with an event.";
export const needsApp = true;

export function show(root, { app, signal }) {
  const body = el("div", {}, el("p", { class: "quiet" }, "Reading the rules…"));
  const example = { specversion: "1.0", id: "try-1", source: "/console", type: "agent.turn_start", appid: app, chatid: "chat-1", workflow: "", time: new Date().toISOString(), data: { agent_name: "Agent", turn_number: 1 } };
  const event = el("textarea", { name: "event", spellcheck: "false", "aria-label": "Event as JSON", rows: 12 });
  const outcome = el("div");
  fill(root, body, el("section", { class: "sheet", "aria-label": "Try an event" }, el("h2", {}, "Try an event"),
    el("p", { class: "quiet" }, "Nothing is written: the event is matched by the active rules."),
    el("form", { on: { submit: (submitted) => { submitted.preventDefault(); attempt(); } } }, event, el("div", { class: "row" }, el("button", { class: "main" }, "Try"))), outcome));

  async function load() {
    try {
      const found = await ask("rules", { app }, { signal });
      example.workflow = found.workflows[0]?.name ?? "";
      event.value = JSON.stringify(example, null, 1);
      fill(body, page(found));
    } catch (error) {
      if (!signal.aborted) fill(body, failure(error, load));
    }
  }

  async function attempt() {
    try {
      const found = await ask("rules/try", { app, event: event.value }, { signal });
      announce(counted(found.mutations.length, "mutation matches", "mutations match"));
      fill(outcome, el("h3", {}, counted(found.mutations.length, "mutation matches", "mutations match")),
        found.mutations.map((each) => [el("p", {}, tag("runs", "good"), ` ${each.rule}/${each.mutation} `, el("span", { class: "quiet" }, each.place)), el("pre", { tabindex: "0" }, `${each.statement}\n\nwith ${JSON.stringify(each.params, null, 1)}`)]),
        found.missed.map((each) => el("p", {}, tag("skipped", "warn"), ` ${each.rule}/${each.mutation} (${each.place}): ${each.reason}`)),
        found.unmatched.map((each) => el("p", {}, tag("does not match"), ` ${each.rule} (${each.place}): ${each.reason}`)),
        found.reason && note(`Nothing: ${found.reason}`));
    } catch (error) {
      if (!signal.aborted) fill(outcome, failure(error, attempt));
    }
  }
  load();
}

function page(found) {
  if (!found.active) return note("No rules are active for this app: run `graphweft rules push`.", "warn");
  if (found.lost) return [note(`The bus has lost the active rules ${found.active.rules}, or holds them damaged: run \`graphweft rules push FOLDER\` with their folder, or \`graphweft rules rollback\`.`, "bad"), activations(found)];
  const errors = found.findings.filter((each) => each.level === "error").length;
  const parts = [el("p", {}, "Rules ", el("code", {}, found.active.rules), `, activation ${found.active.number} for ${found.active.scope === "*" ? "all apps" : "this app"}, active since ${clock(found.active.time).slice(0, 19)} UTC. `,
    found.workflows.length ? `Workflows: ${found.workflows.map((each) => each.name).join(", ")}.` : "No workflows.")];
  for (const each of found.workflows) if (each.problem) parts.push(note(`${each.name} does not compile with this version: ${each.problem}`, "bad"));
  parts.push(el("section", { class: "sheet", "aria-label": "Findings" }, found.findings.length ? table(`Findings of the linter. Errors: ${errors}, warnings: ${count(found.findings_total - errors)}`, [
    { title: "Level", cell: (row) => tag(row.level, row.level === "error" ? "bad" : "warn") }, { title: "Place", cell: (row) => `${row.file}:${row.line}:${row.column}` },
    { title: "Code", cell: (row) => el("code", {}, row.code) }, { title: "Message", cell: (row) => row.message }], found.findings)
    : [el("h2", {}, "Findings of the linter"), el("p", {}, tag("none", "good"), " The linter has no findings.")]));
  parts.push(el("section", { class: "sheet", "aria-label": "Files" }, el("h2", {}, `Files (${count(found.files_total)})`),
    found.files.map((each) => el("details", {}, el("summary", {}, each.name), el("pre", { tabindex: "0" }, each.text), each.cut && el("p", { class: "quiet" }, "The file is longer: `graphweft rules show` prints it.")))));
  parts.push(activations(found));
  return parts;
}

function activations(found) {
  return el("section", { class: "sheet", "aria-label": "Activations" }, table("The latest activations", [
    { title: "Number", header: true, cell: (row) => row.number }, { title: "For", cell: (row) => (row.scope === "*" ? "all apps" : row.scope) },
    { title: "Rules", cell: (row) => el("code", {}, row.rules) }, { title: "Time (UTC)", keep: true, cell: (row) => clock(row.time).slice(0, 19) }], found.activations));
}
