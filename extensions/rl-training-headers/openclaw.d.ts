/**
 * The part of OpenClaw's plugin interface that this plugin uses; `tests/openclaw/contract.ts` holds it against the
 * types of the release in the lock file. OpenClaw calls the whole interface experimental.
 */

export interface AgentContext {
  runId?: string;
  sessionId?: string;
  sessionKey?: string;
  trigger?: string;
  inputProvenance?: { kind: string };
}

export interface SessionEnd {
  sessionId: string;
  reason?: string;
}

export interface Model {
  baseUrl?: string;
}

export interface StreamOptions {
  apiKey?: string;
  headers?: Record<string, string>;
  requestId?: string;
  sessionId?: string;
}

/** Sends one request to a model; only the options are changed on the way. */
export type Stream = (model: Model, context: unknown, options?: StreamOptions) => unknown;

export interface Provider {
  id: string;
  label: string;
  auth: [];
  wrapStreamFn(context: { streamFn?: Stream }): Stream | undefined;
  wrapSimpleCompletionStreamFn(context: { streamFn?: Stream }): Stream | undefined;
}

export interface PluginApi {
  pluginConfig?: Record<string, unknown>;
  logger: { info(message: string): void; warn(message: string): void };
  on(hook: "before_prompt_build", handler: (event: unknown, context: AgentContext) => void): void;
  on(hook: "session_end", handler: (event: SessionEnd) => Promise<void>): void;
  registerProvider(provider: Provider): void;
}
