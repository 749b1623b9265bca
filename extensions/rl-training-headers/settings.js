/**
 * The plugin's configuration (`plugins.entries.rl-training-headers.config`), read and checked once.
 *
 * @typedef {object} Settings
 * @property {string | undefined} endpoint base URL of the server, `http://HOST:PORT/v1`; undefined: every server
 * @property {boolean} training whether the user's turns are trained on
 * @property {boolean} tracking whether session ids and the ends of sessions are sent
 * @property {string[]} providers ids of the providers whose requests get the headers
 */

export const DEFAULT_PROVIDER = "openclaw-rl";

const METHODS = new Map([
  ["combine", "openclaw-combine/run_qwen3_4b_openclaw_combine.sh"],
  ["opd", "openclaw-opd/run_qwen3_4b_openclaw_opd.sh"],
  ["rl", "openclaw-rl/run_qwen3_4b_openclaw_rl.sh"],
  ["binary", "openclaw-rl/run_qwen3_4b_openclaw_rl.sh"],
]);
const LOOPBACK = /^(https?:\/\/)(?:localhost|\[::1\])(?=[:/]|$)/;
/** The path of older guides; the server takes rollouts from the conversations themselves, under its base URL. */
const ROLLOUT_PATH = /\/rollout\/*$/;
const KNOWN = new Set(["rollout_endpoint", "training_mode", "session_tracking", "providers"]);

/**
 * Return the settings of a configuration.
 *
 * @param {Record<string, unknown> | undefined} config
 * @returns {Settings}
 * @throws {Error} one line that names the option and what to write
 */
export function readSettings(config = {}) {
  for (const name of Object.keys(config)) {
    if (!KNOWN.has(name)) throw wrong(name, config[name], `use ${[...KNOWN].join(", ")}`);
  }
  const { rollout_endpoint: endpoint, training_mode: mode = "on", session_tracking: tracking = true } = config;
  const providers = config.providers ?? [DEFAULT_PROVIDER];
  if (typeof tracking !== "boolean") throw wrong("session_tracking", tracking, "write true or false");
  if (!Array.isArray(providers) || !providers.length || !providers.every((id) => typeof id === "string" && id)) {
    throw wrong("providers", providers, `write a list of provider ids, as ["${DEFAULT_PROVIDER}"]`);
  }
  return {
    endpoint: endpoint === undefined ? undefined : readEndpoint(endpoint),
    training: readMode(mode),
    tracking,
    providers,
  };
}

/**
 * Return a base URL in canonical form: with `/v1`, without a trailing slash.
 *
 * @param {string} url
 * @returns {string}
 */
export function baseUrl(url) {
  const { origin, pathname } = new URL(url);
  const path = pathname.replace(/\/+$/, "");
  return origin + (path || "/v1");
}

/**
 * Return whether two base URLs name the same server; the names of this machine are one.
 *
 * @param {string} one
 * @param {string} other
 */
export function sameServer(one, other) {
  return baseUrl(one).replace(LOOPBACK, "$1127.0.0.1") === baseUrl(other).replace(LOOPBACK, "$1127.0.0.1");
}

/** @param {unknown} value */
function readEndpoint(value) {
  if (typeof value !== "string" || !/^https?:\/\//.test(value) || !URL.canParse(value)) {
    throw wrong("rollout_endpoint", value, "write http://HOST:PORT/v1");
  }
  return baseUrl(value.replace(ROLLOUT_PATH, "/v1"));
}

/** @param {unknown} mode */
function readMode(mode) {
  if (mode === "on" || mode === "async") return true;
  if (mode === "off") return false;
  const script = METHODS.get(String(mode));
  if (script) throw wrong("training_mode", mode, `write "on"; the server has the method: it is started with ${script}`);
  throw wrong("training_mode", mode, 'write "on", "async" (the same) or "off"');
}

/**
 * @param {string} name
 * @param {unknown} value
 * @param {string} advice
 */
function wrong(name, value, advice) {
  return new Error(`rl-training-headers: ${name}=${JSON.stringify(value)} cannot be used; ${advice}`);
}
