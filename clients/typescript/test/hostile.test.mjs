// The client against servers that are gone, slow, full, or no gateway at all.

import assert from "node:assert/strict";
import { getEventListeners } from "node:events";
import { test } from "node:test";
import { createEvent, MemoryClient, OverLimit, ProblemError, ServerTrouble, Unavailable } from "graphweft";
import { answer, bodyOf, connected, errorOf, gone, problem, serving } from "./kit.mjs";

const TOKEN = "gw_hostile-secret-token";
const event = () => createEvent("note.made", { chatId: "c1", data: { text: "private words" } });
const ask = { agent: "A", chatId: "c1" };
const REPLY = { id: "1", text: "", blocks: [], missing: [], context_id: "c" };

/** A client of a server that takes all events, but whose first answers are those that are given. */
async function answered(t, answers, more = {}) {
  const bodies = [];
  const url = await serving(t, async (request, response) => {
    const body = await bodyOf(request);
    bodies.push(body);
    const next = answers.shift();
    if (next === "cut") response.destroy();
    else if (next) answer(response, ...next);
    else answer(response, 202, { positions: body.map((_, number) => `1:${number}`) });
  });
  return { client: connected({ url, token: TOKEN, ...more }), bodies };
}

test("without a server, emit says so and context has a reason", async () => {
  const client = connected({ url: await gone(), token: TOKEN });
  const error = await errorOf(client.emit(event(), { timeoutMs: 1_000 }));
  assert.ok(error instanceof Unavailable);
  assert.equal(error.retryable, true);
  assert.match(error.message, /ECONNREFUSED.*graphweft run gateway/);
  assert.deepEqual(error.positions, [null]);
  const reply = await client.context(ask);
  assert.equal(reply.reason, "gateway_unavailable");
  assert.equal(reply.text, "");
  assert.equal(reply.partial, true);
});

test("every failure that may pass is tried again with the same events", async (t) => {
  const failures = [
    [[429, problem("too-many-requests", 429), { "Retry-After": "0" }], "cut"],
    [[503, problem("bus-unavailable", 503, { positions: [null] })], [408, problem("slow-body", 408)]],
    [[503, "Service Unavailable", { "Content-Type": "text/plain" }], [502, "<html>bad gateway</html>"]],
  ];
  const passed = failures.map(async (answers) => {
    const { client, bodies } = await answered(t, answers);
    assert.equal(await client.emit(event()), "1:0");
    assert.equal(bodies.length, 3);
    assert.equal(new Set(bodies.map((body) => JSON.stringify(body))).size, 1);
    assert.equal(client.stats.retries, 2);
  });
  await Promise.all(passed);
});

test("a wait beyond the time of the call ends it at once", async (t) => {
  const { client, bodies } = await answered(t, [[429, problem("over-quota", 429), { "Retry-After": "3600" }]]);
  const error = await errorOf(client.emit(event()));
  assert.ok(error instanceof OverLimit);
  assert.equal(error.retryAfterMs, 3_600_000);
  assert.equal(bodies.length, 1);
});

test("what cannot pass is not tried again", async (t) => {
  for (const status of [400, 401, 403, 404, 413, 415, 422, 507]) {
    const { client, bodies } = await answered(t, [[status, problem("some-code", status)]]);
    assert.ok((await errorOf(client.emit(event()))) instanceof ProblemError);
    assert.equal(bodies.length, 1, `${status}`);
  }
});

test("events of a chat keep their order though the first needs a second attempt", async (t) => {
  const { client, bodies } = await answered(t, [[503, problem("overloaded", 503)]]);
  const [first, second] = [event(), event()];
  await Promise.all([client.emit(first), client.emit(second)]);
  assert.deepEqual(bodies.map(([sent]) => sent.id), [first.id, first.id, second.id]);
});

