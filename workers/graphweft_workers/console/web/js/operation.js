// Operation: positions, lag, rates, workers, and what had no effect.

import { ask } from "./api.js";
import { clock, count, counted, el, fill, note, sayFailure, table, tag } from "./dom.js";

export const title = "Operation";
export const lead = "Whether workers keep up, and what had no effect: what the command graphweft status prints.";
const EVERY_MS = 5000;

export function show(root, { app, signal }) {
  let before = null;
  let timer = 0;
  const body = el("div");
  const problem = el("div");
  fill(root, problem, body);

  async function look() {
    if (signal.aborted) return;
    try {
      const found = await ask("operation", { app }, { signal });
      const now = performance.now();
      fill(problem);
      // A reader who is inside a table keeps the place; the numbers come with the next look.
      if (!body.contains(document.activeElement)) fill(body, page(found, rates(before, found, now), app));
      before = { at: now, found };
    } catch (error) {
      if (signal.aborted) return;
      sayFailure(problem, error, before ? "This page asks again every 5 seconds; the numbers below are those from before." : "This page asks again every 5 seconds.");
      if (!before) fill(body);
    }
    timer = setTimeout(look, EVERY_MS);
  }
  fill(body, el("p", { class: "quiet" }, "Reading the status…"));
  look();
  signal.addEventListener("abort", () => clearTimeout(timer));
}

function rates(before, found, now) {
  if (!before || found.partitions.some((each) => each.written === null)) return null;
  const sum = (each) => each.partitions.reduce((all, row) => all + row.written, 0);
  return Math.max(0, (sum(found) - sum(before.found)) / ((now - before.at) / 1000));
}

function number(name, value, kind) {
  return el("div", {}, el("dt", {}, name), el("dd", { class: kind }, value));
}

function page(found, rate, app) {
  const idle = found.partitions.filter((each) => each.owner === null).length;
  const parts = [el("dl", { class: "numbers" },
    number("Lag, events", count(found.lag), found.lag > 1000 ? "warn" : ""),
    rate !== null && number("New entries per second", rate.toFixed(rate < 10 ? 1 : 0)),
    number("Dead letters", count(found.dead_letters), found.dead_letters ? "warn" : ""),
    number("Parked apps", count(found.parked_total), found.parked_total ? "bad" : ""),
    number("Partitions without a worker", count(idle), idle ? "bad" : ""))];
  for (const [name, fault] of Object.entries(found.faulty_files)) parts.push(note(`${name}: ${fault}`, "bad"));
  if (found.faulty_rules.length) parts.push(note(found.faulty_rules.join("\n"), "bad"));
  if (idle) parts.push(note("Events in partitions without a worker wait: start `graphweft run mutation`.", "bad"));
  if (found.parked.length) parts.push(sheet(table("Apps that are behind", [
    { title: "App", header: true, cell: (row) => row.app_id }, { title: "Partition", number: true, cell: (row) => row.partition },
    { title: "Applied up to", cell: (row) => row.at }, { title: "Reason", cell: (row) => tag(row.why, "warn") },
    { title: "Since", keep: true, cell: (row) => clock(new Date(row.since * 1000).toISOString()) }], found.parked), more(found, "parked")));
  const busy = found.partitions.filter((each) => each.lag || each.owner === null || found.partitions.length <= 8);
  const shown = (busy.length ? busy : found.partitions.filter((each) => each.end)).slice(0, 64);
  const partitions = sheet(table(app ? "Partitions that hold events of this app; apps share them, so the lag counts all" : "Partitions with events", [
    { title: "Partition", header: true, cell: (row) => row.id }, { title: "Applied up to", cell: (row) => row.position || "nothing" },
    { title: "End", cell: (row) => row.end || "empty" }, { title: "Lag", number: true, cell: (row) => count(row.lag) },
    { title: "Worker", cell: (row) => row.owner ?? tag("none", "bad") }], shown),
    el("p", { class: "quiet" }, shown.length < found.partitions.length ? `${shown.length} of ${counted(found.partitions.length, "partition")} are listed.` : ""));
  if (busy.length) parts.push(partitions);
  if (found.apps.length) parts.push(sheet(table("What apps use", [
    { title: "App", header: true, cell: (row) => row.app_id }, { title: "Events/s", number: true, cell: (row) => row.events_per_s.toFixed(1) },
    { title: "Stored", number: true, cell: (row) => bytes(row.stored_bytes) }, { title: "Dead letters", number: true, cell: (row) => count(row.dead_letters) },
    { title: "Graph", number: true, cell: (row) => (row.graph_bytes === null ? "" : bytes(row.graph_bytes)) },
    { title: "Property names", number: true, cell: (row) => count(row.property_names) },
    { title: "Over quota", cell: (row) => row.over_quota.map((each) => tag(each, "bad")) },
    { title: "Refused requests", cell: (row) => Object.entries(row.refused_requests).map(([name, each]) => `${count(each)} ${name}`).join(", ") }], found.apps), more(found, "apps")));
  if (found.without_effect.length) parts.push(sheet(table("Without effect, by cause", [
    { title: "App", header: true, cell: (row) => row.app_id ?? "not known" }, { title: "Rule", cell: (row) => (row.rule ? `${row.rule}/${row.mutation}` : `workflow ${row.workflow ?? "(none)"}`) },
    { title: "Reason", cell: (row) => tag(row.reason, "warn") }, { title: "Events", number: true, cell: (row) => count(row.events) },
    { title: "Place", cell: (row) => row.place ?? "" }, { title: "Message", cell: (row) => row.message }], found.without_effect), more(found, "without_effect")));
  if (found.causes_partly) parts.push(el("p", { class: "quiet" }, "Not all dead letters were read for the causes: the page Dead letters lists them."));
  if (found.rules.length) parts.push(sheet(table("Active rules", [
    { title: "App", header: true, cell: (row) => (row.app_id === "*" ? "all apps" : row.app_id) }, { title: "Rules", cell: (row) => el("code", {}, row.rules.slice(0, 12)) },
    { title: "Activation", number: true, cell: (row) => row.number }, { title: "Since", keep: true, cell: (row) => clock(row.since) }], found.rules), more(found, "rules")));
  if (!busy.length) parts.push(el("section", { class: "sheet" }, el("details", {}, el("summary", {}, `${found.partitions.length === 1 ? "" : "All "}${counted(found.partitions.length, "partition has", "partitions have")} a mutation worker and no lag`), partitions)));
  if (found.jobs?.length) parts.push(jobs(found.jobs));
  if (found.archive) parts.push(sheet(el("h2", {}, "Archive"), el("p", {}, archive(found.archive))));
  return parts;
}

