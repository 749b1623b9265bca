/** The episode of tests/integration/test_agent_clients.py by a JS SDK: `node episode.mjs DIALECT`. The environment has the words. */

import assert from "node:assert/strict";
import { createRequire } from "node:module";

const { BASE_URL: url, INSTALLED: installed, ASKED: asked, NOTE: note, REACTION: reaction } = process.env;
const load = createRequire(`${installed}/package.json`);
const OpenAI = load("openai");
const Anthropic = load("@anthropic-ai/sdk");
const schema = { type: "object", properties: { path: { type: "string" } }, required: ["path"] };
const about = { name: "read_file", description: "Read a file" };

const dialects = {
  async chat() {
    const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "x" });
    const tools = [{ type: "function", function: { ...about, parameters: schema } }];
    const messages = [{ role: "user", content: asked }];
    const say = async () => {
      const { role, content, tool_calls } = await client.chat.completions
        .stream({ model: "policy", messages, tools })
        .finalMessage();
      const calls = tool_calls?.length ? { tool_calls } : {};
      messages.push({ role, content, ...calls });
      return messages.at(-1);
    };
    const [call] = (await say()).tool_calls;
    messages.push({ role: "tool", tool_call_id: call.id, content: note });
    const told = (await say()).content;
    messages.push({ role: "user", content: reaction });
    return [told, (await say()).content];
  },

  async responses() {
    const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "x" });
    const tools = [{ type: "function", ...about, parameters: schema, strict: false }];
    const input = [{ role: "user", content: asked }];
    const say = async () => {
      const request = { model: "policy", input, tools, store: false, include: ["reasoning.encrypted_content"] };
      const response = await client.responses.stream(request).finalResponse();
      input.push(...response.output.map(({ parsed_arguments, ...item }) => item));
      return response;
    };
    const call = (await say()).output.find((item) => item.type === "function_call");
    input.push({ type: "function_call_output", call_id: call.call_id, output: note });
    const told = (await say()).output_text;
    input.push({ role: "user", content: reaction });
    return [told, (await say()).output_text];
  },

  async messages() {
    const client = new Anthropic({ baseURL: url, apiKey: "x" });
    const tools = [{ ...about, input_schema: schema }];
    const messages = [{ role: "user", content: asked }];
    const say = async () => {
      const stream = client.messages.stream({ model: "policy", max_tokens: 1000, messages, tools });
      const { content } = await stream.finalMessage();
      messages.push({ role: "assistant", content });
      return content;
    };
    const call = (await say()).find((block) => block.type === "tool_use");
    messages.push({ role: "user", content: [{ type: "tool_result", tool_use_id: call.id, content: note }] });
    const told = (await say()).at(-1).text;
    messages.push({ role: "user", content: reaction });
    return [told, (await say()).at(-1).text];
  },
};

const [, , dialect] = process.argv;
assert(dialect in dialects, `a dialect: ${Object.keys(dialects)}`);
console.log(JSON.stringify(await dialects[dialect]()));
