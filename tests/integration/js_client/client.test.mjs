/** The official OpenAI JS SDK against our gateway. BASE_URL, API_KEY and INSTALLED (folder of node_modules) say where. */

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { test } from "node:test";

const { BASE_URL: baseURL, API_KEY: apiKey, INSTALLED: installed } = process.env;
const OpenAI = createRequire(`${installed}/package.json`)("openai");
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const said = (content) => ({ model: "policy", messages: [{ role: "user", content }] });
const session = (id) => ({ headers: { "X-Session-Id": id } });

const WEATHER = {
  type: "function",
  function: {
    name: "weather",
    description: "The weather of a place",
    parameters: { type: "object", properties: { place: { type: "string" } }, required: ["place"] },
  },
};

/** Add the chunks of a stream up. */
async function merge(stream) {
  const whole = { content: "", reasoning: "", finish: null, usage: null, id: null };
  for await (const chunk of stream) {
    whole.id = chunk.id;
    whole.usage = chunk.usage ?? whole.usage;
    const [choice] = chunk.choices;
    if (!choice) continue;
    whole.content += choice.delta.content ?? "";
    whole.reasoning += choice.delta.reasoning_content ?? "";
    whole.finish = choice.finish_reason ?? whole.finish;
  }
  return whole;
}

test("a whole reply and a streamed one say the same", async () => {
  const whole = await client.chat.completions.create(said("Hello?"), session("js-whole"));
  assert.equal(whole.choices[0].message.content, "Hello, wörld 🙂.");
  assert.equal(whole.choices[0].finish_reason, "stop");
  const request = { ...said("Hello?"), stream: true, stream_options: { include_usage: true } };
  const streamed = await merge(await client.chat.completions.create(request, session("js-stream")));
  assert.equal(streamed.content, whole.choices[0].message.content);
  assert.equal(streamed.finish, "stop");
  assert.deepEqual(streamed.usage, whole.usage);
  assert.match(streamed.id, /^chatcmpl-/);
});

test("reasoning comes apart from the content", async () => {
  const streamed = await merge(await client.chat.completions.create({ ...said("THINK first."), stream: true }));
  assert.equal(streamed.reasoning.trim(), "Two and two.");
  assert.equal(streamed.content, "Four.");
});

test("a tool call, whole", async () => {
  const reply = await client.chat.completions.create({ ...said("WEATHER in Rome?"), tools: [WEATHER] });
  const [choice] = reply.choices;
  assert.equal(choice.finish_reason, "tool_calls");
  assert.equal(choice.message.tool_calls.length, 1);
  assert.equal(choice.message.tool_calls[0].type, "function");
  assert.deepEqual(JSON.parse(choice.message.tool_calls[0].function.arguments), { place: "Rome" });
});

test("the SDK's own tool runner streams, calls the tool and streams on", async () => {
  const asked = [];
  const weather = { ...WEATHER.function, parse: JSON.parse, function: ({ place }) => (asked.push(place), "sunny") };
  const request = { ...said("WEATHER in Rome?"), stream: true, tools: [{ type: "function", function: weather }] };
  const runner = client.chat.completions.runTools(request, session("js-tools"));
  assert.equal(await runner.finalContent(), "It is sunny.");
  assert.deepEqual(asked, ["Rome"]);
});

test("a stream that is aborted ends at once", async () => {
  const stop = new AbortController();
  const options = { ...session("js-abort"), signal: stop.signal };
  const stream = await client.chat.completions.create({ ...said("COUNT for ever."), stream: true }, options);
  let text = "";
  for await (const chunk of stream) {
    text += chunk.choices[0].delta.content ?? "";
    if (text) stop.abort();
  }
  assert.ok(text && "and another ".startsWith(text.slice(0, 12)) && text.length < 100, text);
});

test("a request that is aborted before it is answered is an abort", async () => {
  const asking = client.chat.completions.create(said("COUNT for ever."), { signal: AbortSignal.timeout(300) });
  await assert.rejects(asking, OpenAI.APIUserAbortError);
});

test("errors have the class and the fields that the SDK knows", async () => {
  await assert.rejects(client.chat.completions.create({ ...said("x"), no_such_parameter: 1 }), (error) => {
    assert(error instanceof OpenAI.BadRequestError);
    assert.deepEqual([error.status, error.param, error.type], [400, "no_such_parameter", "invalid_request_error"]);
    return true;
  });
  await assert.rejects(client.chat.completions.create({ ...said("x"), messages: [], stream: true }), OpenAI.BadRequestError);
  const stranger = new OpenAI({ baseURL, apiKey: "wrong", maxRetries: 0 });
  await assert.rejects(stranger.chat.completions.create(said("x")), OpenAI.AuthenticationError);
  await assert.rejects(client.models.retrieve("another"), OpenAI.NotFoundError);
});

test("the models are listed", async () => {
  const { data } = await client.models.list();
  assert.equal(data.length, 1);
  assert.equal((await client.models.retrieve(data[0].id)).object, "model");
});
