/** Compiles only as long as what the extension uses of OpenClaw is what the release in the lock file offers. */

import type { OpenClawPluginApi } from "openclaw/plugin-sdk/plugin-entry";

import type { AgentContext, Model, PluginApi, Provider, SessionEnd, StreamOptions } from "../../extensions/rl-training-headers/openclaw.js";

type TheirProvider = Parameters<OpenClawPluginApi["registerProvider"]>[0];
type TheirStream = NonNullable<Parameters<NonNullable<TheirProvider["wrapStreamFn"]>>[0]["streamFn"]>;

declare const theirs: OpenClawPluginApi;
declare const provider: Provider;
declare const model: Parameters<TheirStream>[0];
declare const options: NonNullable<Parameters<TheirStream>[2]>;

export const logger: PluginApi["logger"] = theirs.logger;
export const config: PluginApi["pluginConfig"] = theirs.pluginConfig;
export const registered: Pick<TheirProvider, "id" | "label" | "auth"> = provider;
export const ourModel: Model = model;
export const ourOptions: StreamOptions = options;

theirs.on("before_prompt_build", (_event, context) => {
  const ours: AgentContext = context;
  void ours;
});
theirs.on("session_end", (event) => {
  const ours: SessionEnd = event;
  void ours;
});
