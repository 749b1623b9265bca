import assert from "node:assert/strict";
import { test } from "node:test";

import plugin from "../index.js";

/**
 * @typedef {import("../openclaw.js").Provider} Provider
 * @typedef {import("../openclaw.js").StreamOptions} StreamOptions
 */

const MODEL = { baseUrl: "http://127.0.0.1:30000/v1" };

/**
 * Load the plugin as OpenClaw does.
 *
 * @param {Record<string, unknown>} [pluginConfig]
 */
function load(pluginConfig) {
  /** @type {Map<string, Function>} */
  const hooks = new Map();
  /** @type {Provider[]} */
  const providers = [];
  /** @type {string[]} */
  const warnings = [];
  plugin.register({
    pluginConfig,
    logger: { info() {}, warn: (message) => warnings.push(message) },
    on: (/** @type {string} */ name, /** @type {Function} */ handler) => void hooks.set(name, handler),
    registerProvider: (provider) => providers.push(provider),
  });
  return { hooks, providers, warnings };
}

/**
 * Send one request through the plugin and return the options that reached the model.
 *
 * @param {ReturnType<typeof load>} loaded
 * @param {StreamOptions} options
 */
function request({ providers }, options, model = MODEL) {
  /** @type {StreamOptions | undefined} */
  let sent;
  providers[0].wrapStreamFn({ streamFn: (_model, _context, got) => (sent = got) })?.(model, {}, options);
  return sent;
}

/** @param {ReturnType<typeof load>} loaded */
function run(loaded, trigger = "user") {
  loaded.hooks.get("before_prompt_build")?.({}, { runId: "r", sessionId: "s", trigger });
}

const OPTIONS = { requestId: "r:model:1", sessionId: "s", apiKey: "k", headers: { "x-other": "1" } };

test("a plugin that may not see runs says so, once", () => {
  const loaded = load();
  for (let n = 0; n < 2; n++) assert.equal(request(loaded, OPTIONS)?.headers?.["X-Turn-Type"], "side");
  assert.equal(loaded.warnings.length, 1);
  assert.match(loaded.warnings[0], /allowConversationAccess/);
});

test("a request gets both headers and keeps its own", () => {
  const loaded = load();
  run(loaded);
  const sent = request(loaded, OPTIONS);
  assert.deepEqual(sent, { ...OPTIONS, headers: { "x-other": "1", "X-Session-Id": "s", "X-Turn-Type": "main" } });
  run(loaded, "heartbeat");
  assert.equal(request(loaded, OPTIONS)?.headers?.["X-Turn-Type"], "side");
});

test("direct completions are wrapped too, and a provider without a stream is left alone", () => {
  const { providers } = load({ providers: ["a", "b"] });
  assert.deepEqual(providers.map(({ id }) => id), ["a", "b"]);
  for (const { wrapStreamFn, wrapSimpleCompletionStreamFn } of providers) {
    assert.equal(wrapSimpleCompletionStreamFn, wrapStreamFn);
    assert.equal(wrapStreamFn({}), undefined);
  }
});

test("training_mode off: every turn is side", () => {
  const loaded = load({ training_mode: "off" });
  run(loaded);
  assert.equal(request(loaded, OPTIONS)?.headers?.["X-Turn-Type"], "side");
});

test("session_tracking false: no session id and no end of sessions", () => {
  const loaded = load({ session_tracking: false });
  run(loaded);
  assert.deepEqual(request(loaded, OPTIONS)?.headers, { "x-other": "1", "X-Turn-Type": "main" });
  assert.equal(loaded.hooks.has("session_end"), false);
});

test("rollout_endpoint: other servers get nothing, and that is said once", () => {
  const loaded = load({ rollout_endpoint: "http://127.0.0.1:30000" });
  run(loaded);
  assert.equal(request(loaded, OPTIONS)?.headers?.["X-Session-Id"], "s");
  assert.equal(request(loaded, OPTIONS, { baseUrl: "http://localhost:30000/v1" })?.headers?.["X-Session-Id"], "s");
  for (let n = 0; n < 2; n++) assert.deepEqual(request(loaded, OPTIONS, { baseUrl: "http://elsewhere/v1" }), OPTIONS);
  assert.equal(loaded.warnings.length, 1);
  assert.match(loaded.warnings[0], /http:\/\/elsewhere\/v1 get no headers/);
});

test("a configuration that cannot be used stops the plugin", () => {
  assert.throws(() => load({ training_mode: "opd" }), /started with openclaw-opd/);
});

test("every registration in a process knows the same runs, also of another copy of the modules", async () => {
  const agents = load();
  run(agents, "cron");
  const copy = "../index.js?again";
  const again = await import(copy);
  assert.notEqual(again.default, plugin);
  /** @type {Provider | undefined} */
  let provider;
  again.default.register({ logger: {}, on() {}, registerProvider: (/** @type {Provider} */ got) => (provider = got) });
  /** @type {StreamOptions | undefined} */
  let sent;
  run(load());
  provider?.wrapStreamFn({ streamFn: (_model, _context, got) => (sent = got) })?.(MODEL, {}, OPTIONS);
  assert.equal(sent?.headers?.["X-Turn-Type"], "main");
});
