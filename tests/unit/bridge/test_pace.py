"""Which batch is due, and when it may be trained: by a clock that the tests turn."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundwork.exceptions import ConfigError
from groundwork.paused import pause, paused_people, resume, waiting
from lab.testkit.ledger_records import USER_NEXT, judged_sample, make_turn
from openclaw.config.runtime import RuntimeConfig
from openclaw.config.train_when import TrainWhen
from openclaw.gateway.under_way import InFlightRequest
from openclaw.ledger.samples import insert_sample
from openclaw.ledger.store import Ledger
from openclaw.owners import LOCAL, stored_id
from openclaw.training import rollout
from openclaw.training.pace import LATE_SECONDS, Claimant, Due, Pace, PaceSettings, after_turns, next_of
from openclaw.training.rollout import LedgerDataSource, LiveRollout
from openclaw.training.samples import make_sample
from slime.args import Arguments
from tests.helpers.rollout_args import rollout_args

LIVE = LiveRollout("m.M")
BATCH = 4
QUIET = 60.0
SETTINGS = PaceSettings(by_session=True, quiet_seconds=QUIET, passes=3)


class Scene:
    """A ledger, a clock, and the requests under way. A recorded turn ends at 101 s."""

    def __init__(self, folder: Path, settings: PaceSettings = SETTINGS, *, per_person: bool = False) -> None:
        self.now = 110.0
        self.requests: list[InFlightRequest] = []
        self.ledger = Ledger(folder / "ledger.sqlite", clock=lambda: self.now)
        self.pace = Pace(
            self.ledger, str(folder), settings, lambda: self.requests, lambda: self.now, per_person=per_person
        )

    def say(self, person: str, *names: str, session: str = "s") -> None:
        """Record judged turns with a sample each."""
        for name in names:
            judged_sample(self.ledger, f"{person}-{name}", session_id=stored_id(person, session))

    def practise(self, turn_id: str, count: int) -> None:
        """Add practice samples in one transaction."""
        sample = make_sample(self.ledger.turns.get(turn_id), 0.0)
        with self.ledger.transaction() as connection:
            for _ in range(count):
                insert_sample(self.ledger.database, connection, turn_id, sample, origin="practice")

    def due(self, rollout_id: int = 0) -> Due | None:
        return self.pace.due(rollout_id, BATCH)

    def claim(self, rollout_id: int, due: Due | None) -> list[str]:
        assert due is not None
        samples = self.ledger.samples.claim(rollout_id, due.count, person=due.person, origin=due.origin)
        return [sample.metadata["turn_id"] for sample in samples]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_a_quiet_session_is_a_step_and_other_people_wait(scene: Scene) -> None:
    scene.say("alice", "0", "1")
    scene.now = 101.0 + QUIET - 1
    assert scene.due() is None
    scene.say("bob", "0", session="later")
    with scene.ledger.transaction() as connection:
        connection.execute("UPDATE turns SET finished_at = 150.0 WHERE id = 'bob-0'")
    scene.now += 1
    due = scene.due()
    assert due == Due(2, "alice", passes=1)
    assert scene.claim(0, due) == ["alice-0", "alice-1"]
    assert scene.due(1) is None
    assert scene.ledger.samples.ready_count("bob") == 1


def test_a_turn_that_waits_for_the_judge_holds_its_session_back(scene: Scene) -> None:
    scene.say("alice", "0")
    scene.ledger.turns.record(make_turn("last", session_id=stored_id("alice", "s")))
    scene.now = 500.0
    assert scene.due() == Due(1, "alice", passes=1), "a last turn without a reaction is not waited for"
    scene.ledger.turns.record_next_state("last", USER_NEXT, 499.0)
    assert scene.due() is None


def test_who_waits_for_a_reply_is_not_quiet(scene: Scene) -> None:
    scene.say("alice", "0")
    scene.say(LOCAL, "0")
    scene.now = 500.0
    scene.requests = [InFlightRequest("r", "alice/agent", "POST /v1/chat/completions", 499.0)]
    assert scene.due() == Due(1, LOCAL, passes=1)
    scene.requests.append(InFlightRequest("r", "local", "POST /v1/chat/completions", 499.0))
    assert scene.due() is None
    scene.requests = [InFlightRequest("r", "alice", "GET /v1/rollouts", 499.0)]
    assert scene.due() is not None


def test_a_session_that_is_over_is_not_waited_for(scene: Scene) -> None:
    scene.say("alice", "0")
    stored = stored_id("alice", "s")
    scene.ledger.sessions.end(stored, 105.0)
    assert scene.due() is None, "its session may still give samples as a whole"
    assert scene.ledger.judging.close_session(stored, [], 106.0)
    assert scene.due() == Due(1, "alice", passes=1)


def test_practice_is_a_batch_of_its_own_whatever_the_pace(tmp_path: Path) -> None:
    scene = Scene(tmp_path, replace(SETTINGS, by_session=False))
    scene.say("alice", "0")
    scene.practise("alice-0", 9)
    due = scene.due()
    assert due == Due(9, "alice", "practice", passes=3)
    assert scene.claim(0, due) == ["alice-0"] * 9
    assert scene.due(1) is None
    assert scene.due(0) == due, "claimed again by whoever died before the step"


def test_a_batch_that_lost_samples_does_not_wait_for_others(scene: Scene) -> None:
    scene.say("alice", "0", "1")
    scene.now = 500.0
    scene.claim(0, scene.due())
    scene.ledger.samples.drop(1, "stale", 0)
    scene.say("alice", "2")
    assert scene.due() == Due(1, "alice", passes=1)


@pytest.mark.parametrize("others", [("bob", "bob"), ("alice", "bob"), ("alice", "alice")])
@pytest.mark.parametrize("loss", ["stale", "deleted"])
def test_a_full_batch_that_lost_a_sample_is_filled_again(scene: Scene, others: tuple[str, str], loss: str) -> None:
    """Also if all that is left of it is one person's; what is held looks the same to a process that starts."""
    scene.say("alice", "0", "1")
    for number, person in enumerate(others, start=2):
        scene.say(person, str(number), session="last" if number == 3 else "s")
    assert scene.due() == Due(BATCH)
    scene.claim(0, scene.due())
    assert scene.due() == Due(BATCH), "the rollout manager was killed, and asks again"
    if loss == "stale":
        scene.ledger.samples.drop(4, "stale", 0)
    else:
        scene.ledger.sessions.forget(stored_id(others[1], "last"))
    scene.now = 500.0
    assert scene.due() is None
    scene.say("carol", "0")
    assert scene.due() == Due(BATCH)
    assert scene.claim(0, scene.due())[-1] == "carol-0"