test("a server that never answers ends a context by its budget, and an emit by its time", async (t) => {
  const url = await serving(t, () => undefined);
  const client = connected({ url });
  const reply = await client.context({ ...ask, budgetMs: 50 });
  assert.equal(reply.reason, "timeout");
  const late = client.emit(event(), { timeoutMs: 50 });
  const after = client.emit(event(), { timeoutMs: 50 });
  assert.equal((await errorOf(late)).code, "timeout");
  assert.equal((await errorOf(after)).code, "timeout");
});

test("an answer that does not end is a timeout, and an endless one is not kept", async (t) => {
  const url = await serving(t, (request, response) => {
    response.writeHead(200, { "Content-Type": "application/json" });
    const more = () => {
      while (!response.destroyed && response.write(" ".repeat(65_536)));
    };
    response.on("drain", more).on("error", () => undefined);
    if (request.url === "/v1/context") more();
    else response.write('{"positions": [');
  });
  const client = connected({ url });
  assert.equal((await client.context(ask)).reason, "gateway_unavailable");
  assert.equal((await errorOf(client.emit(event(), { timeoutMs: 100 }))).code, "timeout");
});

test("an abort ends emit and context with its reason", async (t) => {
  const url = await serving(t, () => undefined);
  const client = connected({ url });
  for (const call of [(signal) => client.emit(event(), { signal }), (signal) => client.context({ ...ask, signal })]) {
    const ends = new AbortController();
    const failed = errorOf(call(ends.signal));
    assert.ok(getEventListeners(ends.signal, "abort").length > 0);
    ends.abort(new Error("enough"));
    assert.equal((await failed).message, "enough");
    assert.equal((await errorOf(call(ends.signal))).message, "enough");
    assert.equal(getEventListeners(ends.signal, "abort").length, 0);
  }
  const long = new AbortController().signal;
  const answers = [[503, problem("overloaded", 503)], [202, { positions: ["1:0"] }], [200, REPLY]];
  const { client: taken } = await answered(t, answers);
  await taken.emit(event(), { signal: long });
  await taken.context({ ...ask, signal: long });
  assert.equal(getEventListeners(long, "abort").length, 0);
});

test("answers that are not a gateway's are told as such", async (t) => {
  const answers = [
    [200, "<html>welcome</html>"],
    [200, "{not json"],
    [202, { positions: "all" }],
    [202, { positions: [] }],
    [404, "nothing here"],
    [302, "", { Location: "http://127.0.0.1:1/" }],
  ];
  for (const given of answers) {
    const { client, bodies } = await answered(t, [given]);
    const error = await errorOf(client.emit(event()));
    assert.equal(error.code, "no-gateway", JSON.stringify(given));
    assert.match(error.message, /address/);
    assert.equal(bodies.length, 1);
    const question = await answered(t, [given]);
    assert.equal((await question.client.context(ask)).reason, "gateway_unavailable");
  }
  for (const body of [{}, [], null, { ...REPLY, blocks: 7 }, { ...REPLY, text: 1 }]) {
    const { client } = await answered(t, [[200, body]]);
    assert.equal((await client.context(ask)).reason, "gateway_unavailable", JSON.stringify(body));
  }
  const odd = await answered(t, [[200, { ...REPLY, blocks: [null, { name: "__proto__", value: { evil: 1 } }], missing: [3] }]]);
  const reply = await odd.client.context(ask);
  assert.equal(reply.blocks.length, 2);
  assert.equal({}.evil, undefined);
});

test("a context whose connection is cut is asked for once more", async (t) => {
  const { client, bodies } = await answered(t, ["cut", [200, REPLY], "cut", "cut"]);
  assert.equal((await client.context(ask)).reason, null);
  assert.equal((await client.context(ask)).reason, "gateway_unavailable");
  assert.equal(bodies.length, 4);
});

