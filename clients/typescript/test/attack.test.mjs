// The client against hostile servers, hostile values, and callers that make mistakes.

import assert from "node:assert/strict";
import { test } from "node:test";
import { createEvent, GraphweftError, InvalidEvent, InvalidSettings, MemoryClient } from "graphweft";
import { graphweftMiddleware } from "graphweft/ai-sdk";
import { answer, bodyOf, connected, errorOf, fresh, problem, serving, tokens } from "./kit.mjs";

const event = (data = {}, chatId = "c1") => createEvent("note.made", { chatId, workflow: "Notes", data });
const REPLY = { id: "1", text: "", blocks: [], missing: [], context_id: "c" };
const ESC = "\u001b[2J";

/** A server that takes all events and keeps what it gets; `first` answers the first requests. */
async function taking(t, ...first) {
  const got = { requests: [], heads: [] };
  got.url = await serving(t, async (request, response) => {
    const body = await bodyOf(request);
    got.requests.push(body);
    got.heads.push(request.headers);
    const next = first.shift();
    if (next) answer(response, ...(typeof next === "function" ? next(request) : next));
    else if (Array.isArray(body)) answer(response, 202, { positions: body.map((_, number) => `1:${number}`) });
    else answer(response, 200, REPLY);
  });
  return got;
}

/** Emit what a middleware records of one call with these tool arguments, and return its events. */
async function recorded(t, toolArguments, more = {}) {
  const got = await taking(t);
  const middleware = graphweftMiddleware({ client: connected({ url: got.url }), chatId: "c1", onWarning() {}, ...more });
  const prompt = [{ role: "user", content: [{ type: "text", text: "Hi" }] }];
  const params = await middleware.transformParams({ params: { prompt } });
  const call = { type: "tool-call", toolCallId: "t1", toolName: "pay", input: toolArguments };
  await middleware.wrapGenerate({ params, doGenerate: async () => ({ content: [call], finishReason: "tool-calls" }) });
  await middleware.flush();
  return { middleware, events: got.requests.flatMap((body) => (Array.isArray(body) ? body : [])) };
}

test("a time that is no number is refused, and not tried for ever", async (t) => {
  const got = await taking(t);
  const client = connected({ url: got.url });
  for (const timeoutMs of [Number.NaN, "soon", {}]) {
    const error = await errorOf(client.emit(event(), { timeoutMs }));
    assert.ok(error instanceof InvalidSettings, String(error));
    assert.match(error.message, /timeoutMs/);
  }
  assert.equal(await client.emit(event(), { timeoutMs: Infinity }), "1:0");
  assert.equal(got.requests.length, 1);
});

test("a wait that is longer than a timer can run is no loop of requests", async (t) => {
  let asked = 0;
  const url = await serving(t, async (request, response) => {
    const [sent] = await bodyOf(request);
    if (sent.chatid !== "c1") return answer(response, 202, { positions: ["1:0"] });
    asked += 1;
    return answer(response, 429, problem("over-quota", 429), { "Retry-After": "3000000" });
  });
  const client = connected({ url });
  const ends = new AbortController();
  const failed = errorOf(client.emit(event(), { timeoutMs: Infinity, signal: ends.signal }));
  for (let number = 0; number < 100; number += 1) await client.emit(event({}, "another"));
  ends.abort(new Error("enough"));
  assert.equal((await failed).message, "enough");
  assert.equal(asked, 1);
});

test("a turn that may wait for ever is not abandoned at once", async (t) => {
  const { middleware, events } = await recorded(t, "{}", { idleMs: Infinity });
  await new Promise((resolve) => setImmediate(() => setImmediate(resolve)));
  await middleware.flush();
  assert.deepEqual(events.map((each) => each.type), ["agent.turn_start", "model.call_complete", "tool.call_start"]);
  const { events: all, middleware: closed } = await recorded(t, "{}", { idleMs: 1e12 });
  await closed.close();
  assert.equal(all.length, 3);
});

