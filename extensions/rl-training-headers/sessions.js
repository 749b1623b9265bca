/**
 * Tells the server that a session is over: `POST <base URL>/sessions/<id>/done`, with the key of its own requests.
 *
 * Only sessions that asked the server something are reported, and each end once.
 *
 * @typedef {{ url: string, apiKey: string | undefined }} Server
 */

const MOST_SESSIONS = 4096;
const TIMEOUT_MS = 1500;

/** Ends after which the conversation goes on under the same id; the server is told nothing. */
const GOES_ON = new Set(["compaction", "shutdown", "restart"]);

/** The servers that sessions talk to, the 4096 sessions that were used last. */
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
    if (!response.ok) throw new Error(`POST ${url} was answered with ${response.status}`);
    return true;
  }
}