def test_a_persons_batch_of_an_episode_stays_the_persons(scene: Scene) -> None:
    """An episode is one rollout, of however many samples."""
    scene.say("alice", *"01234")
    with scene.ledger.transaction() as connection:
        connection.execute("UPDATE samples SET episode = 'e' WHERE id > 1")
    scene.now = 500.0
    due = scene.due()
    assert due == Due(2, "alice", passes=1)
    scene.claim(0, due)
    scene.ledger.samples.drop(1, "stale", 0)
    assert scene.due() == Due(1, "alice", passes=1)


def test_without_a_pace_only_a_full_batch_is_due(tmp_path: Path) -> None:
    scene = Scene(tmp_path, replace(SETTINGS, by_session=False))
    scene.say("alice", "0", "1", "2")
    scene.now = 9000.0
    assert scene.due() is None
    scene.say("bob", "0")
    assert scene.due() == Due(BATCH)
    assert len(scene.claim(0, Due(BATCH))) == BATCH
    scene.ledger.samples.drop(1, "stale", 0)
    assert scene.due() is None
    scene.say("bob", "1")
    assert scene.due() == Due(BATCH), "three of it are held"


def claimant(person: str | None, since: float) -> Claimant:
    return Claimant(Due(1, person), since)


def test_the_order_is_late_then_fewest_tokens_then_everybody() -> None:
    tokens = {"alice": 500, "bob": 20}
    waiting_now = [claimant("alice", 10.0), claimant(None, 5.0), claimant("bob", 30.0)]
    assert next_of(waiting_now, 40.0, lambda: tokens) == Due(1, "bob")
    assert next_of([claimant("carol", 39.0), *waiting_now], 40.0, lambda: tokens) == Due(1, "carol")
    assert next_of(waiting_now[:2], 40.0, lambda: tokens) == Due(1, "alice")
    assert next_of(waiting_now, 605.0, lambda: tokens) == Due(1, None), "ten minutes"
    assert next_of([], 40.0, lambda: tokens) is None


