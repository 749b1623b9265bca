/**
 * OpenClaw plugin: adds `X-Session-Id` and `X-Turn-Type: main|side` to requests to an OpenClaw-RL provider, and reports
 * the end of a session to its server. It reads run ids and session ids, never a word of a conversation.
 *
 * @typedef {import("./openclaw.js").PluginApi} PluginApi
 * @typedef {import("./openclaw.js").Stream} Stream
 */

import { baseUrl, readSettings, sameServer } from "./settings.js";
import { sharedState } from "./state.js";

const UNANNOUNCED =
  "OpenClaw does not show this plugin its runs, so every turn is sent as side and none is trained; " +
  "set plugins.entries.rl-training-headers.hooks.allowConversationAccess to true";

export default {
  id: "rl-training-headers",
  name: "RL training headers",
  description: "Tells an OpenClaw-RL server which session a request belongs to and whose turn it is",

  /** @param {PluginApi} api */
  register(api) {
    const settings = readSettings(api.pluginConfig);
    const { runs, sessions } = sharedState();
    const elsewhere = new Set();
    let warned = false;

    api.on("before_prompt_build", (_event, context) => runs.remember(context));
    if (settings.tracking) {
      api.on("session_end", async (event) => {
        try {
          if (await sessions.ended(event.sessionId, event.reason)) api.logger.info(`session ${event.sessionId} is over`);
        } catch (error) {
          const why = error instanceof Error ? error.message : String(error);
          api.logger.warn(`could not report the end of session ${event.sessionId}; the server's idle time-out will end it: ${why}`);
        }
      });
    }

    /**
     * @param {{ streamFn?: Stream }} context
     * @returns {Stream | undefined}
     */
    const wrap = ({ streamFn }) =>
      streamFn &&
      ((model, context, options) => {
        const url = model.baseUrl && baseUrl(model.baseUrl);
        if (settings.endpoint && !(url && sameServer(url, settings.endpoint))) {
          if (!elsewhere.has(url)) {
            elsewhere.add(url);
            api.logger.warn(`requests to ${url} get no headers: rollout_endpoint is ${settings.endpoint}`);
          }
          return streamFn(model, context, options);
        }
        if (!runs.announced && !warned) {
          warned = true;
          api.logger.warn(UNANNOUNCED);
        }
        const { type, sessionId } = runs.turnOf(options);
        /** @type {Record<string, string>} */
        const headers = { ...options?.headers, "X-Turn-Type": settings.training ? type : "side" };
        if (settings.tracking && sessionId) {
          headers["X-Session-Id"] = sessionId;
          if (url) sessions.used(sessionId, { url, apiKey: options?.apiKey });
        }
        return streamFn(model, context, { ...options, headers });
      });

    for (const id of settings.providers) {
      api.registerProvider({
        id,
        label: "OpenClaw-RL",
        auth: [],
        wrapStreamFn: wrap,
        wrapSimpleCompletionStreamFn: wrap,
      });
    }
  },
};
