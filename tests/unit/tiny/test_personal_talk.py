"""Sessions are counted one after the other, each after the run has settled; scores come after exactly so many updates."""

from __future__ import annotations

import json
import os
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import AsyncOpenAI
from simulated_users.reading import find_user
from student import Refused, Student

from groundwork.exceptions import ConfigError
from lab.personal import run as personal_run
from lab.personal.run import COUNTED, COUNTED_WITH_LESSONS, Speaker, Talk, complaints_until, sessions_to_follow
from lab.personal.sizes import Sizes
from openclaw.gate.decision import TOO_FEW
from openclaw.gateway.auth import Keyring
from openclaw.ledger.store import Ledger

GOOD, BAD = "Okay captain, you start with 3 and add 4, so 3 + 4 = 7.", "Sure!\n\n\\boxed{7}"


@pytest.mark.parametrize(
    ("liked", "sessions"),
    [("111", 3), ("0111", 4), ("110111", 6), ("11011011", None), ("", None), ("11", None), ("0001110", 6)],
)
def test_three_in_a_row(liked: str, sessions: int | None) -> None:
    assert sessions_to_follow([each == "1" for each in liked]) == sessions


def test_complaints_of_the_first_sessions() -> None:
    opinions = {0: [False, False], 1: [True, False], 2: [True], 3: [False]}
    assert [complaints_until(opinions, sessions) for sessions in range(5)] == [0, 2, 3, 3, 4]


@given(st.lists(st.booleans(), max_size=40))
def test_the_count_agrees_with_a_search_in_text(liked: list[bool]) -> None:
    at = "".join("1" if each else "0" for each in liked).find("111")
    assert sessions_to_follow(liked) == (None if at < 0 else at + 3)