test("no argument that a model makes up hides its call or changes a prototype", async (t) => {
  for (const input of [
    '{"constructor": {"name": {"toString": 1, "valueOf": 1}}, "amount": 5}',
    '{"constructor": null, "__proto__": {"evil": 1}, "amount": 5}',
    '{"toJSON": 1, "toString": 1, "valueOf": null, "hasOwnProperty": 0, "amount": 5}',
    `{"deep": ${"[".repeat(150)}${"]".repeat(150)}, "amount": 5}`,
    `{"deep": ${'{"constructor": {"name": {"toString": 1}}, "in": '.repeat(150)}1${"}".repeat(150)}, "amount": 5}`,
    '{"cut": "\\ud83d", "\\udc00": 1, "amount": 5}',
  ]) {
    const { middleware, events } = await recorded(t, input);
    assert.equal(middleware.stats.errors, 0);
    const [started] = events.filter((each) => each.type === "tool.call_start");
    assert.equal(started.data.tool_name, "pay", input.slice(0, 80));
    assert.equal(started.data.arguments.amount, 5);
    assert.equal({}.evil, undefined);
    assert.ok(JSON.stringify(started).isWellFormed());
  }
});

test("a getter that throws hides its own value only", async (t) => {
  const result = { amount: 5, get secret() { throw new Error("private words"); }, far: 10n ** 5_000n };
  const got = await taking(t);
  const middleware = graphweftMiddleware({ client: connected({ url: got.url }), chatId: "c1", onWarning() {} });
  const prompt = [{ role: "user", content: "Hi" }];
  const params = await middleware.transformParams({ params: { prompt } });
  const call = { type: "tool-call", toolCallId: "t1", toolName: "pay", input: "{}", providerExecuted: true };
  const ended = { type: "tool-result", toolCallId: "t1", toolName: "pay", result };
  await middleware.wrapGenerate({ params, doGenerate: async () => ({ content: [call, ended] }) });
  await middleware.flush();
  const [told] = got.requests.flat().filter((each) => each.type === "tool.call_complete");
  assert.equal(told.data.result.amount, 5);
  assert.equal(told.data.result.secret, "<unreadable>");
  assert.equal(typeof told.data.result.far, "string");
  assert.ok(!JSON.stringify(got.requests).includes("private words"));
});

test("an event with half a character is refused before it takes others with it", async () => {
  const client = connected();
  const error = await errorOf(client.emitAll([event({ text: "whole" }), event({ text: "private words \ud83d" })]));
  assert.ok(error instanceof InvalidEvent, String(error));
  assert.match(error.message, /"text".*half a character/);
  assert.ok(!error.message.includes("private words"));
  assert.ok((await errorOf(client.emit(event({ "\udc00": 1 })))) instanceof InvalidEvent);
  assert.ok((await errorOf(client.emit(event({}, "c\ud83d")))) instanceof InvalidEvent);
  const reply = await client.context({ agent: "A", chatId: "c1", context: { said: "cut \ud83d" } });
  assert.equal(reply.reason, "invalid_request");
  assert.match(reply.detail, /half a character/);
});

test("a memory and a search of a text that was cut inside a character work", async (t) => {
  const got = await taking(t);
  const memory = new MemoryClient(connected({ url: got.url }), { userId: "ada" });
  await memory.remember([{ role: "user", text: "cut \ud83d" }]);
  assert.equal((await memory.recall("cut \ud83d")).reason, null);
  assert.equal((await memory.recall([{ role: "user", text: "\ude00 cut" }])).reason, null);
  const [[added], first, second] = got.requests;
  assert.equal(added.data.messages[0].text, "cut \ufffd");
  assert.deepEqual([first.search.text, second.search.text], ["cut \ufffd", "\ufffd cut"]);
});

