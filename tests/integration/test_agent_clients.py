"""Real agent clients, set up by their pages, in an episode with a tool: what a person would call a turn is one, whole and exact.

The engine plays replies that the test knows, so a client's behaviour is certain. Each client reads a note with its own shell,
tells what it says, and hears the user's reaction in a second start of the client. The SDKs of OpenAI and Anthropic do the same.
Each episode ends with an optimizer step of a tiny model over its two turns that have a reaction.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from lab.testkit.live_run import wait_until
from openclaw.ledger.records import Turn
from openclaw.messages.classify import user_words
from openclaw.messages.text import content_text
from slime.rollout.segments import SampledTurn, merge
from tests.helpers import sdk_episodes
from tests.helpers.agent_clients import CLIENTS, CONTEXT
from tests.helpers.long import long_but
from tests.helpers.node import REPOSITORY, node_packages
from tests.helpers.qwen_tokenizers import QWEN3_TEMPLATE
from tests.helpers.stand_in_server import StandInServer, stand_in_server
from tests.helpers.trained_turns import train

pytestmark = pytest.mark.timeout(600)

BY_NAME = {client.name: client for client in CLIENTS}
ONCE = ("opencode-chat", "hermes-chat", "qwen-code", "claude-code", "codex")
"""Each client in one dialect; its others are for the long tests, because the SDKs speak all."""
NOTE = "Buy oat milk."
ASKED, REACTION = "Please read the file note.txt.", "Shorter, please."
THOUGHT = "<think>\nLet me think.\n</think>\n\n"
TOLD, SHORTER = "The note says: buy oat milk.", "Oat milk."
ASIDE = "<title>A note</title>"


class Model:
    """Plays the episode; what else a client asks is its own business and gets `ASIDE`.

    A reply without the thought before it would begin another sample, so for a client that drops thoughts it has none.
    """

    def __init__(self, tool: str, arguments: Mapping[str, Any], *, thoughts: bool) -> None:
        """Prepare the replies; the first one calls a tool."""
        call = {"name": tool, "arguments": dict(arguments)}
        thought = THOUGHT if thoughts else ""
        self.call = f"{thought}Let me look.\n<tool_call>\n{json.dumps(call)}\n</tool_call>"
        self.told, self.shorter = f"{thought}{TOLD}", f"{thought}{SHORTER}"
        self.said: dict[str, str] = {}

    def __call__(self, prompt: str) -> str:
        """Return the reply to a rendered prompt."""
        self.said[prompt] = reply = self._reply(prompt)
        return reply

    def _reply(self, prompt: str) -> str:
        asked, reaction = prompt.rfind(ASKED), prompt.rfind(REACTION)
        if "<tools>" not in prompt or asked < 0:
            return ASIDE
        if reaction > asked:
            return self.shorter
        return self.told if "<tool_response>" in prompt[asked:] else self.call


def sampled(turn: Turn) -> SampledTurn:
    spans = [(span.version, span.start, span.end) for span in turn.weight_versions]
    return SampledTurn(turn.prompt_ids, turn.response_ids, turn.response_logprobs, spans)


def check_episode(server: StandInServer, model: Model) -> None:
    """Check what the ledger has of the episode."""
    turns = server.turns()
    for turn in turns:
        said = model.said[server.tokenizer.decode(turn.prompt_ids)]
        assert turn.response_ids == [
            *server.tokenizer.encode(said, add_special_tokens=False),
            server.tokenizer.eos_token_id,
        ]
        assert len(turn.response_logprobs) == len(turn.response_ids)
    main = sorted((turn for turn in turns if turn.kind == "main"), key=lambda turn: turn.created_at)
    assert [model.said[server.tokenizer.decode(turn.prompt_ids)] for turn in main] == [
        model.call,
        model.told,
        model.shorter,
    ]
    assert len({turn.session_id for turn in main}) == 1
    assert all(turn.next_state is None for turn in turns if turn.kind == "side")
    call, told, shorter = main
    assert [turn.finish_reason for turn in main] == ["tool_calls", "stop", "stop"]
    assert [message["role"] for message in call.next_state or []] == ["tool"]
    assert NOTE in content_text((call.next_state or [])[0]["content"])
    assert [message["role"] for message in told.next_state or []] == ["user"]
    assert REACTION in user_words((told.next_state or [])[0])
    assert (shorter.next_state, shorter.state) == (None, "waiting")
    assert [len(segment.turns) for segment in merge([sampled(call), sampled(told)])] == [2], "a forked sample"


def check_step(server: StandInServer, ledger: Path) -> None:
    """Train the two turns that have a reaction, and check that the batch holds them as the engine sampled them."""
    turns = [turn for turn in server.turns() if turn.next_state]
    data, metrics = train(ledger, turns)
    assert data["tokens"] == [[*turn.prompt_ids, *turn.response_ids] for turn in turns]
    assert data["response_lengths"] == [len(turn.response_ids) for turn in turns]
    assert data["rollout_log_probs"] == [pytest.approx(turn.response_logprobs) for turn in turns]
    assert math.isfinite(metrics["train/loss"])
    assert 0 < metrics["train/grad_norm"] < math.inf


@pytest.mark.parametrize("name", long_but(BY_NAME, *ONCE))
def test_an_episode_of_a_client(name: str, tmp_path: Path) -> None:
    client = BY_NAME[name]
    client.installed()
    model = Model(client.tool, client.arguments, thoughts=client.thoughts)
    with stand_in_server(tmp_path, model, context_length=CONTEXT) as server:
        server.tokenizer.chat_template = QWEN3_TEMPLATE  # it repeats what was said since the user's last words
        home = client.set_up(tmp_path / "home", server.url)
        (home.work / "note.txt").write_text(f"{NOTE}\n")
        asked, again = home.commands
        assert TOLD in home.run(asked)
        assert SHORTER in home.run(again)
        answered = [request for request in server.heard if request.body.get("messages") or request.body.get("input")]
        wait_until(lambda: len(server.turns()) >= len(answered), lambda: f"{len(server.turns())} of {len(answered)}")
        check_episode(server, model)
        check_step(server, tmp_path / "ledger.sqlite")


def play(tmp_path: Path, thoughts: bool, episode: Callable[[str], tuple[str, str]]) -> None:
    """Serve a gateway, play the episode of a library at its address, and check it."""
    model = Model(sdk_episodes.TOOL, sdk_episodes.ARGUMENTS, thoughts=thoughts)
    with stand_in_server(tmp_path, model, context_length=CONTEXT) as server:
        server.tokenizer.chat_template = QWEN3_TEMPLATE
        assert episode(server.url) == (TOLD, SHORTER)
        wait_until(lambda: len(server.turns()) == 3, lambda: f"{len(server.turns())} of 3")
        check_episode(server, model)
        check_step(server, tmp_path / "ledger.sqlite")


@pytest.mark.parametrize(
    ("episode", "thoughts"),
    [
        (sdk_episodes.openai_chat, False),
        (sdk_episodes.openai_responses, True),
        (sdk_episodes.anthropic_messages, True),
    ],
)
def test_an_episode_of_a_python_library(episode: sdk_episodes.Episode, thoughts: bool, tmp_path: Path) -> None:
    play(tmp_path, thoughts, lambda url: episode(url, ASKED, NOTE, REACTION))


@pytest.mark.parametrize(("dialect", "thoughts"), [("chat", False), ("responses", True), ("messages", True)])
def test_an_episode_of_a_javascript_library(dialect: str, thoughts: bool, tmp_path: Path) -> None:
    installed, node = node_packages("js_client"), shutil.which("node")
    if node is None:
        pytest.skip("no node on the PATH; install it (apt-get install nodejs npm)")
    script = REPOSITORY / "tests/integration/js_client/episode.mjs"

    def run(url: str) -> tuple[str, str]:
        words = {"ASKED": ASKED, "NOTE": NOTE, "REACTION": REACTION}
        environment = {**os.environ, "BASE_URL": url, "INSTALLED": str(installed), **words}
        done = subprocess.run([node, script, dialect], env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        told, shorter = json.loads(done.stdout)
        return told, shorter

    play(tmp_path, thoughts, run)