test("a recall waits for what its memory wrote last, and asks for its scope alone", async (t) => {
  const { client, bodies } = await answered(t, [undefined, [200, REPLY], undefined, [200, REPLY], [200, REPLY]]);
  const memory = new MemoryClient(client, { userId: "ada" });
  await memory.remember([{ role: "user", text: "Hi" }]);
  await memory.recall([{ role: "user", text: "one" }, { role: "system", text: "no" }, { role: "assistant", content: "two" }]);
  await memory.eraseUser();
  await memory.recall();
  await new MemoryClient(client, { userId: "ada" }).recall();
  const [[added], first, [erased], second, third] = bodies;
  assert.deepEqual([added.type, added.chatid, added.userid], ["memory.add", "ada", "ada"]);
  assert.deepEqual([first.after, first.search.text, first.search.memory], ["1:0", "one\ntwo", { user_id: "ada" }]);
  assert.deepEqual([erased.type, erased.data, erased.chatid], ["memory.erase", { user_id: "ada" }, "ada"]);
  assert.deepEqual([second.after, third.after], ["1:0", undefined]);
});

test("a memory that was not read is an error, not an empty list", async (t) => {
  const { client } = await answered(t, [[200, { ...REPLY, blocks: [], reason: "timeout" }], [200, { ...REPLY, stale_by: 3 }]]);
  const memory = new MemoryClient(client, { userId: "ada" });
  for (let call = 0; call < 2; call += 1) {
    const error = await errorOf(memory.get("m1"));
    assert.deepEqual([error.name, error.code, error.retryable], ["Unavailable", "no-answer", true]);
  }
  assert.deepEqual(await memory.forget([]), []); // no ids are none, not all
  for (const nothing of [{}, { tags: [] }]) assert.equal((await errorOf(memory.forget(nothing))).code, "invalid-event");
});

test("a redirect gets no token", async (t) => {
  let followed = 0;
  const target = await serving(t, (_, response) => {
    followed += 1;
    answer(response, 200, {});
  });
  const { client } = await answered(t, [[307, "", { Location: target }]]);
  await errorOf(client.emit(event()));
  assert.equal(followed, 0);
});

test("no error repeats the token or the event, whatever a server sends", async (t) => {
  const echo = { detail: `you sent Bearer ${TOKEN}`, errors: [{ pointer: TOKEN, detail: TOKEN.repeat(900) }, 4, null] };
  const { client } = await answered(t, [[422, { ...problem("x", 422), ...echo }]]);
  const error = await errorOf(client.emit(event()));
  const shown = JSON.stringify([error.message, error.stack, error, error.faults]);
  assert.ok(!shown.includes(TOKEN));
  assert.ok(!shown.includes("private words"));
  assert.ok(shown.length < 10_000);
  const text = await answered(t, [[500, `private words ${TOKEN}`], [500, `private words ${TOKEN}`]]);
  const trouble = await errorOf(text.client.emit(event(), { timeoutMs: 20 }));
  assert.ok(trouble instanceof ServerTrouble || trouble instanceof Unavailable);
  assert.ok(!JSON.stringify([trouble.message, trouble]).includes("private words"));
});

test("a token may come from a function, and one that fails is told without its text", async (t) => {
  const seen = [];
  const url = await serving(t, (request, response) => {
    seen.push(request.headers.authorization);
    answer(response, 200, REPLY);
  });
  let number = 0;
  const client = connected({ url, token: async () => `token-${(number += 1)}` });
  await client.context(ask);
  await client.context(ask);
  assert.deepEqual(seen, ["Bearer token-1", "Bearer token-2"]);
  const failing = connected({ url, token: () => Promise.reject(new Error(TOKEN)) });
  const reply = await failing.context(ask);
  assert.equal(reply.reason, "invalid_request");
  assert.ok(!reply.detail.includes(TOKEN));
  assert.equal((await errorOf(failing.emit(event()))).code, "invalid-settings");
});

test("a full queue refuses further events at once", async (t) => {
  const url = await serving(t, () => undefined);
  const client = connected({ url });
  const ends = new AbortController();
  const waiting = errorOf(client.emitAll(Array.from({ length: 10_000 }, event), { signal: ends.signal }));
  assert.equal((await errorOf(client.emit(event()))).code, "too-many-pending");
  ends.abort();
  await waiting;
  assert.deepEqual(client.stats, { sent: 0, pending: 0, failed: 10_001, retries: 0 });
});
