"""What is told about a reply after the reaction to it: every piece of news once, and in words."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import pytest

from openclaw.chat.__main__ import MAX_WATCHED, Watch, Watched, news, quoted, settled
from openclaw.chat.server import ChatError, MissingRecordError

EMPTY = dict.fromkeys(("reason", "score", "score_source", "hint", "sample", "step", "weight_version"))


def outcome(state: str, **values: Any) -> dict[str, Any]:
    return {**EMPTY, "state": state, "judge_attempts": 0, **values}


JUDGED = outcome("judged", score=-1, sample="ready")
LIVE = {**JUDGED, "sample": "leased", "step": 3, "weight_version": "4"}


@pytest.mark.parametrize(
    ("told", "lines", "over"),
    [
        (outcome("waiting"), [], False),
        (outcome("pending"), [], False),
        (
            outcome("pending", judge_attempts=2),
            ['the judge failed on "no" and tries again; openclaw-rl inspect RUN shows its error'],
            False,
        ),
        (outcome("ended", reason="no_next_state"), [], True),
        (outcome("excluded", reason="evaluation"), ["not trained on: evaluation"], True),
        (JUDGED, ['judged: -1 (it learns from "no")'], False),
        (
            {**JUDGED, "score": None, "hint": "Be\nbrief."},
            ['judged: hint "Be brief." (it learns from "no")'],
            False,
        ),
        (
            outcome("judged", score=0, reason="score_zero"),
            ['judged: 0 (nothing to learn from "no": score_zero)'],
            True,
        ),
        (
            outcome("judged", score=-1, reason="probe"),
            ['judged: -1 (kept to compare weights, so it does not learn from "no": probe)'],
            True,
        ),
        (
            outcome("judged", reason="no_hint"),
            ['judged: no score (nothing to learn from "no": no_hint)'],
            True,
        ),
        (
            {**JUDGED, "sample": "dropped", "reason": "stale"},
            ['judged: -1 (it learns from "no")', 'not trained on "no": stale'],
            True,
        ),
        (LIVE, ['judged: -1 (it learns from "no")', 'learned from "no": weights 4'], True),
    ],
)
def test_the_words_for_an_outcome(told: dict[str, Any], lines: list[str], over: bool) -> None:
    watched = Watched('"no"')
    assert list(news(told, watched)) == lines
    assert settled(told) == over
    if not over:
        assert list(news(told, watched)) == [], "said once"


def test_a_long_reaction_is_cut() -> None:
    assert quoted("word " * 30).endswith('…"')
    assert "\n" not in quoted("a\nb")


class Source:
    """Answers with what the test queued for a reply; the last answer stays. An answer that is an error is raised."""

    def __init__(self, *answers: Any) -> None:
        self.answers = deque(answers)
        self.asked: list[str] = []
        self.used_up = threading.Event()

    def outcome(self, response_id: str) -> dict[str, Any]:
        self.asked.append(response_id)
        answer = self.answers[0]
        if len(self.answers) > 1:
            self.answers.popleft()
        else:
            self.used_up.set()
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_it_asks_until_the_weights_are_live(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openclaw.chat.__main__.FIRST_SECONDS", 0.001)
    source = Source(outcome("waiting"), ChatError("away"), outcome("pending"), JUDGED, JUDGED, LIVE)
    told: list[str] = []
    done = threading.Event()

    def announce(line: str) -> None:
        told.append(line)
        if line.startswith("learned"):
            done.set()

    watch = Watch(source, announce)
    watch.add("r", "no")
    assert done.wait(30)
    watch.add("r", "another reaction")
    watch.close()
    assert told == ['judged: -1 (it learns from "no")', 'learned from "no": weights 4']
    assert source.asked == ["r"] * 6


def test_a_server_that_cannot_tell_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openclaw.chat.__main__.FIRST_SECONDS", 0.001)
    source = Source(MissingRecordError("404: no"))
    told: list[str] = []
    watch = Watch(source, told.append)
    watch.add("r", "no")
    assert source.used_up.wait(30)
    watch.close()
    assert (told, source.asked) == ([], ["r"])


def test_the_number_of_replies_under_watch_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openclaw.chat.__main__.FIRST_SECONDS", 3600.0)
    watch = Watch(Source(JUDGED), print)
    for number in range(MAX_WATCHED + 3):
        watch.add(str(number), "no")
    assert len(watch._watched) == MAX_WATCHED
    watch.close()
