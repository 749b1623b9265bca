import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { baseUrl, readSettings } from "../settings.js";

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

test("a base URL may be written with and without its path", () => {
  for (const url of ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"]) assert.equal(baseUrl(url), "http://h:1/v1");
  assert.equal(baseUrl("https://h/openclaw/v1"), "https://h/openclaw/v1");
});

test("a value that cannot be used is refused with what to write", () => {
  /** @type {[Record<string, unknown>, RegExp][]} */
  const cases = [
    [{ training_mode: "combine" }, /training_mode="combine" .* write "on"; .*run_qwen3_4b_openclaw_combine\.sh/],
    [{ training_mode: "sometimes" }, /write "on" or "off"/],
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
