import assert from "node:assert/strict";
import { createServer } from "node:http";
import { test } from "node:test";

import plugin from "../index.js";
import { Sessions } from "../sessions.js";

/**
 * Serve on loopback until the test ends.
 *
 * @param {import("node:test").TestContext} context
 * @param {number} status
 */
async function serve(context, status) {
  /** @type {{ line: string, key: string | undefined }[]} */
  const seen = [];
  const server = createServer((request, response) => {
    seen.push({ line: `${request.method} ${request.url}`, key: request.headers.authorization });
    response.writeHead(status).end("{}");
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", () => resolve(undefined)));
  context.after(() => server.close());
  const address = server.address();
  assert(address && typeof address === "object");
  return { seen, url: `http://127.0.0.1:${address.port}/v1` };
}

test("the end of a session goes to the server it talked to, with the same key, once", async (context) => {
  const { seen, url } = await serve(context, 200);
  const sessions = new Sessions();
  sessions.used("a/b", { url, apiKey: "k" });
  assert.equal(await sessions.ended("a/b", "reset"), true);
  assert.equal(await sessions.ended("a/b", "reset"), false);
  assert.deepEqual(seen, [{ line: "POST /v1/sessions/a%2Fb/done", key: "Bearer k" }]);
});

test("without a key none is sent", async (context) => {
  const { seen, url } = await serve(context, 200);
  const sessions = new Sessions();
  sessions.used("s", { url, apiKey: undefined });
  await sessions.ended("s", "idle");
  assert.equal(seen[0].key, undefined);
});

test("nothing is said about a session that goes on, or that never asked", async () => {
  const sessions = new Sessions(() => assert.fail("nothing is to be sent"));
  sessions.used("s", { url: "http://h/v1", apiKey: undefined });
  for (const reason of ["compaction", "shutdown", "restart"]) assert.equal(await sessions.ended("s", reason), false);
  assert.equal(await sessions.ended("stranger", "reset"), false);
});

test("a server that refuses is an error", async (context) => {
  const { url } = await serve(context, 404);
  const sessions = new Sessions();
  sessions.used("s", { url, apiKey: undefined });
  await assert.rejects(sessions.ended("s", "deleted"), /failed with status 404/);
});

test("memory is bounded", async () => {
  const sessions = new Sessions(async () => new Response("{}"));
  for (let n = 0; n < 4100; n++) sessions.used(`s${n}`, { url: "http://h/v1", apiKey: undefined });
  assert.equal(await sessions.ended("s0", "reset"), false);
  assert.equal(await sessions.ended("s4099", "reset"), true);
});

test("the plugin reports the end of a session, and only warns when nobody listens", async (context) => {
  const { seen, url } = await serve(context, 200);
  /** @type {string[]} */
  const warnings = [];
  /** @type {((event: { sessionId: string, reason?: string }) => Promise<void>) | undefined} */
  let sessionEnd;
  /** @type {import("../openclaw.js").Provider | undefined} */
  let provider;
  plugin.register({
    logger: { info() {}, warn: (message) => warnings.push(message) },
    on: (/** @type {string} */ name, /** @type {any} */ handler) => {
      if (name === "session_end") sessionEnd = handler;
    },
    registerProvider: (registered) => (provider = registered),
  });
  const stream = provider?.wrapStreamFn({ streamFn: () => undefined });
  stream?.({ baseUrl: url }, {}, { requestId: "r:model:1", sessionId: "s", apiKey: "k" });
  await sessionEnd?.({ sessionId: "s", reason: "new" });
  assert.deepEqual(seen, [{ line: "POST /v1/sessions/s/done", key: "Bearer k" }]);
  stream?.({ baseUrl: "http://127.0.0.1:1/v1" }, {}, { requestId: "r:model:1", sessionId: "s" });
  await sessionEnd?.({ sessionId: "s", reason: "new" });
  assert(warnings.some((warning) => warning.includes("could not report the end of session s")));
});
