// What the tests share: the gateway that pytest runs, and servers that misbehave.

import assert from "node:assert/strict";
import { createServer } from "node:http";
import net from "node:net";
import { Client } from "graphweft";

const given = JSON.parse(process.env.GRAPHWEFT_TEST);

/** The address of the gateway. */
export const url = given.url;
/** Tokens by name: `acme` may do everything, `reader` only read, and the app of `limited` has a quota. */
export const tokens = given.tokens;
/** The id that the Python client derives for the messages of a test. */
export const derived = given.derived;
/** The declared fields of the data of each event type of the contracts. */
const declared = given.declared;
export const BUDGET_MS = 10_000;

export function connected(options = {}) {
  return new Client({ url, token: tokens.acme, workflow: "Notes", budgetMs: BUDGET_MS, ...options });
}

/** Fail if the data of an event has a field that the contracts do not declare. */
export function checkDeclared(events) {
  const undeclared = events.flatMap(({ type, data }) => {
    const fields = declared[type];
    return fields ? Object.keys(data).filter((name) => !fields.includes(name)).map((name) => `${type}: ${name}`) : [];
  });
  assert.deepEqual(undeclared, []);
}

let count = 0;

/** A name that no other test uses. */
export function fresh(name) {
  count += 1;
  return `${name}-${process.pid}-${count}`;
}

/** A server on this machine, which is closed at the end of the test. */
export async function serving(test, answer) {
  const server = createServer(answer);
  await listening(test, server, () => server.closeAllConnections());
  return `http://127.0.0.1:${server.address().port}`;
}

/**
 * The gateway behind a connection that is cut `cuts` times: after the gateway has answered, and before the answer
 * arrives. The result counts the requests that the gateway has answered.
 */
export async function cutting(test, cuts) {
  const target = new URL(url);
  const found = { url: "", answers: 0 };
  const sockets = new Set();
  const server = net.createServer((from) => {
    const to = net.connect(Number(target.port), target.hostname);
    for (const socket of [from, to]) {
      sockets.add(socket);
      socket.on("error", () => undefined).on("close", () => sockets.delete(socket));
    }
    from.pipe(to);
    from.on("close", () => to.destroy());
    to.on("data", (data) => {
      found.answers += 1;
      if (found.answers <= cuts) from.destroy();
      else from.write(data);
    });
    to.on("close", () => from.destroy());
  });
  await listening(test, server, () => sockets.forEach((socket) => socket.destroy()));
  found.url = `http://127.0.0.1:${server.address().port}`;
  return found;
}

async function listening(test, server, end) {
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  test.after(() => {
    server.close();
    end();
  });
}

/** The address of a server that has ended. */
export async function gone() {
  const server = net.createServer();
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  return `http://127.0.0.1:${port}`;
}

/** Answer with JSON, or a text. */
export function answer(response, status, body, headers = {}) {
  const text = typeof body === "string" ? body : JSON.stringify(body);
  response.writeHead(status, { "Content-Type": "application/json", ...headers }).end(text);
}

/** Return the parsed body of a request. */
export async function bodyOf(request) {
  const parts = [];
  for await (const part of request) parts.push(part);
  return JSON.parse(Buffer.concat(parts).toString());
}

export function problem(code, status, more = {}) {
  return { type: `urn:graphweft:problem:${code}`, title: "Problem", status, detail: "it went wrong", ...more };
}

/** Return the error of a promise that is rejected. */
export async function errorOf(promise) {
  try {
    await promise;
  } catch (error) {
    return error;
  }
  throw new Error("nothing was thrown");
}