def test_a_noisy_person_goes_after_a_quiet_one(scene: Scene) -> None:
    """Alice's step of before counts for an hour, and practice once a pass."""
    scene.say("alice", "0", "1", session="old")
    scene.now = 200.0
    scene.claim(0, scene.due())
    scene.ledger.samples.record_step(0, "2", 200.0, 200.0)
    scene.say("alice", "2")
    scene.now = 300.0
    scene.say("bob", "0")
    assert scene.due(1) == Due(1, "bob", passes=1)
    assert scene.ledger.waiting.tokens_since(0.0, 3) == {"alice": 14}
    assert scene.ledger.waiting.tokens_since(201.0, 3) == {}
    scene.practise("bob-0", 2)
    scene.claim(1, Due(2, "bob", "practice"))
    assert scene.ledger.waiting.tokens_since(201.0, 3) == {"bob": 42}, "its step is not live yet"


def test_who_is_paused_takes_no_part_and_the_others_go_on(scene: Scene, tmp_path: Path) -> None:
    scene.say("alice", *"012")
    scene.say("bob", "0")
    scene.practise("alice-0", 2)
    scene.now = 500.0
    pause(tmp_path, 3, "train/ppo_kl>0.5 (it is 2)", "alice")
    assert scene.due() == Due(1, "bob", passes=1)
    scene.claim(0, scene.due())
    assert scene.due(1) is None
    assert resume(tmp_path, "alice") is not None
    assert scene.due(1) in (Due(2, "alice", "practice", passes=3), Due(3, "alice", passes=1))


def test_with_an_adapter_per_person_a_full_batch_is_one_persons(tmp_path: Path) -> None:
    scene = Scene(tmp_path, replace(SETTINGS, by_session=False), per_person=True)
    scene.say("alice", "0", "1", "2")
    scene.say("bob", "0", "1", "2")
    scene.now = 9000.0
    assert scene.due() is None, "six samples are nobody's full batch"
    scene.say("bob", "3", "4")
    assert scene.due() == Due(BATCH, "bob")
    assert scene.claim(0, scene.due()) == ["bob-0", "bob-1", "bob-2", "bob-3"]
    assert scene.due() == Due(BATCH, "bob"), "the rollout manager was killed, and asks again"
    scene.ledger.samples.drop(4, "stale", 0)
    scene.say("bob", "5")
    assert scene.due() == Due(BATCH - 1, "bob", passes=1), "nobody waits until bob says more"
    scene.say("alice", "3")
    assert scene.due(1) == Due(BATCH, "alice")


def test_a_persons_flood_of_yesterday_does_not_wait_since_yesterday(tmp_path: Path) -> None:
    scene = Scene(tmp_path, replace(SETTINGS, by_session=False), per_person=True)
    scene.say("alice", *map(str, range(4 * BATCH)))
    scene.now = 9000.0
    scene.say("bob", *"0123")
    scene.now += LATE_SECONDS + 1
    first = scene.due()
    assert first == Due(BATCH, "alice"), "it waits for longer"
    scene.claim(0, first)
    scene.pace.taken(first)
    scene.ledger.samples.record_step(0, "1", scene.now, scene.now)
    assert scene.due(1) == Due(BATCH, "bob")


STEP_SECONDS = 60.0


@st.composite
def days(draw: st.DrawFn) -> tuple[dict[str, list[float]], list[float]]:
    """Return when each person's batches become due, some people's all at once, and how long steps take."""
    people = draw(st.integers(2, 6))
    due: dict[str, list[float]] = {}
    for number in range(people):
        if draw(st.booleans()):
            due[str(number)] = [draw(st.floats(0, 600))] * draw(st.integers(20, 80))
        else:
            due[str(number)] = sorted(draw(st.lists(st.floats(0, 5000), min_size=1, max_size=5)))
    return due, draw(st.lists(st.floats(1, STEP_SECONDS), min_size=1, max_size=8))


def longest_wait(due: dict[str, list[float]], seconds: list[float], *, fair: bool) -> float:
    """Train everybody's batches one after another, and return the longest time that a person's next one waited."""
    now, longest, taken, trained = 0.0, 0.0, dict[str, float](), list[tuple[float, str]]()
    left = {person: list(times) for person, times in due.items()}
    for number in range(sum(map(len, due.values()))):
        now = max(now, min(times[0] for times in left.values() if times))
        claimants = [claimant(person, times[0]) for person, times in left.items() if times and times[0] <= now]
        if fair:
            claimants = after_turns(claimants, taken)
        lately = Counter(person for at, person in trained if at > now - 3600)
        chosen = next_of(claimants, now, lambda lately=lately: lately)
        assert chosen is not None
        person = str(chosen.person)
        longest = max(longest, now - max(left[person].pop(0), taken.get(person, 0.0)))
        taken[person] = now
        trained.append((now, person))
        now += seconds[number % len(seconds)]
    return longest


