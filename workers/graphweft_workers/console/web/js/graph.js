// Graph: a part of one app's graph as a picture and as a table, search, one node, and the past.

import { ask } from "./api.js";
import { announce, button, clock, count, counted, el, failure, field, fill, note, table, tag, values } from "./dom.js";
import { Picture, colourOf } from "./picture.js";

export const title = "Graph";
export const lead = "A part of one app's graph. Choose a node in the picture or in the table to see where it comes from.";
export const needsApp = true;
const STEPS = 1000;
const CYPHER = /^(match|merge|create|call|return|with|unwind|optional)\b|\(.*\)-/i;

export function show(root, { app, signal, query }) {
  let picture = null;
  let now = null;
  let inPast = false;
  let labels = [];
  const problem = el("div");
  const about = el("p", { class: "quiet" }, "Reading the graph…");
  const legend = el("div", { class: "legend" });
  const canvas = el("div", { class: "canvas", role: "img", "aria-label": "Picture of the graph; the table below lists its nodes" });
  const list = el("div");
  const detail = el("section", { class: "sheet side", "aria-label": "Node", tabindex: "0" }, el("h2", {}, "Node"), el("p", { class: "quiet" }, "No node is chosen."));
  const found = el("div");
  const text = el("input", { type: "search", name: "text", size: 28, maxlength: 200, required: true });
  const which = el("select", { on: { change: () => load() } }, el("option", { value: "" }, "the largest labels"));
  const slider = el("input", { type: "range", min: 0, max: STEPS, value: STEPS, on: { input: () => tellTime() } });
  const moment = el("output", { class: "mono" });
  const showPast = button("Show the graph of this time", () => loadPast());
  const back = button("Back to now", () => { slider.value = STEPS; load(); }, { hidden: true });
  let began = null;

  fill(root, problem,
    el("div", { class: "sheet" },
      el("div", { class: "row" },
        el("form", { class: "row", role: "search", on: { submit: (event) => { event.preventDefault(); search(); } } },
          field("Search nodes", text), el("button", { class: "main" }, "Search")),
        field("Show nodes of", which),
        button("Fit", () => picture?.fit()), button("Arrange", () => picture?.arrange())),
      found),
    el("div", { class: "columns two" },
      el("div", {},
        el("section", { class: "sheet", "aria-label": "Picture" }, about, canvas, legend),
        el("section", { class: "sheet", "aria-label": "Time" }, el("h2", {}, "The graph as it was"),
          el("p", { class: "quiet" }, "The log is replayed up to a time, into a second graph that is deleted afterwards. It must end within 30 seconds."),
          el("div", { class: "row" }, field("Time", slider), moment, showPast, back)),
        el("section", { class: "sheet", "aria-label": "Table" }, list)),
      detail));

  async function attempt(work, again) {
    fill(problem);
    try {
      return await work();
    } catch (error) {
      if (!signal.aborted) fill(problem, failure(error, again));
      return null;
    }
  }

  async function load() {
    const chosen = which.value ? [which.value] : [];
    const answer = await attempt(() => ask("graph", { app, labels: chosen, limit: 60 }, { signal }), load);
    if (!answer) { about.textContent = ""; return; }
    inPast = false;
    back.hidden = true;
    now = answer;
    began = answer.began ? Date.parse(answer.began) : null;
    slider.disabled = showPast.disabled = began === null;
    tellTime();
    labels = answer.labels.map((each) => each.label);
    const kept = which.value;
    fill(which, el("option", { value: "" }, "the largest labels"), answer.labels.map((each) => el("option", { value: each.label, selected: each.label === kept }, `${each.label} (${count(each.nodes)})`)));
    await draw(answer, (all) => `A sample: ${answer.nodes.length} of ${counted(all, "node")}, and some of their relationships.`);
    const asked = query.get("node");
    if (asked) open(/^\d+$/.test(asked) ? Number(asked) : asked);
  }

  async function draw(answer, sentence) {
    const all = answer.labels.reduce((sum, each) => sum + each.nodes, 0);
    about.textContent = answer.nodes.length ? sentence(all) : "The graph of this app is empty: no event has written anything.";
    if (!picture) picture = await Picture.in(canvas, (id) => open(id), signal);
    picture.replace(answer.nodes, answer.relationships, labels);
    changed();
  }

  function changed() {
    const { nodes, relationships } = picture.content();
    const shown = [...new Set(nodes.map((each) => each.labels[0]))].sort();
    fill(legend, shown.map((label) => el("span", { class: `dot${colourOf(label, labels)}` }, label ?? "no label")));
    canvas.setAttribute("aria-label", `Picture of ${counted(nodes.length, "node")} and ${counted(relationships.length, "relationship")}; the table below lists the nodes`);
    const degrees = new Map();
    for (const each of relationships) for (const end of [each.start, each.end]) degrees.set(end, (degrees.get(end) ?? 0) + 1);
    fill(list, table(`The nodes of the picture (${nodes.length})`, [
      { title: "Node", header: true, cell: (row) => (inPast ? row.caption ?? row.id : button(row.caption ?? `node ${row.id}`, () => open(row.id), { class: "link" })) },
      { title: "Labels", cell: (row) => row.labels.join(", ") },
      { title: "Relationships here", number: true, cell: (row) => degrees.get(row.id) ?? 0 }], nodes, { low: true }));
  }

  async function search() {
    const answer = await attempt(() => ask("graph/search", { app, text: text.value }, { signal }), search);
    if (!answer) return;
    announce(`${counted(answer.nodes.length, "node")} found`);
    fill(found, el("h2", {}, `${counted(answer.nodes.length, "node")} found`),
      answer.partly && el("p", { class: "quiet" }, `Keys of rules are searched in the whole graph; other properties in the first ${counted(answer.scanned, "node")} of each label only.`),
      el("ul", { class: "plain" }, answer.nodes.map((each) => el("li", {}, button(each.caption ?? `node ${each.id}`, () => { back.hidden || load(); open(each.id); }, { class: "link" }), " ", each.labels.map((label) => tag(label))))),
      answer.nodes.length === 0 && el("p", {}, CYPHER.test(text.value.trim()) ? "The search looks for this text in nodes; it runs no Cypher. `graphweft query` runs a query that reads." : "No node has this text in a property. Try a part of it, or the key of the node."),
      button("Close the results", () => { fill(found); text.focus(); }, { class: "small" }));
  }

  async function open(id) {
    if (inPast) { announce("Nodes of a past graph cannot be opened"); return; }
    const answer = await attempt(() => ask("graph/node", { app, id }, { signal }), () => open(id));
    if (!answer) return;
    picture?.add([answer.node], [], labels);
    picture?.choose(id);
    changed();
    showNode(answer);
  }

  function showNode(answer) {
    const node = answer.node;
    const why = el("div");
    const heading = el("h2", { tabindex: "-1" }, node.caption ?? `node ${node.id}`);
    fill(detail, heading, el("p", {}, node.labels.map((label) => [tag(label), " "]), el("span", { class: "quiet" }, `id ${node.id}`)),
      el("div", { class: "row" },
        button("Add its neighbours", () => {
          picture.add(answer.nodes, answer.relationships, labels, node.id);
          picture.lookAt(node.id);
          changed();
          announce(`${counted(answer.nodes.length - 1, "neighbour")} added`);
        }, { disabled: answer.nodes.length < 2 }),
        node.keys.map((key) => [
          button("Which events wrote it?", () => explain(key, false, why)),
          button("What did each change?", () => explain(key, true, why))]).slice(0, 1)),
      el("h3", {}, "Properties"), values(node.properties),
      el("h3", {}, answer.degree_is_partial ? "Relationships (the first 10,000 are counted)" : "Relationships"),
      node.relationships.length ? el("ul", { class: "plain" }, node.relationships.map((each) => el("li", {}, el("code", {}, each.type), ` ${count(each.count)}`))) : el("p", { class: "quiet" }, "none"),
      !node.keys.length && el("p", { class: "quiet" }, "No rule looks this node up by a key, so the events behind it cannot be found here."),
      why);
    heading.focus();
  }

  async function explain(key, exact, where) {
    fill(where, el("h3", {}, "Events behind it"), el("p", {}, exact ? "Replaying the log…" : "Reading the log…"));
    try {
      const answer = await ask("graph/why", { app, label: key.label, key: key.key, value: key.value, exact }, { signal });
      announce(`${counted(answer.total, "write")} found`);
      fill(where, el("h3", {}, "Events behind it"),
        el("p", { class: "quiet" }, `${answer.exact ? counted(answer.total, "write") : counted(answer.total, "mutation may have written it", "mutations may have written it")}, the newest first; ${counted(answer.entries, "entry of the log was", "entries of the log were")} read.`),
        answer.lost > 0 && note(`The log lacks ${counted(answer.lost, "entry", "entries")}: events in them are not counted.`, "warn"),
        answer.older && note(answer.older, "warn"),
        !answer.older && answer.like_live === false && note("The graph has another content than the events of the log give: something else has written to it.", "warn"),
        el("ul", { class: "plain" }, answer.writes.toReversed().map((each) => el("li", { class: "write" },
          el("details", {}, el("summary", {}, `${clock(each.received).slice(0, 19)} ${each.type} `, el("span", { class: "quiet" }, `${each.rule}/${each.mutation}`)),
            values({ event: each.id, chat: each.chat, user: each.user, position: each.position, place: each.place, ...(each.reason && { reason: each.reason }) }),
            each.changes.length > 0 && el("pre", { tabindex: "0" }, each.changes.map(change).join("\n")))))));
    } catch (error) {
      if (!signal.aborted) fill(where, failure(error, () => explain(key, exact, where)));
    }
  }

  function tellTime() {
    moment.textContent = Number(slider.value) === STEPS ? "now" : clock(new Date(timeOf()).toISOString()).slice(0, 19);
    slider.setAttribute("aria-valuetext", moment.textContent);
  }

  function timeOf() {
    return began + ((Date.now() - began) * Number(slider.value)) / STEPS;
  }

  async function loadPast() {
    if (Number(slider.value) === STEPS) { load(); return; }
    about.textContent = "Replaying the log…";
    const chosen = which.value ? [which.value] : [];
    const answer = await attempt(() => ask("graph/past", { app, labels: chosen, limit: 60, time: new Date(timeOf()).toISOString() }, { signal }), loadPast);
    if (!answer) { about.textContent = now ? "The picture shows the graph of now." : ""; return; }
    inPast = true;
    back.hidden = false;
    await draw(answer, (all) => `As it was at ${clock(answer.as_of.time).slice(0, 19)}, after ${counted(answer.as_of.events, "event")}: ${answer.nodes.length} of ${counted(all, "node")}. Nodes of a past graph cannot be opened.`);
    announce("The past graph is shown");
  }

  load();
}

function change(each) {
  const arrow = each.relationship ? `${each.relationship.join(" ")} ` : "";
  const value = (what) => (what === null ? "(none)" : JSON.stringify(what));
  if (each.change === "created") return `${arrow}created ${value(each.after)}`;
  if (each.change === "deleted") return `${arrow}deleted ${value(each.before)}`;
  return `${arrow}${each.name ?? each.change}: ${value(each.before)} → ${value(each.after)}`;
}
