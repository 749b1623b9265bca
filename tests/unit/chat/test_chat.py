"""A conversation in the terminal with a real gateway: replies, thumbs, sessions, verdicts, weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from openclaw.credit.baseline import record_judged
from openclaw.ledger.records import Verdict
from openclaw.training.samples import make_sample
from tests.helpers.stand_in_server import StandInServer, stand_in_server
from tests.unit.chat.conftest import Chat

Talk = Callable[..., tuple[int, str]]
REPLY = "So **be** it."


def judge(gateway: StandInServer, score: int, hint: str | None = None) -> str:
    """Judge the newest turn that waits for it; return its id."""
    turn = [turn for turn in gateway.turns() if turn.state == "pending"][-1]
    sample = [make_sample(turn, float(score), score=score)] if score else []
    record_judged(gateway.ledger, turn.id, Verdict(score=score, hint=hint), sample, None if score else "score_zero")
    return turn.id


def contents(gateway: StandInServer) -> list[list[str]]:
    """Return what each chat completion was asked with."""
    return [[message["content"] for message in request.body["messages"]] for request in gateway.chats()]


def test_a_conversation_without_a_terminal(gateway: StandInServer, talk: Talk) -> None:
    before = len(gateway.chats())
    status, text = talk(gateway.url, ["Hello?", "", "  And now? ", "/quit", "never sent"])
    assert status == 0
    model = "tiny-policy"
    assert text.splitlines() == [
        f"{model} at {gateway.url}/v1; /help lists the commands",
        *[REPLY, "weights 1"],
        *[REPLY, "weights 1"],
    ]
    assert contents(gateway)[before:] == [["Hello?"], ["Hello?", REPLY, "And now?"]]
    first, second = gateway.chats()[before:]
    assert first.headers["x-session-id"] == second.headers["x-session-id"]
    assert (first.body["model"], first.body["stream"]) == (model, True)
    assert [turn.state for turn in gateway.turns()[-2:]] == ["pending", "ended"]


def test_the_end_of_the_input_ends_the_session(gateway: StandInServer, talk: Talk) -> None:
    assert talk(f"{gateway.url}/v1/", ["Hello?"], "--model", "another")[0] == 0
    assert gateway.chats()[-1].body["model"] == "another"
    assert gateway.turns()[-1].state == "ended"


def test_new_starts_a_clean_history_in_another_session(gateway: StandInServer, talk: Talk) -> None:
    talk(gateway.url, ["One.", "/new", "Two."])
    assert contents(gateway)[-1] == ["Two."]
    first, second = gateway.turns()[-2:]
    assert first.session_id != second.session_id
    assert first.state == "ended"


def test_thumbs_and_words_reach_the_last_reply(gateway: StandInServer, talk: Talk) -> None:
    status, text = talk(gateway.url, ["/up", "One.", "/down too long", "Two.", "+", "Three.", "-"])
    assert status == 0
    assert text.count("there is no reply to rate yet") == 1
    said = [gateway.ledger.feedback.of(turn.id) for turn in gateway.turns()[-3:]]
    assert [[(each.thumbs, each.text) for each in of] for of in said] == [
        [("down", "too long")],
        [("up", None)],
        [("down", None)],
    ]
    assert text.count("noted: thumbs down") == 2


def test_a_typed_thumb_is_no_message(gateway: StandInServer, talk: Talk) -> None:
    before = len(gateway.turns())
    status, text = talk(gateway.url, ["👍", "One.", "👍🏽", "Two.", ":-1:", "Three.", "👍 or not"])
    assert status == 0
    assert "there is no reply to rate yet" in text
    turns = gateway.turns()[before:]
    assert [turn.messages[-1]["content"] for turn in turns] == ["One.", "Two.", "Three.", "👍 or not"]
    said = [[each.thumbs for each in gateway.ledger.feedback.of(turn.id)] for turn in turns]
    assert said == [["up"], ["down"], [], []]


def test_a_thumb_on_a_trained_reply_counts_once_in_each_direction(gateway: StandInServer, talk: Talk) -> None:
    def typed(chat: Chat) -> Iterator[str]:
        yield "One."
        yield "+"
        judge(gateway, 1)
        for step, thumb in enumerate("-+-"):
            gateway.ledger.samples.claim(step, 1)
            yield thumb

    text = talk(gateway.url, typed)[1]
    assert (text.count("noted: thumbs up"), text.count("noted: thumbs down")) == (2, 1)
    assert "stored, but not learned from: already_trained" in text


def test_a_verdict_is_shown_when_it_arrives_and_then_the_weights(gateway: StandInServer, talk: Talk) -> None:
    def typed(chat: Chat) -> Iterator[str]:
        yield "One."
        yield "No bold text, please."
        judge(gateway, -1, hint="Write plainly.")
        yield from chat.until("judged:")
        gateway.ledger.samples.claim(100, 99)
        gateway.ledger.samples.record_step(100, "2", 1.0, 2.0)
        gateway.engine.version = "2"
        yield from chat.until("learned from")
        yield "Three."

    try:
        text = talk(gateway.url, typed)[1]
    finally:
        gateway.engine.version = "1"
    assert text.splitlines()[-5:] == [
        "weights 1",
        'judged: -1, hint "Write plainly." (it learns from "No bold text, please.")',
        'learned from "No bold text, please.": weights 2',
        REPLY,
        "the model has learned: weights 1 -> 2",
    ]


def test_a_verdict_without_a_sample_says_why(gateway: StandInServer, talk: Talk) -> None:
    def typed(chat: Chat) -> Iterator[str]:
        yield "One."
        yield "Two."
        judge(gateway, 0)
        yield from chat.until("judged:")

    assert 'judged: 0 (nothing to learn from "Two.": score_zero)\n' in talk(gateway.url, typed)[1]


def test_commands_that_do_not_exist_and_help(gateway: StandInServer, talk: Talk) -> None:
    before = len(gateway.chats())
    text = talk(gateway.url, ["/dwon", "/xyz", "/help"])[1]
    assert "no command /dwon; type /down\n" in text
    assert "no command /xyz; type /help\n" in text
    assert "/new     end this conversation and start another\n" in text
    assert len(gateway.chats()) == before


def test_a_path_is_a_message(gateway: StandInServer, talk: Talk) -> None:
    talk(gateway.url, ["/usr/bin is full"])
    assert contents(gateway)[-1] == ["/usr/bin is full"]


def test_an_undecodable_line_is_sent(gateway: StandInServer, talk: Talk) -> None:
    assert talk(gateway.url, ["caf\udce9"])[0] == 0
    assert contents(gateway)[-1] == ["caf?"]


def test_a_conversation_that_is_too_long(gateway: StandInServer, talk: Talk) -> None:
    status, text = talk(gateway.url, ["word " * 40000, "/new", "Hello?"])
    assert "the conversation is too long for the model; /new starts another" in text
    assert (status, contents(gateway)[-1]) == (1, ["Hello?"])


def test_a_server_that_asks_for_a_key(
    tmp_path: Path, talk: Talk, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with stand_in_server(tmp_path, lambda _: REPLY, api_key="k") as gateway:
        assert talk(gateway.url, ["Hello?"])[0] == 2
        assert "SGLANG_API_KEY is not set; type: export SGLANG_API_KEY=KEY" in capsys.readouterr().err
        monkeypatch.setenv("SGLANG_API_KEY", "wrong")
        assert talk(gateway.url, ["Hello?"])[0] == 2
        assert "the key in SGLANG_API_KEY is not one" in capsys.readouterr().err
        monkeypatch.setenv("SGLANG_API_KEY", "k")
        assert talk(gateway.url, ["Hello?", "+"])[0] == 0


def test_lessons_are_listed_and_changed(gateway: StandInServer, talk: Talk) -> None:
    lines = [
        "/lessons",
        "/lessons auto",
        "/lessons add Keep answers short.",
        "/lessons add Answer in German.",
        "Hello?",
    ]
    lines += [
        "/lessons off 1",
        "/lessons rm 2",
        "/lessons on 1",
        "/lessons rm 7",
        "/lessons add See https://evil.example/.",
    ]
    status, text = talk(gateway.url, [*lines, "/lessons what", "/lessons rm 1", "/lessons off"])
    assert status == 0
    assert "lessons: off; 0 lessons\n" in text
    assert "1. Keep answers short.  [trial]\n2. Answer in German.  [trial]\nlessons: auto; 2 lessons\n" in text
    assert ", 2 lessons\n" in text.split("So **be** it.")[1], "the reply tells what stood in its prompt"
    assert "1. Keep answers short.  [resting (off)]\n" in text
    assert "1. Keep answers short.  [trial]\nlessons: auto; 1 lesson\n" in text
    assert "no lesson 7; /lessons numbers them\n" in text
    assert "error: 400: a lesson has no link;" in text
    assert "type /lessons, /lessons auto," in text
    assert text.endswith("lessons: off; 0 lessons\n")
