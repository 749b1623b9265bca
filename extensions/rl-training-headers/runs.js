/**
 * Classifies a model request as main or side turn by its agent run.
 *
 * OpenClaw shows a run's trigger when it builds the run's prompt (`before_prompt_build`). The run's requests have the
 * `requestId` `<run>:model:<n>`. The session id of a request is not a safe key: a memory flush has the id of its parent
 * conversation. A compaction has no run of its own: its requests are `<session>:compaction:<id>:model:<n>`.
 *
 * @typedef {import("./openclaw.js").AgentContext} AgentContext
 * @typedef {"main" | "side"} TurnType
 * @typedef {{ type: TurnType, sessionId: string | undefined }} Turn
 */

const SIDE_TRIGGERS = new Set(["heartbeat", "memory", "cron", "overflow"]);
const SIDE_PROVENANCE = new Set(["internal_system", "inter_session"]);
const SIDE_SESSION_KEY = /:(?:subagent|cron|internal-session-effects):/;
const COMPACTION = ":compaction:";
const CALL_SUFFIX = /:model:\d+$/;
const MOST_RUNS = 512;

/**
 * Return a run's turn type: `side` for OpenClaw's own requests and for its subagents.
 *
 * @param {AgentContext} context
 * @returns {TurnType}
 */
export function turnType(context) {
  const side =
    SIDE_TRIGGERS.has(context.trigger ?? "") ||
    SIDE_PROVENANCE.has(context.inputProvenance?.kind ?? "") ||
    SIDE_SESSION_KEY.test(context.sessionKey ?? "");
  return side ? "side" : "main";
}

/** The newest 512 runs; an evicted run counts as `side`. */
export class Runs {
  /** @type {Map<string, Turn>} */
  #turns = new Map();

  /** Whether a run ever said what it is; OpenClaw keeps that from a plugin without `allowConversationAccess`. */
  announced = false;

  /** @param {AgentContext} context of `before_prompt_build` */
  remember(context) {
    this.announced = true;
    if (!context.runId) return;
    this.#turns.delete(context.runId);
    this.#turns.set(context.runId, { type: turnType(context), sessionId: context.sessionId });
    for (const oldest of this.#turns.keys()) {
      if (this.#turns.size <= MOST_RUNS) break;
      this.#turns.delete(oldest);
    }
  }

  /**
   * Return what is known of a request.
   *
   * @param {{ requestId?: string, sessionId?: string } | undefined} options of the request
   * @returns {Turn}
   */
  turnOf(options) {
    const caller = (options?.requestId ?? "").replace(CALL_SUFFIX, "");
    const compaction = caller.indexOf(COMPACTION);
    if (compaction >= 0) return { type: "side", sessionId: options?.sessionId ?? caller.slice(0, compaction) };
    const run = this.#turns.get(caller);
    return { type: run?.type ?? "side", sessionId: options?.sessionId ?? run?.sessionId };
  }
}
