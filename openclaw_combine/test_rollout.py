"""Test collection: hold a few conversations with a server, collect them into a folder and show them.

``python -m openclaw_combine.test_rollout --num-samples 10 --output-dir D`` needs a server that serves recorded turns
(``python -m openclaw.server --enable-rl-intercept``). OPENCLAW_DEBUG=1 shows what was said, too. Exit status 1 if fewer turns
came back than requested.
"""

from __future__ import annotations

import logging
import sys
import uuid
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import httpx
from rich.console import Console
from rich.progress import track

from groundwork.command_line import CommandLine
from groundwork.exceptions import ConfigError
from openclaw.config.runtime_variables import client_key, wanted_log_level
from openclaw.server.collect import IS_IT_UP, CollectError, Collector
from openclaw_combine.utils import print_sessions, session_rows

QUESTIONS = ("How many days has a leap year?", "Which animal barks?", "What is 17 + 25?", "Name a color of the sky.")
REACTION = "Thanks. Say it again in one word."
MAX_TOKENS = 64
TIMEOUT_SECONDS = 300.0

logger = logging.getLogger("test_rollout")


def talk(client: httpx.Client, url: str, count: int) -> str:
    """Hold ``count`` conversations of two turns: the first reply has a next state, which is what training needs.

    Returns:
        What the ids of their sessions begin with.

    Raises:
        CollectError: if the server refuses or does not answer.
    """
    begin = f"test-rollout-{uuid.uuid4().hex[:8]}-"
    for number in track(range(count), description="talking", console=Console(stderr=True)):
        messages: list[dict[str, str]] = []
        headers = {"X-Session-Id": f"{begin}{number}", "X-Turn-Type": "main"}
        for text in (QUESTIONS[number % len(QUESTIONS)], REACTION):
            messages.append({"role": "user", "content": text})
            body = {"model": "policy", "messages": messages, "max_tokens": MAX_TOKENS}
            try:
                response = client.post(f"{url}/v1/chat/completions", json=body, headers=headers)
            except httpx.HTTPError as error:
                raise CollectError(f"{url} does not answer ({error}); {IS_IT_UP}") from error
            if response.status_code != 200:
                raise CollectError(f"{url} answered {response.status_code}: {response.text}")
            messages.append({"role": "assistant", "content": response.json()["choices"][0]["message"]["content"] or ""})
            for message in messages[-2:]:
                logger.debug("%s%d %s: %s", begin, number, message["role"], message["content"])
    return begin


def with_next_state(folder: Path) -> int:
    """Return the number of a folder's turns with a next state."""
    return sum(row["with_next_state"] for row in session_rows(folder))


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = CommandLine(prog="python -m openclaw_combine.test_rollout", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--num-samples", type=int, default=10, help="turns with a next state (default: %(default)s)")
    parser.add_argument(
        "--output-dir", type=Path, required=True, metavar="D", help="folder for the ledger and the conversations"
    )
    parser.add_argument(
        "--api-endpoint",
        default="http://127.0.0.1:30000",
        metavar="URL",
        help="URL of the server (default: %(default)s)",
    )
    options = parser.parse_args(argv)
    url = options.api_endpoint.rstrip("/").removesuffix("/v1")
    try:
        key = client_key()
        logging.basicConfig(level=wanted_log_level(), format="%(levelname)s %(message)s")
    except ConfigError as error:
        print(f"test_rollout: {error}", file=sys.stderr)
        return 2
    for library in ("httpx", "httpcore"):  # their lines are about connections
        logging.getLogger(library).setLevel(logging.WARNING)
    client = httpx.Client(timeout=TIMEOUT_SECONDS, trust_env=False)
    if key:
        client.headers["authorization"] = f"Bearer {key}"
    with closing(Collector(url, options.output_dir, key=key, client=client)) as collector:
        try:
            collector.collect()  # fail before the conversations if the server serves no recorded turns
            before = with_next_state(options.output_dir)
            begin = talk(client, url, options.num_samples)
            collector.collect()
        except (CollectError, ConfigError) as error:
            print(f"test_rollout: {error}", file=sys.stderr)
            return 2
        collector.write(session_aware=True)
    print_sessions(options.output_dir, begin)
    count = with_next_state(options.output_dir) - before
    print(f"{count} of {options.num_samples} samples collected in {options.output_dir}")
    return 0 if count >= options.num_samples else 1


if __name__ == "__main__":
    sys.exit(main())
