/**
 * Reports the end of a session to the server: `POST <base URL>/sessions/<id>/done`, with the key of its requests.
 *
 * Reports only sessions that sent a request to the server, and each end once.
 *
 * @typedef {{ url: string, apiKey: string | undefined }} Server
 */

const MOST_SESSIONS = 4096;
const TIMEOUT_MS = 1500;

/** Reasons after which the conversation continues under the same id; they are not reported. */
const GOES_ON = new Set(["compaction", "shutdown", "restart"]);

/** The server of each session, for the 4096 most recently used sessions. */
export class Sessions {
  /** @type {Map<string, Server>} */
  #servers = new Map();
  #fetch;

  /** @param {typeof fetch} send */
  constructor(send = fetch) {
    this.#fetch = send;
  }

  /**
   * @param {string} sessionId
   * @param {Server} server that the session sends a request to
   */
  used(sessionId, server) {
    this.#servers.delete(sessionId);
    this.#servers.set(sessionId, server);
    for (const oldest of this.#servers.keys()) {
      if (this.#servers.size <= MOST_SESSIONS) break;
      this.#servers.delete(oldest);
    }
  }

  /**
   * Report the end of a session.
   *
   * @param {string} sessionId
   * @param {string | undefined} reason OpenClaw's
   * @returns {Promise<boolean>} whether the server was told
   * @throws {Error} when the server cannot be reached or refuses
   */
  async ended(sessionId, reason) {
    const server = this.#servers.get(sessionId);
    if (!server || GOES_ON.has(reason ?? "")) return false;
    this.#servers.delete(sessionId);
    const url = `${server.url}/sessions/${encodeURIComponent(sessionId)}/done`;
    const response = await this.#fetch(url, {
      method: "POST",
      headers: server.apiKey ? { authorization: `Bearer ${server.apiKey}` } : {},
      signal: AbortSignal.timeout(TIMEOUT_MS),
    });
    await response.body?.cancel();
    if (!response.ok) throw new Error(`POST ${url} failed with status ${response.status}`);
    return true;
  }
}
