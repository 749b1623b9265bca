"""Release an external engine after the run that held it is gone: ``python -I -S external_release.py URL LOG``.

It reads the run's state from stdin, one word per line: ``held`` (requests wait), ``loading`` (the engine may hold a mix
of weights), ``loaded`` and ``free``. Guarantee: when stdin closes, because the run's actor ended in any way, waiting
requests continue within seconds if the weights are complete. Otherwise they continue once the engine has reloaded the
model that its server was started with, as version ``default``. An engine that a new trainer has taken over stays with
it. An engine that does not answer stays as it is, and LOG says so. Imports little, because it stays in memory for the
whole run.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable

CALL_SECONDS = 600.0
DEFAULT_VERSION = "default"
"""SGLang's name for its initial weights."""


class Refused(Exception):
    """The engine refused a request or did not answer."""


def call(url: str, body: dict[str, object] | None = None) -> dict[str, object]:
    """GET ``url``, or POST ``body`` to it, and return the JSON answer.

    Raises:
        Refused: the engine refused, with its message, or did not answer.
    """
    import http.client
    import json
    import urllib.error
    import urllib.request

    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=CALL_SECONDS) as answer:
            text = answer.read()
    except urllib.error.HTTPError as error:
        raise Refused(f"{url}: {error.code} {error.read().decode(errors='replace')}") from error
    except (OSError, http.client.HTTPException) as error:
        raise Refused(f"{url}: {error!r}") from error
    try:
        return json.loads(text) if text.startswith(b"{") else {}
    except ValueError as error:
        raise Refused(f"{url} answered {text[:200]!r}") from error


def close_session(url: str) -> None:
    """Close the update session, if one is open."""
    try:
        call(f"{url}/end_weight_update", {})
    except Refused as error:
        if "no weight-update session is open" not in str(error):
            raise


def release(url: str, *, half_new: bool) -> str:
    """Let the engine continue its requests with complete weights; return what was done.

    Raises:
        Refused: the engine cannot be released.
    """
    close_session(url)
    done = "with the weights of the last update"
    if half_new:
        call(f"{url}/pause_generation", {"mode": "retract"})  # other modes do not allow emptying the prefix cache
        model = call(f"{url}/model_info").get("model_path")
        if model is None:
            raise Refused(f"{url}/model_info names no model_path")
        words = {"model_path": model, "flush_cache": True, "weight_version": DEFAULT_VERSION}
        call(f"{url}/update_weights_from_disk", words)
        try:
            call(f"{url}/begin_weight_update", {})
        except Refused as error:
            if "already open" in str(error):
                return "is with a new trainer"
            raise
        close_session(url)
        done = f"with the weights of {model}: the lost run's update was incomplete"
    call(f"{url}/continue_generation", {"torch_empty_cache": False})
    return f"answers again, {done}"


def follow(url: str, lines: Iterable[str]) -> str | None:
    """Follow the run's state until stdin closes, then release a held engine; return the outcome."""
    held = half_new = False
    for line in lines:
        word = line.strip()
        held = word != "free" and (held or word == "held")
        half_new = word == "loading" or (half_new and word != "loaded")
    if not held:
        return None
    try:
        return release(url, half_new=half_new)
    except Refused as error:
        return f"may hold its requests forever; restart it ({error})"


def main() -> None:
    """Wait until the run ends, then release its engine."""
    if os.fork():
        return
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # whatever ends the run may signal all its processes
        signal.signal(number, signal.SIG_IGN)
    url, log = sys.argv[1:]
    outcome = follow(url, sys.stdin)
    if outcome is not None:
        with open(log, "a", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(f"the run is gone; {url} {outcome}\n")


if __name__ == "__main__":
    main()
