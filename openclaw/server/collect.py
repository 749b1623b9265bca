"""Follows a server and copies its turns to a local folder: ledger and conversations.

Guarantees: each turn is stored exactly once, with unchanged ids and log-probabilities. Its next state and feedback follow
as soon as the server has them. Collecting again loses and repeats nothing, even after a crash of either side.

`MODEL_NAME` in the folder names the checkpoint that sampled the turns, for ``train_async.py``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx

from groundwork.command_line import CommandLine
from groundwork.exceptions import ConfigError
from groundwork.private_files import OutputError, private_folder, writing
from groundwork.process import StopRequested
from openclaw.config.runtime_variables import client_key
from openclaw.exceptions import OpenClawError
from openclaw.ledger.conversations import CONVERSATIONS_NAME, conversations, write_conversations, write_lines
from openclaw.ledger.copying import ChangedTurn
from openclaw.ledger.exceptions import LedgerError
from openclaw.ledger.store import Ledger
from openclaw.ledger.views import counted
from openclaw.runtime.where import LEDGER_NAME

OVERLAP_SECONDS = 60.0
"""Overlap of two requests in seconds, because a change is dated before its commit; merging is idempotent."""
TIMEOUT_SECONDS = 60.0
MODEL_NAME = "model.json"
IS_IT_UP = "is the server up? Name another with --api-endpoint URL"


class CollectError(OpenClawError):
    """The server is unreachable or refused the request."""


class Collector:
    """Owns the folder's ledger, which the server's first answer makes, and the read position at the server."""

    def __init__(
        self, endpoint: str, folder: Path, *, key: str | None = None, client: httpx.Client | None = None
    ) -> None:
        """Note where to collect; ``endpoint`` is the server's URL, with or without ``/v1``."""
        self._url = endpoint.rstrip("/").removesuffix("/v1") + "/v1/rollouts"
        self._client = client or httpx.Client(timeout=TIMEOUT_SECONDS, trust_env=False)
        if key:
            self._client.headers["authorization"] = f"Bearer {key}"
        self.folder = folder
        self._since = 0.0

    @cached_property
    def ledger(self) -> Ledger:
        """The folder's ledger.

        Raises:
            ConfigError: the folder cannot be made.
        """
        try:
            private_folder(self.folder)
        except OSError as error:
            raise ConfigError(
                f"{self.folder} is not a folder and cannot be made one: {error.strerror}; name another"
            ) from error
        return Ledger(self.folder / LEDGER_NAME)

    def collect(self) -> int:
        """Merge the server's changes since the last call; return the number of changed turns.

        Raises:
            CollectError: if the server is unreachable or refuses.
            ConfigError: the folder cannot be made.
        """
        self._check_folder()
        since, after, count = max(0.0, self._since - OVERLAP_SECONDS), 0, 0
        while True:
            page = self._page(since, after)
            ledger = self.ledger
            if page.get("model_path"):
                record_model(self.folder, page["model_path"])
            count += sum(ledger.transfer.merge(ChangedTurn.from_dict(item)) for item in page["data"])
            since, after = page["next"]["since"], page["next"]["after"]
            self._since = max(self._since, since)
            if not page["has_more"]:
                return count

    def write(self, *, session_aware: bool) -> int:
        """Write all turns as JSON lines; return the number of lines.

        Args:
            session_aware: write one session per line instead of one turn.
        """
        path = self.folder / CONVERSATIONS_NAME
        if session_aware:
            return write_conversations(self.ledger, path)
        return write_lines(single_turns(self.ledger), path)

    def close(self) -> None:
        """Close the ledger and the connection."""
        if "ledger" in vars(self):
            self.ledger.close()
        self._client.close()

    def _check_folder(self) -> None:
        """Raise if the folder or its ledger is unusable; make neither before the server has answered."""
        existing = next(path for path in (self.folder, *self.folder.absolute().parents) if os.path.exists(path))
        if not existing.is_dir() or os.path.exists(self.folder / LEDGER_NAME):
            self.ledger  # noqa: B018

    def _page(self, since: float, after: int) -> dict[str, Any]:
        try:
            response = self._client.get(self._url, params={"since": since, "after": after})
        except httpx.HTTPError as error:
            raise CollectError(f"{self._url} does not answer ({error}); {IS_IT_UP}") from error
        if response.status_code == 401:
            raise CollectError(f"{self._url} needs a key; set SGLANG_API_KEY to a key of the server")
        if response.status_code != 200:
            raise CollectError(f"{self._url} answered {response.status_code}: {_message(response)}")
        return response.json()


def record_model(folder: Path, model_path: str) -> None:
    """Note in a folder which checkpoint samples its turns."""
    if recorded_model(folder) != model_path:
        with writing(folder / MODEL_NAME) as file:
            file.write(json.dumps({"model_path": model_path}).encode() + b"\n")


def recorded_model(folder: Path) -> str | None:
    """Return the checkpoint that sampled the turns of a folder, or None if it is not known."""
    try:
        values = json.loads((folder / MODEL_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    path = values.get("model_path") if isinstance(values, dict) else None
    return path if isinstance(path, str) else None


def _message(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return "this is not an OpenClaw-RL server; check --api-endpoint"


def single_turns(ledger: Ledger) -> Iterator[dict[str, Any]]:
    """Yield each turn as a conversation of its own."""
    for conversation in conversations(ledger):
        yield from ({"session_id": conversation["session_id"], "turns": [turn]} for turn in conversation["turns"])


def main(argv: Sequence[str] | None = None, prog: str = "collect_rollouts.py") -> int:
    """Follow a server until SIGINT or SIGTERM; return the exit status."""
    parser = CommandLine(
        prog=prog,
        description="Follow a server that was started with --enable-rl-intercept and copy its turns to a folder, "
        "ready for train_async.py. SGLANG_API_KEY has the key, if the server needs one.",
    )
    parser.add_argument(
        "--api-endpoint", required=True, metavar="URL", help="URL of the server, for example http://127.0.0.1:8000"
    )
    parser.add_argument(
        "--output-dir", required=True, type=Path, metavar="D", help="folder for the ledger and the conversations"
    )
    parser.add_argument(
        "--session-aware",
        action="store_true",
        help="write one session per line of conversations.jsonl instead of one turn",
    )
    parser.add_argument(
        "--poll-seconds", type=float, default=5.0, metavar="S", help="seconds between two requests (default: 5)"
    )
    parser.add_argument("--once", action="store_true", help="collect the existing turns and exit")
    arguments = parser.parse_args(argv)
    try:
        with closing(Collector(arguments.api_endpoint, arguments.output_dir, key=client_key())) as collector:
            return _follow(collector, StopRequested().install(), arguments)
    except (CollectError, ConfigError, LedgerError, OutputError) as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 2


def _follow(collector: Collector, stop: StopRequested, arguments: argparse.Namespace) -> int:
    """Collect until stopped; wait for a server that goes away later."""
    reached = False
    while True:
        try:
            count = collector.collect()
            reached = True
        except CollectError as error:
            if not reached or arguments.once:
                raise
            print(f"waiting: {error}", file=sys.stderr, flush=True)
            count = 0
        if count or arguments.once:
            lines = collector.write(session_aware=arguments.session_aware)
            print(
                f"collected {counted(count, 'turn')}, {counted(lines, 'line')} in {collector.folder / CONVERSATIONS_NAME}",
                flush=True,
            )
        if arguments.once or stop.wait(arguments.poll_seconds):
            return 0
