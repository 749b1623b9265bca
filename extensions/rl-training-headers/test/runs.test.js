import assert from "node:assert/strict";
import { test } from "node:test";

import { Runs, turnType } from "../runs.js";

test("what the user says is main", () => {
  for (const trigger of ["user", undefined]) {
    assert.equal(turnType({ trigger, sessionKey: "agent:main:main" }), "main");
  }
  assert.equal(turnType({ inputProvenance: { kind: "external_user" } }), "main");
});

test("what OpenClaw asks by itself is side", () => {
  for (const trigger of ["heartbeat", "memory", "cron", "overflow"]) assert.equal(turnType({ trigger }), "side");
  for (const kind of ["internal_system", "inter_session"]) {
    assert.equal(turnType({ trigger: "user", inputProvenance: { kind } }), "side");
  }
  for (const sessionKey of ["agent:main:subagent:1", "agent:main:cron:2", "agent:main:internal-session-effects:3"]) {
    assert.equal(turnType({ trigger: "user", sessionKey }), "side");
  }
});

test("a request is its run's, also the ones after tool results", () => {
  const runs = new Runs();
  runs.remember({ runId: "r1", sessionId: "s1", trigger: "user" });
  runs.remember({ runId: "r2", sessionId: "s2", trigger: "heartbeat" });
  for (const call of [1, 2, 12]) {
    assert.deepEqual(runs.turnOf({ requestId: `r1:model:${call}`, sessionId: "s1" }), { type: "main", sessionId: "s1" });
  }
  assert.deepEqual(runs.turnOf({ requestId: "r2:model:1" }), { type: "side", sessionId: "s2" });
});

test("a memory flush is side although it streams with the session of its parent", () => {
  const runs = new Runs();
  runs.remember({ runId: "user", sessionId: "s", trigger: "user" });
  runs.remember({ runId: "flush", sessionId: "s", trigger: "memory" });
  assert.equal(runs.turnOf({ requestId: "flush:model:1", sessionId: "s" }).type, "side");
  assert.equal(runs.turnOf({ requestId: "user:model:2", sessionId: "s" }).type, "main");
});

test("a compaction is side and names its session in the request id", () => {
  const turn = new Runs().turnOf({ requestId: "s9:compaction:7:model:1" });
  assert.deepEqual(turn, { type: "side", sessionId: "s9" });
});

test("a run that is not known is side", () => {
  for (const options of [undefined, {}, { requestId: "?:model:1" }]) assert.equal(new Runs().turnOf(options).type, "side");
});

test("a run without an id is not remembered, and memory is bounded", () => {
  const runs = new Runs();
  runs.remember({ trigger: "user" });
  assert.equal(runs.turnOf({ requestId: "" }).type, "side");
  for (let n = 0; n < 600; n++) runs.remember({ runId: `r${n}`, trigger: "user" });
  assert.equal(runs.turnOf({ requestId: "r0:model:1" }).type, "side");
  assert.equal(runs.turnOf({ requestId: "r599:model:1" }).type, "main");
  assert.equal(runs.turnOf({ requestId: "r88:model:1" }).type, "main");
  assert.equal(runs.turnOf({ requestId: "r87:model:1" }).type, "side");
});
