"""The real OpenClaw as the client: its turns are told apart, and what it hears comes from weights that its turns made.

One OpenClaw with two agents. ``openclaw-rl`` talks to our gateway before a stand-in engine, which calls tools when the
test says so; ``tiny`` talks to a whole run of the launcher on the tiny model, its prompt cut to what that can hold.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lab.testkit.live_run import LiveRun, wait_until
from openclaw.ledger.records import Turn
from openclaw.ledger.store import Ledger
from openclaw.messages.classify import side_kind, spoken, user_words
from openclaw.messages.text import content_text
from openclaw.sessions import stated_identity
from tests.helpers.node import node_packages
from tests.helpers.openclaw_client import OpenClaw, configuration, provider
from tests.helpers.stand_in_server import Heard, StandInServer, stand_in_server

pytestmark = pytest.mark.timeout(1500)

FLUSH_TOKENS = 21_500
READ = "Please read the note."
NOTE = "Buy oat milk."
COUNT, AFTER = "How many foxes?", "And how many dogs?"
OUR_HEADERS = ("x-session-id", "x-turn-type")
BATCH_SIZE = 2


def answer(prompt: str) -> str:
    """Read the note once when asked to, else say something."""
    asked = prompt.rfind(READ)
    if asked < 0 or "<tool_response>" in prompt[asked:]:
        return "Here you are."
    return 'Let me look.\n<tool_call>\n{"name": "read", "arguments": {"path": "note.txt"}}\n</tool_call>'


@dataclass
class Story:
    """What OpenClaw asked, what our servers stored, and which weights answered."""

    heard: list[Heard]
    turns: list[Turn]
    note_answer: str
    state_after_reset: str
    live_turns: list[Turn]
    steps: list[int]
    version_before: int
    version_after: int


def user_texts(messages: list[dict[str, Any]]) -> list[str]:
    return [content_text(message["content"]) for message in spoken(messages) if message["role"] == "user"]


def talk_to_the_stand_in(openclaw: OpenClaw, server: StandInServer) -> tuple[str, str]:
    """Every kind of turn; return the answer about the note, and the state of its turn once the session was reset."""

    def kinds() -> list[str | None]:
        return [side_kind(request.body["messages"]) for request in server.chats()]

    def wait_for(kind: str) -> None:
        wait_until(
            lambda: kind in kinds() and len(server.turns()) >= len(kinds()),
            lambda: f"no {kind} turn, only {kinds()}\n{openclaw.tail()}",
        )

    openclaw.say("openclaw-rl", "alice", "What is two and two?")
    openclaw.say("openclaw-rl", "alice", "Shorter, please.")
    for workspace in wait_until(lambda: list(openclaw.home.glob(".openclaw/workspace*")), lambda: "no workspace"):
        (workspace / "note.txt").write_text(NOTE)
    note_answer = openclaw.say("openclaw-rl", "alice", READ)
    openclaw.run("system", "event", "--text", "The oven is hot.", "--mode", "now")
    wait_for("heartbeat")
    openclaw.run(
        *("cron", "add", "--name", "tick", "--at", "1s", "--message", "Say tick."),
        *("--session", "isolated", "--no-deliver"),
    )
    wait_for("cron")

    room = FLUSH_TOKENS - len(server.turns()[0].prompt_ids)
    sentence = "The quick brown fox jumps over the lazy dog. "
    repeated = room // len(server.tokenizer.encode(sentence, add_special_tokens=False))
    openclaw.say("openclaw-rl", "bob", sentence * repeated)
    wait_for("memory_flush")

    sessions = {entry["key"].rpartition(":")[2]: entry for entry in openclaw.call("sessions.list")["sessions"]}
    session = sessions["alice"]
    openclaw.say("openclaw-rl", "bob", COUNT)
    assert openclaw.call("sessions.compact", key=sessions["bob"]["key"])["compacted"]
    wait_for("compaction")
    openclaw.say("openclaw-rl", "bob", AFTER)
    openclaw.call("sessions.reset", key=session["key"])
    last = next(turn for turn in reversed(server.turns()) if turn.session_id == session["sessionId"])
    wait_until(
        lambda: server.ledger.turns.get(last.id).state != "waiting",
        lambda: f"nobody said that the session ended\n{openclaw.tail()}",
    )
    return note_answer, server.ledger.turns.get(last.id).state


def train_through(openclaw: OpenClaw, run: LiveRun) -> tuple[list[Turn], int, int]:
    """Talk until an answer comes from weights that were trained on it; return the turns, and the first and last version."""
    from word_problems.feedback import complaint
    from word_problems.problems import draw_short

    rng, ledger, number = random.Random(0), Ledger(run.ledger_path), 0

    def turns() -> list[Turn]:
        return [record.turn for record in ledger.views.turn_records()]

    def version(turn: Turn) -> int:
        return int(turn.weight_versions[-1].version)

    def talk() -> bool:
        nonlocal number
        number += 1
        openclaw.say("tiny", f"user{number}", draw_short(rng, "held").question)
        for _ in range(2):
            openclaw.say("tiny", f"user{number}", complaint(rng, "held"))
        return bool(run.steps()) and version(turns()[-1]) > version(turns()[0])

    wait_until(talk, lambda: f"no newer weights answer: {ledger.views.counts()}\n{run.text()[-4000:]}")
    found = turns()
    ledger.close()
    return found, version(found[0]), version(found[-1])


@pytest.fixture(scope="module")
def story(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    from lab.tiny_models.build import ensure_built

    installed, model = node_packages("openclaw"), ensure_built(0)
    folder = tmp_path_factory.mktemp("openclaw")
    run = LiveRun(repository, folder / "run", model, "combine", BATCH_SIZE=BATCH_SIZE, NUM_ROLLOUT=1000)
    try:
        with stand_in_server(folder, answer, context_length=65536) as server:
            plugins = {
                repository / "extensions/rl-training-headers": {"providers": ["openclaw-rl", "tiny"]},
                repository / "tests/openclaw/short-prompt": {},
            }
            providers = {
                "openclaw-rl": provider(f"{server.url}/v1"),
                "tiny": provider(run.base_url, thinking=False),
            }
            openclaw = OpenClaw(installed, folder / "home", configuration(plugins, providers))
            openclaw.start()
            try:
                openclaw.wait_ready()
                note_answer, state = talk_to_the_stand_in(openclaw, server)
                run.wait_ready()
                live, before, after = train_through(openclaw, run)
            finally:
                openclaw.stop()
            yield Story(server.chats(), server.turns(), note_answer, state, live, run.steps(), before, after)
    finally:
        if run.process.poll() is None:
            run.stop()


def test_every_request_is_a_turn_of_its_session_and_kind(story: Story) -> None:
    assert len(story.turns) == len(story.heard) >= 8
    by_messages = {json.dumps(turn.messages): turn for turn in story.turns}
    for request in story.heard:
        turn = by_messages[json.dumps(request.body["messages"])]
        assert turn.session_id == request.headers["x-session-id"]
        assert turn.kind == request.headers["x-turn-type"]


def test_the_extension_knows_whose_turn_it_is(story: Story) -> None:
    kinds = {(request.headers["x-turn-type"], side_kind(request.body["messages"])) for request in story.heard}
    assert kinds >= {
        ("main", None),
        ("side", "heartbeat"),
        ("side", "cron"),
        ("side", "memory_flush"),
        ("side", "compaction"),
    }
    assert all((kind == "side") == (what is not None) for kind, what in kinds)


def test_sessions_are_found_without_our_headers_too(story: Story) -> None:
    for request in story.heard:
        others = {name: value for name, value in request.headers.items() if name not in OUR_HEADERS}
        if request.headers["x-turn-type"] == "main":
            messages = request.body["messages"]
            by_affinity, by_text = (stated_identity(headers, None, messages) for headers in (others, {}))
            assert (by_affinity.origin, by_text.origin) == ("affinity", "runtime")
            assert by_affinity.session_id == by_text.session_id == request.headers["x-session-id"]


def test_what_follows_a_reply_is_its_next_state(story: Story) -> None:
    first, second, call, follow_up = [
        turn for turn in story.turns if turn.kind == "main" and "two and two" in user_texts(turn.messages)[0]
    ]
    assert [content_text(message["content"])[-len("Shorter, please.") :] for message in first.next_state or []] == [
        "Shorter, please."
    ]
    assert second.next_state
    assert content_text(second.next_state[-1]["content"]).endswith(READ)
    assert call.finish_reason == "tool_calls"
    assert [(message["role"], NOTE in content_text(message["content"])) for message in call.next_state or []] == [
        ("tool", True)
    ]
    assert story.note_answer == follow_up.response_message["content"] == "Here you are."


def test_a_compaction_parts_no_reply_from_its_next_state(story: Story) -> None:
    (asked,) = [turn for turn in story.turns if turn.kind == "main" and COUNT in user_texts(turn.messages)[-1]]
    (later,) = [turn for turn in story.turns if turn.kind == "main" and AFTER in user_texts(turn.messages)[-1]]
    assert len(later.messages) < len(asked.messages) + 2, "the history was not rewritten"
    assert later.session_id == asked.session_id
    assert [user_words(message) for message in asked.next_state or []] == [AFTER]


def test_the_end_of_a_session_arrives(story: Story) -> None:
    assert story.state_after_reset == "ended"


def test_its_turns_train_the_model_that_answers_next(story: Story) -> None:
    assert story.steps
    assert story.version_before == 0
    assert story.version_after >= 1
    assert {turn.kind for turn in story.live_turns} == {"main"}
    assert len({turn.session_id for turn in story.live_turns}) >= 2