function jobs(found) {
  const lines = found.flatMap((each) => each.waits.map((wait) => note(`${each.group} waits since ${wait.since} (worker ${wait.worker}): ${wait.reason}; ${wait.next}`, "bad")));
  return sheet(table("Jobs of memory", [
    { title: "Job", header: true, cell: (row) => row.group }, { title: "Lag", number: true, cell: (row) => (row.lag === null ? "" : count(row.lag)) },
    { title: "Partitions without a worker", number: true, cell: (row) => (row.lag === null ? "" : count(row.idle.length)) },
    { title: "Left out", cell: (row) => row.skips.map((each) => `${each.app_id ?? "all apps"}: ${count(each.count)} ${each.reason}`).join(", ") }], found), lines);
}

function sheet(...children) {
  return el("section", { class: "sheet" }, children);
}

function more(found, name) {
  const rest = found[`${name}_total`] - found[name].length;
  return rest > 0 && el("p", { class: "quiet" }, `and ${count(rest)} more: \`graphweft status --json\` lists all.`);
}

function archive(state) {
  if (!state.enabled) return state.lost ? `No archive. ${counted(state.lost, "entry was", "entries were")} trimmed.` : "No archive.";
  if (state.error) return `Not known: ${state.error}`;
  return `${state.behind ? `${counted(state.behind, "entry", "entries")} behind` : "Up to date"}; ${counted(state.trimmable, "entry", "entries")} on the bus can be trimmed.${state.accepted ? ` ${counted(state.accepted, "entry is", "entries are")} accepted as lost.` : ""}${state.lost ? ` ${counted(state.lost, "was trimmed before it was", "were trimmed before they were")} archived.` : ""}`;
}

function bytes(number) {
  for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) if (number >= size) return `${(number / size).toFixed(1)} ${unit}`;
  return `${number} B`;
}