@given(days())
def test_nobody_waits_behind_a_flood(day: tuple[dict[str, list[float]], list[float]]) -> None:
    """Once late, a person's batch is behind at most one batch of each other person, and the step that is under way."""
    due, seconds = day
    assert longest_wait(due, seconds, fair=True) <= LATE_SECONDS + len(due) * STEP_SECONDS + 1e-6


def test_an_old_flood_would_starve_the_others_if_its_wait_never_began_anew() -> None:
    due = {"flood": [0.0] * 100, "other": [1000.0]}
    assert longest_wait(due, [STEP_SECONDS], fair=False) > 3000
    assert longest_wait(due, [STEP_SECONDS], fair=True) <= LATE_SECONDS + 2 * STEP_SECONDS


@pytest.mark.parametrize("text", ["", "25:00-06:00", "22:00", "06:00-06:00", "22:60-06:00", "night"])
def test_hours_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match=r"OPENCLAW_TRAIN_WHEN=.* is no time; write always, idle or hours"):
        TrainWhen.read(text)


def at(hour: int, minute: int = 0) -> float:
    return time.mktime((2026, 11, 29, hour, minute, 0, 0, 0, -1))


def test_hours_of_the_day_may_go_over_midnight() -> None:
    night, day = TrainWhen.read("22:30-6:00"), TrainWhen.read("09:00-17:00")
    assert [night.open_at(at(hour, 30)) for hour in (21, 22, 23, 0, 5, 6)] == [False, True, True, True, True, False]
    assert [day.open_at(at(hour)) for hour in (8, 9, 16, 17)] == [False, True, True, False]
    assert TrainWhen.read("always").open_at(at(3))


def test_training_waits_until_nobody_talks(tmp_path: Path) -> None:
    scene = Scene(tmp_path, replace(SETTINGS, when=TrainWhen.read("idle")))
    assert scene.pace.waits() is None
    scene.say("alice", "0")
    scene.now = 101.0 + QUIET - 1
    assert "until nobody talks (OPENCLAW_TRAIN_WHEN=idle) for 60 s" in (scene.pace.waits() or "")
    scene.now += 1
    assert scene.pace.waits() is None
    scene.requests = [InFlightRequest("r", "bob", "POST /v1/chat/completions", 160.0)]
    assert (scene.pace.waits() or "").endswith("requests under way: 1")


def test_variables_that_contradict_each_other() -> None:
    with pytest.raises(ConfigError, match="OPENCLAW_TRAIN_WHEN"):
        RuntimeConfig.from_env({"OPENCLAW_TRAIN_WHEN": "tonight"})
    with pytest.raises(ConfigError, match="OPENCLAW_PACE=session is for live conversations"):
        RuntimeConfig.from_env({"OPENCLAW_PACE": "session", "OPENCLAW_OFFLINE": "1"})
    with pytest.raises(ConfigError, match="OPENCLAW_TRAIN_WHEN"):
        PaceSettings.from_env({"OPENCLAW_TRAIN_WHEN": "tonight"})
    assert PaceSettings.from_env({}) == PaceSettings()
    given = {"OPENCLAW_PACE": "session", "OPENCLAW_QUIET_SECONDS": "5", "OPENCLAW_TRAIN_WHEN": "idle"}
    assert PaceSettings.from_env(given) == PaceSettings(True, 5.0, 4, TrainWhen("idle", idle=True))


class Runtime:
    """A runtime process that serves and has no requests."""

    restarts = frozen = 0
    api_url = "http://none/v1"

    def check(self) -> None:
        """It is well."""

    def under_way(self) -> list[InFlightRequest]:
        return []

    def stop(self) -> None:
        """It ends."""


