/**
 * What the plugin knows, once per process: OpenClaw loads a plugin's modules anew for each of its registrations (one for
 * the gateway, one for the agents), so that a variable of a module would be known to one of them only.
 *
 * @typedef {{ runs: Runs, sessions: Sessions }} State
 */

import { Runs } from "./runs.js";
import { Sessions } from "./sessions.js";

const KEY = Symbol.for("rl-training-headers/state/1");

/** @returns {State} */
export function sharedState() {
  const everywhere = /** @type {{ [KEY]?: State }} */ (globalThis);
  return (everywhere[KEY] ??= { runs: new Runs(), sessions: new Sessions() });
}