class Run:
    """A run that learns: an update per batch; the replies follow every rule from ``good_after`` updates on."""

    def __init__(self, good_after: int, batch: int = 4) -> None:
        self.batch, self.good_after = batch, good_after
        self.updates = self.ready = self.unsettled = 0
        self.open: set[str] = set()
        self.most_open = 0
        self.main: list[str] = []
        self.scored_with: list[str | None] = []
        self.status = 200

    async def settle(self) -> None:
        assert not self.open, "a session is still held"
        self.ready += self.unsettled
        self.unsettled = 0
        before = self.updates
        while self.ready >= self.batch:
            self.ready -= self.batch
            self.updates += 1
        assert self.updates <= before + 1, "two updates passed between two looks"

    def handle(self, request: httpx.Request) -> httpx.Response:
        if self.status != 200:
            return httpx.Response(self.status, json={"error": {"message": "away"}})
        body, headers = json.loads(request.content), request.headers
        session = headers["x-session-id"]
        if headers["x-turn-type"] == "side":
            self.scored_with.append(headers.get("x-openclaw-lessons"))
        if headers["x-turn-type"] == "main":
            if len(body["messages"]) == 1:
                self.open.add(session)
                self.main.append(session)
                self.most_open = max(self.most_open, len(self.open))
            else:
                self.unsettled += 1
            if headers.get("x-session-done"):
                self.open.remove(session)
        text = GOOD if self.updates >= self.good_after else BAD
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
        usage = {"prompt_tokens": 5, "completion_tokens": 20, "total_tokens": 25}
        reply = {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
        return httpx.Response(200, json={**reply, "usage": usage}, headers={"x-weight-version": str(self.updates)})


async def hold(
    run: Run, users: list[str], sizes: Sizes, trained: bool = True, **options: Any
) -> tuple[list[Speaker], list[str]]:
    """Hold the talk of a run; return the speakers and what was told."""
    http = httpx.AsyncClient(transport=httpx.MockTransport(run.handle))
    told: list[str] = []
    async with AsyncOpenAI(base_url="http://test/v1", api_key="x", max_retries=0, http_client=http) as client:
        students = [Student(client, "m", user=user, trained=trained) for user in map(find_user, users)]
        speakers = [
            Speaker(user, student, client) for user, student in zip(map(find_user, users), students, strict=True)
        ]
        await Talk("m", speakers, run if trained else None, sizes, told.append, **options).hold()
    return speakers, told


async def test_a_joint_count_in_turn() -> None:
    """Two samples a session: after the second session, the first update; the third of each user is the first good one."""
    run = Run(good_after=2)
    speakers, _ = await hold(run, ["student", "captain"], Sizes(score_after=(2, 5), heldout=3, parallel=4))
    first, second = speakers
    assert (first.liked, second.liked) == ([False, False, True, True, True], [False, False, True, True, True])
    assert (first.sessions, second.sessions) == (5, 5)
    assert run.main[:4] == ["student-0-0", "captain-0-0", "student-0-1", "captain-0-1"]
    assert run.updates == 5
    assert {after: score["updates"] for after, score in first.scores.items()} == {"0": 0, "2": 2, "5": 5}
    assert [first.scores[after]["liked"] for after in ("0", "2", "5")] == [0, 3, 3]
    assert first.scores["0"]["problems"] == 3
    assert len(set(run.main)) == len(run.main), "each session has a number of its own"


async def test_scores_after_the_count_come_without_lessons_and_with_them() -> None:
    run = Run(good_after=1)
    [speaker], _ = await hold(run, ["captain"], Sizes(score_after=(), heldout=2), scores_counted=True)
    assert {*speaker.scores} == {"0", COUNTED, COUNTED_WITH_LESSONS}
    assert speaker.scores[COUNTED]["updates"] == run.updates > 0
    assert run.scored_with == [None] * 4 + ["on"] * 2
    assert speaker.sessions == 5
    assert speaker.complaints == 4, "two sessions of two disliked replies"


async def test_parallel_sessions_come_after_the_count_and_never_skip_an_update() -> None:
    run = Run(good_after=1, batch=8)
    speakers, _ = await hold(run, ["student"], Sizes(score_after=(1, 9), heldout=2, parallel=8))
    assert speakers[0].sessions == 7
    assert run.updates == 9
    assert speakers[0].counted == 7


async def test_the_count_goes_on_until_every_user_is_content() -> None:
    run = Run(good_after=2)
    sizes = Sizes(most_sessions=8, score_after=(1,), heldout=2, more_sessions=0)
    speakers, _ = await hold(run, ["student", "doctor"], sizes)
    assert [speaker.sessions for speaker in speakers] == [5, None], "the replies call nobody a doctor"
    assert [speaker.counted for speaker in speakers] == [8, 8]


async def test_a_rule_that_is_never_followed_is_no_number() -> None:
    run = Run(good_after=100)
    sizes = Sizes(most_sessions=6, score_after=(1, 50), heldout=2, more_sessions=10)
    speakers, told = await hold(run, ["student"], sizes)
    assert speakers[0].sessions is None
    assert "student not in 6" in told[-2] + told[-1] + "".join(told)
    assert set(speakers[0].scores) == {"0", "1"}, "a score that was not reached is absent"


async def test_the_base_model_is_not_trained() -> None:
    run = Run(good_after=0)
    speakers, _ = await hold(run, ["student", "captain"], Sizes(most_sessions=5, heldout=2), trained=False)
    assert run.main == []
    assert [speaker.sessions for speaker in speakers] == [3, 3]
    assert [len(speaker.liked) for speaker in speakers] == [5, 5]
    assert set(speakers[0].scores) == {"0"}


@pytest.mark.parametrize("trained", [True, False])
async def test_a_refusal_ends_the_talk(trained: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(good_after=1)
    monkeypatch.setattr(Talk, "_score", lambda self, after: run.settle())
    run.status = 503
    with pytest.raises(Refused, match="student-0-"):
        await hold(run, ["student"], Sizes(most_sessions=3), trained=trained)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--users", "nobody"], "there is no user nobody"),
        (["--score-after", "16,8"], "give ascending numbers of updates, such as 8,16"),
        (["--most-sessions", "0"], "must be 1 or more"),
        (["--method", "nothing"], "nothing"),
    ],
)
def test_what_is_wrong_is_told_before_anything_starts(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        personal_run.parse(["--method", "combine", "--users", "student", "--report", "r.json", *words])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_one_temperature_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    student = find_user("student")
    people: list[Any] = [student, student.model_copy(update={"temperature": 0.5})]
    monkeypatch.setenv("OPENCLAW_TEMPERATURE", "0.6")
    personal_run.set_temperature(people)
    assert personal_run.os.environ["OPENCLAW_TEMPERATURE"] == "0.5"
    with pytest.raises(ConfigError, match=r"temperatures \[0.5, 0.7\]; a run has one"):
        personal_run.set_temperature([*people, student.model_copy(update={"temperature": 0.7})])


def test_each_user_has_a_key_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(personal_run.KEYS_VARIABLE, raising=False)
    written = personal_run.write_keys(tmp_path / "run", [find_user("student"), find_user("captain")])
    keys = Keyring(None, os.environ[personal_run.KEYS_VARIABLE])
    found = {name: keys.check({"authorization": f"Bearer {key}"}) for name, key in written.items()}
    assert {name: (client.owner, client.admin) for name, client in found.items()} == {
        "student": ("student", False),
        "captain": ("captain", False),
        "admin": ("admin", True),
    }


def test_a_run_tells_what_the_gate_decided_about_each_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENCLAW_GATE_ERRORS", "1")
    numbers = [(0.2, 0.1, 0.0), (-0.2, 0.1, 0.0), (-0.2, 0.3, 0.0), (-0.2, 0.1, 1.0)]
    with closing(Ledger(tmp_path / "ledger.sqlite")) as ledger:
        ledger.decisions.record(-1, "start", "0", "the first weights")
        for batch, (margin, error, too_few) in enumerate(numbers):
            metrics = {"gate/margin": margin, "gate/margin_error": error, TOO_FEW: too_few}
            kind: Literal["step", "refused"] = "refused" if batch == 1 else "step"
            ledger.decisions.record(batch, kind, str(batch + 1), "a test", metrics=metrics)
        found = personal_run.gate_decisions(ledger)
    told = [(each["accepted"], each["margin"], each["fell"]) for each in found]
    assert told == [(True, 0.2, False), (False, -0.2, True), (True, -0.2, False), (True, None, False)]
