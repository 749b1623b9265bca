/** For tests: the agent `tiny` gets one sentence instead of OpenClaw's system prompt, and no tools. */
export default {
  id: "short-prompt",
  name: "Short prompt",
  register(api) {
    api.on("before_prompt_build", (_event, context) =>
      context.agentId === "tiny" ? { systemPrompt: "You are a personal assistant.", toolsAllow: [] } : undefined,
    );
  },
};