@pytest.fixture
def args(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Arguments:
    monkeypatch.delenv("OPENCLAW_LEDGER", raising=False)
    monkeypatch.setattr(rollout, "start_runtime", lambda args, method_path: Runtime())
    monkeypatch.setattr(rollout, "POLL_SECONDS", 0.005)
    return rollout_args(tmp_path, rollout_function_path=f"{__name__}.LIVE")


@pytest.fixture
def source(args: Arguments, monkeypatch: pytest.MonkeyPatch) -> Iterator[LedgerDataSource]:
    monkeypatch.setenv("OPENCLAW_PACE", "session")
    source = LedgerDataSource(args)
    source.before_rollouts()
    yield source
    source.dispose()


def test_the_rollout_hands_out_one_persons_batch(args: Arguments, source: LedgerDataSource) -> None:
    judged_sample(source.ledger, "a", session_id=stored_id("alice", "s"))
    output: Any = LIVE(args, 0, source)
    assert (output.person, output.passes, len(output.samples)) == ("alice", 1, 1)
    assert output.metrics["openclaw/of_one_person"] == output.metrics["openclaw/passes"] == 1.0
    assert "or when a session is over or quiet for 60 s" in source.story().start[0]
    for number in range(args.rollout_batch_size):
        turn = make_turn(f"b-{number}", session_id=stored_id("bob", "s"), finished_at=time.time())
        source.ledger.turns.record(turn)
        with source.ledger.transaction() as connection:
            insert_sample(source.ledger.database, connection, turn.id, make_sample(turn, 1.0))
    output = LIVE(args, 1, source)
    assert (output.person, output.passes) == (None, None), "a full batch, as without a pace"


def test_a_batch_that_may_not_be_trained_waits_and_says_so(
    args: Arguments, source: LedgerDataSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons = iter(["training waits for the night"] * 3)
    seen: list[str | None] = []

    def waits() -> str | None:
        seen.append(waiting(args.run_dir))
        return next(reasons, None)

    monkeypatch.setattr(source.pace, "waits", waits)
    judged_sample(source.ledger, "a", session_id=stored_id("alice", "s"))
    output: Any = LIVE(args, 0, source)
    assert seen == [None, *["training waits for the night"] * 3]
    assert waiting(args.run_dir) is None
    assert 0.0 < output.metrics["openclaw/train_when_seconds"] <= output.metrics["openclaw/wait_seconds"] + 0.1


def test_a_run_with_idle_trains_once_nobody_talks(args: Arguments, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way from the variable to the batch: bob's reply is under way for three looks of the waiting run."""
    looks: list[tuple[str | None, int]] = []

    class Talking(Runtime):
        def under_way(self) -> list[InFlightRequest]:
            if len(looks) == 3:
                return []
            assert waiting(args.run_dir, to_anybody=True) is None, "only an admin learns that people talk"
            looks.append((waiting(args.run_dir), source.ledger.samples.ready_count()))
            return [InFlightRequest("r", "bob", "POST /v1/chat/completions", 160.0)]

    monkeypatch.setattr(rollout, "start_runtime", lambda args, method_path: Talking())
    monkeypatch.setenv("OPENCLAW_TRAIN_WHEN", "idle")
    source = LedgerDataSource(args)
    source.before_rollouts()
    try:
        for name in ("a", "b"):
            judged_sample(source.ledger, name, session_id=stored_id("alice", "s"))
        output: Any = LIVE(args, 0, source)
    finally:
        source.dispose()
    assert [ready for _, ready in looks] == [2, 2, 2], "no sample is claimed meanwhile"
    notes = {note for note, _ in looks[1:]}
    assert len(notes) == 1
    assert (notes.pop() or "").endswith("requests under way: 1")
    assert (len(output.samples), waiting(args.run_dir)) == (2, None)
    assert 0.0 < output.metrics["openclaw/train_when_seconds"] <= output.metrics["openclaw/wait_seconds"] + 0.1


def test_the_gate_pauses_a_person_whom_it_keeps_refusing(args: Arguments, source: LedgerDataSource) -> None:
    for number in range(7):
        person = "bob" if number == 2 else "alice"
        judged_sample(source.ledger, f"t-{number}", session_id=stored_id(person, f"s-{number}"))
        LIVE(args, number, source)
        kind: Any = "step" if number == 3 else "refused"
        source.ledger.decisions.record(number, kind, "1", "liked replies fell")
        if kind == "refused":
            source.step_undone(number, "liked replies fell")
        assert list(paused_people(args.run_dir)) == (["alice"] if number == 6 else []), number
    assert "the gate refused 3 batches in a row" in str(paused_people(args.run_dir)["alice"])
