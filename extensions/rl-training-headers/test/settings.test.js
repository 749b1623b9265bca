import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { baseUrl, readSettings, sameServer } from "../settings.js";

/** @param {string} name */
const read = (name) => JSON.parse(readFileSync(new URL(`../${name}`, import.meta.url), "utf8"));

test("the defaults", () => {
  const expected = { endpoint: undefined, training: true, tracking: true, providers: ["openclaw-rl"] };
  assert.deepEqual(readSettings(undefined), expected);
  assert.deepEqual(readSettings({}), expected);
});

test("each option is read", () => {
  const settings = readSettings({
    rollout_endpoint: "http://127.0.0.1:30000/v1/",
    training_mode: "off",
    session_tracking: false,
    providers: ["mine"],
  });
  assert.deepEqual(settings, {
    endpoint: "http://127.0.0.1:30000/v1",
    training: false,
    tracking: false,
    providers: ["mine"],
  });
});

test("the configuration of older guides means what it says", () => {
  const config = { rollout_endpoint: "http://localhost:8000/rollout", training_mode: "async", session_tracking: true };
  const { endpoint, training, tracking } = readSettings(config);
  assert.deepEqual({ endpoint, training, tracking }, { endpoint: "http://localhost:8000/v1", training: true, tracking: true });
  assert.equal(readSettings({ rollout_endpoint: "https://h/openclaw/rollout/" }).endpoint, "https://h/openclaw/v1");
});

test("the names of this machine are one server", () => {
  for (const name of ["localhost", "127.0.0.1", "[::1]"]) assert.ok(sameServer(`http://${name}:8000`, "http://localhost:8000/v1"));
  assert.ok(!sameServer("http://localhost.example.org:8000", "http://127.0.0.1:8000"));
  assert.ok(!sameServer("http://localhost:8000", "http://127.0.0.1:8001"));
  assert.ok(!sameServer("https://localhost", "http://localhost"));
});

test("OpenClaw refuses what the plugin would refuse, by the manifest's schema", () => {
  const { training_mode: mode, rollout_endpoint: endpoint } = read("openclaw.plugin.json").configSchema.properties;
  for (const value of mode.enum) assert.doesNotThrow(() => readSettings({ training_mode: value }));
  for (const value of ["combine", "sync", "true"]) assert.ok(!mode.enum.includes(value));
  const pattern = new RegExp(endpoint.pattern);
  assert.ok(pattern.test("http://localhost:8000/rollout"));
  for (const value of ["localhost:8000", "ftp://h", "http://"]) assert.ok(!pattern.test(value));
});

test("a base URL may be written with and without its path", () => {
  for (const url of ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"]) assert.equal(baseUrl(url), "http://h:1/v1");
  assert.equal(baseUrl("https://h/openclaw/v1"), "https://h/openclaw/v1");
});

test("a value that cannot be used is refused with what to write", () => {
  /** @type {[Record<string, unknown>, RegExp][]} */
  const cases = [
    [{ training_mode: "combine" }, /training_mode="combine" .* write "on"; .*run_qwen3_4b_openclaw_combine\.sh/],
    [{ training_mode: "sometimes" }, /write "on", "async" \(the same\) or "off"/],
    [{ rollout_endpoint: "localhost:30000" }, /write http:\/\/HOST:PORT\/v1/],
    [{ rollout_endpoint: 30000 }, /write http:\/\/HOST:PORT\/v1/],
    [{ session_tracking: "yes" }, /write true or false/],
    [{ providers: [] }, /list of provider ids/],
    [{ endpoint: "http://h" }, /use rollout_endpoint/],
  ];
  for (const [config, message] of cases) assert.throws(() => readSettings(config), { message });
});

test("manifest, package and code say the same", async () => {
  const [manifest, pkg] = [read("openclaw.plugin.json"), read("package.json")];
  const { default: plugin } = await import("../index.js");
  assert.equal(plugin.id, manifest.id);
  assert.equal(pkg.name, manifest.id);
  assert.equal(pkg.version, manifest.version);
  assert.deepEqual(manifest.providers, readSettings().providers);
  for (const name of Object.keys(manifest.configSchema.properties)) {
    assert.throws(() => readSettings({ [name]: 0 }), new RegExp(name));
  }
});
