// Context: what an agent gets before a turn, and why.

import { ask } from "./api.js";
import { announce, asText, clock, count, counted, el, failure, field, fill, note, table, tag } from "./dom.js";

export const title = "Context";
export const lead = "What an agent gets before a turn: the text as the model reads it, how each block was made, and what is missing.";
export const needsApp = true;

export function show(root, { app, signal }) {
  const lists = Object.fromEntries(["workflows", "agents", "chats", "users"].map((name) => [name, el("datalist", { id: `names-${name}` })]));
  const input = (name, list, required) => el("input", { name, list: `names-${list}`, required, maxlength: 256, size: 22, autocomplete: "off" });
  const workflow = input("workflow", "workflows", true);
  const agent = input("agent", "agents", true);
  const chat = input("chat", "chats", true);
  const user = input("user", "users", false);
  const tokens = el("input", { name: "tokens", type: "number", min: 1, max: 1000000, size: 8 });
  const variables = el("input", { name: "variables", size: 34, placeholder: '{"name": "value"}', autocomplete: "off" });
  const time = el("input", { name: "time", type: "datetime-local", step: 1 });
  const problem = el("div");
  const result = el("div");
  let known = { workflows: {}, agents: [], chats: [] };

  const form = el("form", { class: "sheet", on: { submit: (event) => { event.preventDefault(); request(); } } },
    el("div", { class: "row" }, field("Workflow", workflow), field("Agent", agent), field("Chat", chat), field("User, optional", user)),
    el("div", { class: "row" }, field("Most tokens, optional", tokens), field("Context variables as JSON, optional", variables), field("As it was at this time (UTC), optional", time),
      el("button", { class: "main" }, "Show the context")), Object.values(lists));
  fill(root, problem, form, result);

  workflow.addEventListener("change", offerAgents);
  chat.addEventListener("change", () => {
    const found = known.chats.find((each) => each.chat === chat.value);
    if (found?.user && !user.value) user.value = found.user;
  });

  function offer(list, names) {
    fill(lists[list], names.map((each) => el("option", { value: each })));
  }

  function offerAgents() {
    offer("agents", [...new Set([...(known.workflows[workflow.value] ?? []).filter((each) => each !== "*"), ...known.agents])]);
  }

  async function start() {
    try {
      known = await ask("context/names", { app }, { signal });
      offer("workflows", Object.keys(known.workflows));
      offer("chats", known.chats.map((each) => each.chat));
      offer("users", known.users);
      [workflow.value] = Object.keys(known.workflows).concat("");
      offerAgents();
      agent.value = known.agents[0] ?? lists.agents.firstElementChild?.value ?? "";
      chat.value = known.chats[0]?.chat ?? "";
      user.value = known.chats[0]?.user ?? "";
    } catch (error) {
      if (!signal.aborted) fill(problem, failure(error, () => { fill(problem); start(); }));
    }
  }

  async function request() {
    fill(problem);
    let given = {};
    try {
      if (variables.value.trim()) given = JSON.parse(variables.value);
    } catch {
      fill(problem, note("The context variables are not valid JSON.", "bad"));
      return;
    }
    fill(result, el("p", { class: "quiet" }, time.value ? "Replaying the log up to this time…" : "Asking a responder…"));
    try {
      const question = { app, workflow: workflow.value, agent: agent.value, chat: chat.value, user: user.value || null, variables: given };
      if (tokens.value) question.max_tokens = Number(tokens.value);
      const reply = time.value ? await ask("context/past", { ...question, time: `${time.value}Z` }, { signal }) : await ask("context", question, { signal });
      fill(result, replyView(reply));
      announce(`${counted(reply.blocks.length, "block")}, ${reply.missing.length} missing`);
    } catch (error) {
      if (!signal.aborted) fill(result, failure(error, request));
    }
  }
  start();
}

export function replyView(reply) {
  const parts = [];
  if (reply.as_of) parts.push(note(`As it would have been at ${clock(reply.as_of.time).slice(0, 19)} UTC, after ${counted(reply.as_of.events, "event")}, by the rules of then.`));
  if (reply.reason) parts.push(note(`No context: ${reply.reason.replaceAll("_", " ")}. ${reply.detail ?? ""}`, reply.reason === "no_rules" || reply.reason === "disabled" ? "" : "warn"));
  parts.push(el("section", { class: "sheet", "aria-label": "Text" }, el("h2", {}, "The text as the model reads it"),
    el("p", { class: "quiet" }, `${counted(reply.tokens, "token")}, ${reply.elapsed_ms.toFixed(1)} ms, ${counted(reply.blocks.length, "block")}${reply.rules ? `, rules ${reply.rules.slice(0, 12)}` : ""}`),
    reply.text ? el("pre", { tabindex: "0", "aria-label": "Text of the context" }, reply.text) : el("p", {}, "The agent would get no text."),
    reply.text_is_cut && note("The text is longer than the console shows.", "warn")));
  if (reply.missing.length) parts.push(el("section", { class: "sheet", "aria-label": "Missing" }, table("What is missing, and why", [
    { title: "Block", header: true, cell: (row) => row.name }, { title: "Rule and query", cell: (row) => `${row.rule}/${row.query}` },
    { title: "Reason", cell: (row) => tag(row.reason.replaceAll("_", " "), "warn") }, { title: "Detail", cell: (row) => row.detail }], reply.missing)));
  if (reply.blocks.length) parts.push(el("section", { class: "sheet", "aria-label": "Blocks" }, table("How each block was made", [
    { title: "Block", header: true, cell: (row) => row.name }, { title: "Rule and query", cell: (row) => [`${row.rule}/${row.query}`, row.explanation && el("div", { class: "quiet" }, row.explanation.place)] },
    { title: "Rows", number: true, cell: (row) => count(row.rows) }, { title: "Left out", number: true, cell: (row) => count(row.cut) }, { title: "Tokens", number: true, cell: (row) => count(row.tokens) },
    { title: "ms", number: true, cell: (row) => row.explanation?.elapsed_ms.toFixed(1) ?? "" },
    { title: "Cached", cell: (row) => [row.explanation?.cached ? "yes" : "no", row.age_ms !== null && row.age_ms !== undefined ? [" ", tag(`${count(row.age_ms)} ms old`, "warn")] : null] },
    { title: "Query and rows", cell: (row) => el("details", {}, el("summary", {}, "show"), row.explanation && el("pre", { tabindex: "0" }, `${row.explanation.cypher}\n\nwith ${JSON.stringify(row.explanation.params, null, 1)}`), el("pre", { tabindex: "0" }, typeof row.value === "string" ? row.value : JSON.stringify(row.value, null, 1)),
      row.explanation?.events?.length > 0 && el("p", { class: "quiet" }, `events: ${row.explanation.events.map(asText).join(", ")}`)) }], reply.blocks)));
  return parts;
}