test("events with many values are taken, in several requests", async () => {
  const client = connected();
  const events = Array.from({ length: 500 }, () => event({ topic: "t", text: "many", values: Array(700).fill(1) }, fresh("chat")));
  assert.equal((await client.emitAll(events)).length, 500);
});

test("data that is no object is refused", () => {
  for (const data of ["text", [1, 2], 7, true, () => 1]) {
    assert.throws(() => event(data), (error) => error instanceof InvalidEvent && /data is not an object/.test(error.message));
  }
  assert.throws(() => createEvent("a.b", { chatId: "c", context: "text" }), /context is not an object/);
  assert.deepEqual(createEvent("a.b", { chatId: "c", data: null }).data, {});
});

test("the token that was sent is hidden, whichever token comes next", async (t) => {
  const echo = (request) => [422, { ...problem("x", 422), detail: `you sent ${request.headers.authorization}` }];
  const got = await taking(t, echo, echo);
  let number = 0;
  const client = connected({ url: got.url, token: () => `secret-${(number += 1)}` });
  const error = await errorOf(client.emit(event()));
  assert.ok(!error.message.includes("secret-"), error.message);
  const reply = await client.context({ agent: "A", chatId: "c1" });
  assert.equal(reply.reason, "invalid_request");
  assert.ok(!reply.detail.includes("secret-"), reply.detail);
});

test("what a server says cannot write into a terminal or forge a line of a log", async (t) => {
  const said = { detail: `a${ESC}b\r\nERROR forged \u202e`, errors: [{ pointer: `#/${ESC}`, detail: "\n" }] };
  const bad = [422, { ...problem(`x${ESC}`, 422), ...said }];
  const got = await taking(t, bad);
  const error = await errorOf(connected({ url: got.url }).emit(event()));
  assert.doesNotMatch([error.message, error.code, error.detail, JSON.stringify(error.faults)].join(""), /[\p{Cc}\u202e]/u);
  assert.match(error.message, /a.*b.*ERROR forged/);
});

test("an answer with a number of a million digits does not stop the process", async (t) => {
  const got = { url: await serving(t, (_, response) => answer(response, 200, `{"id": ${"9".repeat(3_000_000)}, "text": ""}`)) };
  const reply = await connected({ url: got.url }).context({ agent: "A", chatId: "c1" });
  assert.equal(reply.reason, "gateway_unavailable");
});

test("an answer of ten megabytes is no answer", async (t) => {
  const got = { url: await serving(t, (_, response) => answer(response, 200, { ...REPLY, text: "x".repeat(10_000_000) })) };
  const client = connected({ url: got.url });
  assert.equal((await client.context({ agent: "A", chatId: "c1" })).reason, "gateway_unavailable");
  assert.equal((await errorOf(client.emit(event()))).code, "no-gateway");
});

test("two clients with two tokens see their own app, whatever ids they use", async () => {
  const acme = connected();
  const limited = connected({ token: tokens.limited });
  const chat = fresh("chat");
  const note = (text) => createEvent("note.made", { chatId: chat, workflow: "Notes", id: "same", source: "/same",
    data: { topic: chat, text, number: 0 } });
  const [ours, theirs] = await Promise.all([acme.emit(note("of acme")), limited.emit(note("of limited"))]);
  const notes = async (client, after) => {
    const reply = await client.context({ agent: "A", chatId: chat, after, context: { topic: chat } });
    return reply.injected.notes.map((row) => row.text);
  };
  assert.deepEqual(await notes(acme, ours), ["of acme"]);
  assert.deepEqual(await notes(limited, theirs), ["of limited"]);
  for (const named of [{ appId: "acme" }, { appId: "ACME" }]) {
    assert.equal((await limited.context({ agent: "A", chatId: chat, context: { topic: chat }, ...named })).reason, "invalid_request");
    const error = await errorOf(limited.emit(createEvent("note.made", { chatId: chat, workflow: "Notes", ...named })));
    assert.ok(error instanceof GraphweftError);
    assert.equal(error.retryable, false);
  }
});
