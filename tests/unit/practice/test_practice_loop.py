"""Practice beside a stand-in for an engine: what it commits, what it leaves alone, and what a failure costs."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from groundwork.chat_messages import picture_part
from lab.testkit.ledger_records import USER_NEXT, make_turn
from openclaw.credit.baseline import record_judged
from openclaw.exceptions import EngineRefusedError, EngineUnavailableError
from openclaw.judge.client import BaseModel
from openclaw.judge.endpoint import ClassJudge
from openclaw.judge.group import GroupJudge
from openclaw.judge.interface import NoJudge
from openclaw.judge.measure import Rubric
from openclaw.ledger.copying import copy_run
from openclaw.ledger.practice import HELDOUT, LESSONS_CHANGED
from openclaw.ledger.records import PROBE, Verdict, Vote
from openclaw.ledger.samples import insert_sample
from openclaw.ledger.store import Ledger
from openclaw.ledger.waiting import WaitingRound
from openclaw.owners import episode_owner, stored_id
from openclaw.practice.loop import PracticeLoop, PracticeMetrics, PracticeSettings
from openclaw.training.samples import make_sample
from slime.utils.types import Sample

ALICE, BOB = "alice", "bob"
REPLY = [7, 8, 9]
TOPK = 3


class Engine:
    """Samples `REPLY`, or in turn the replies of ``replies``; the base model's log probabilities are ``gap`` nats from the policy's."""

    def __init__(self) -> None:
        self.gap = 1.0
        self.version = "4"
        self.requests: list[tuple[dict[str, Any], str | None]] = []
        self.error: Exception | None = None
        self.bad_owner = ""
        self.away_owner = ""
        self.replies = itertools.cycle([REPLY])

    async def generate(self, payload: dict[str, Any], owner: str | None = None) -> dict[str, Any]:
        self.requests.append((payload, owner))
        if self.error is not None:
            raise self.error
        if owner == self.bad_owner:
            raise EngineRefusedError("the prompt is refused")
        if owner == self.away_owner:
            raise EngineUnavailableError("HTTP 503: none of the accepted versions can be loaded")
        base = payload.get("lora_path") == "base"
        meta: dict[str, Any] = {"weight_version": "base" if base else self.version}
        if payload["sampling_params"]["max_new_tokens"]:
            reply = next(self.replies)
            entries = [[-0.5, token, None] for token in reply]
            return {
                "output_ids": reply,
                "meta_info": {**meta, "output_token_logprobs": entries, "finish_reason": {"type": "stop"}},
            }
        start = payload["logprob_start_len"]
        scored = [[None if n == 0 else -0.5, token, None] for n, token in enumerate(payload["input_ids"][start:])]
        shift = self.gap if base else 0.0
        row = [[-0.5 - shift, 7, None], [-1.5, 8, None], [-2.5, 9, None]]
        return {
            "meta_info": {**meta, "input_token_logprobs": scored, "input_top_logprobs": [None, *[row] * len(REPLY)]}
        }

    async def answers(self) -> bool:
        return True

    async def close(self) -> None: ...


def render(messages: Any, tools: Any, keywords: Any) -> list[int]:
    return [3] * len(messages[-1]["content"])


class Run:
    """A ledger with Alice's lesson, and the loop."""

    def __init__(self, path: Path, **changes: Any) -> None:
        self.now, self.turns = 1000.0, 0
        self.ledger = Ledger(path, clock=lambda: self.now)
        self.engine = Engine()
        values: dict[str, Any] = {"lessons": "trial", "budget": 65536, "rounds": 3, "topk": TOPK, "temperature": 0.6}
        values |= {"most_lessons": 6, "reply_tokens": 16, "context": 2048, "default": "auto", "made_by": "m"} | changes
        self.registry = CollectorRegistry()
        self.paused: set[str] = set()
        rubric = values.pop("rubric", None)
        settings, metrics = PracticeSettings(**values), PracticeMetrics(self.registry)
        self.loop = PracticeLoop(self.ledger, self.engine, render, len, settings, metrics, lambda: self.paused, rubric)

    def turn(self, turn_id: str, owner: str = ALICE, *, reason: str | None = "score_zero", **changes: Any) -> None:
        """Record a judged turn."""
        session = changes.pop("session_id", stored_id(owner, "s"))
        self.turns += 1
        changes.setdefault("prompt_ids", [1, 2, 3, 100 + self.turns])
        self.ledger.turns.record(make_turn(turn_id, session_id=session, **changes))
        if changes.get("kind") != "side":
            self.ledger.turns.record_next_state(turn_id, USER_NEXT, 102.0)
            record_judged(self.ledger, turn_id, Verdict(), [], reason)

    def practise(self, person: str = ALICE) -> str | None:
        """Practise if something is due; return the outcome of the last round."""
        due = self.loop.due(person)
        if due is None:
            return None
        asyncio.run(self.loop.practise(due))
        rows = self.ledger.database.rows("SELECT outcome FROM practice_rounds ORDER BY id DESC LIMIT 1")
        return rows[0]["outcome"] if rows else None

    def train(self, rollout_id: int) -> int:
        """Let a step use what is ready, and its weights be live; return the number of samples."""
        samples = self.ledger.samples.claim(rollout_id, 99, person=ALICE, origin="practice")
        self.ledger.samples.record_step(rollout_id, str(rollout_id), self.now, self.now)
        return len(samples)

    def counted(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"openclaw_practice_{name}", labels) or 0.0


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path / "ledger.sqlite")
    run.ledger.lessons.add(ALICE, "Answer in German.")
    for number in range(7):
        run.turn(f"turn-{number}")
    yield run
    run.ledger.close()


def test_a_round_draws_from_the_weights_and_is_scored_by_the_base_that_reads_the_lesson(run: Run) -> None:
    assert run.practise() == "drawn"
    samples = run.ledger.samples.claim(0, 99, person=ALICE, origin="practice")
    assert [sample.metadata["turn_id"] for sample in samples] == [
        f"turn-{number}" for each in (4, 2) for number in (4, 3, 2, 1) for _ in range(each)
    ]
    first = samples[0]
    assert first.tokens == [1, 2, 3, 105, *REPLY]
    assert (first.reward, first.loss_mask, first.weight_versions) == (0.0, [1, 1, 1], ["4"])
    assert first.teacher_topk_indices == [[7, 8, 9]] * 3
    assert first.teacher_topk_log_probs is not None
    assert first.teacher_topk_log_probs[0] == pytest.approx([-1.5, -1.5, -2.5])
    taught = [payload for payload, _ in run.engine.requests if payload.get("lora_path") == "base"]
    lessoned = [sample for sample in samples if sample.tokens[4] == 3]
    assert len(lessoned) == 8, "the weights that learn the lesson practise to read it, too"
    assert [sample.tokens[:4] for sample in samples[16::2]] == [[1, 2, 3, 105 - n] for n in range(4)]
    plain = [payload for payload, _ in run.engine.requests if payload.get("lora_path") is None]
    reads = [payload["input_ids"][4] == 3 for payload in taught]
    assert (sum(reads), len(reads)) == (4 + 24, 4 + 24 + 4 + 16), "with the lesson, and for plain replies without it"
    assert all(payload["input_ids"][:3] == [1, 2, 3] for payload in plain)
    asked = [payload["input_ids"][4:] for payload in plain]
    assert [ids for ids in asked if 3 not in ids] == [[]] * 4 + [REPLY] * 4 + [[]] * 16, "measured, then practised"
    assert {owner for _, owner in run.engine.requests} == {ALICE}
    assert (run.counted("rounds_total", outcome="drawn"), run.counted("tokens_total")) == (
        1.0,
        sum(len(each.tokens) for each in samples),
    )


def test_a_prompt_measures_or_is_practised_but_not_both(run: Run) -> None:
    for rollout in range(3):
        run.engine.gap = 1.0 - 0.1 * rollout
        assert run.practise() == "drawn"
        assert run.train(rollout) == 24
        run.turn(f"later-{rollout}")
    held = {row["turn_id"] for row in run.ledger.database.rows("SELECT turn_id FROM heldout_prompts")}
    used = {row["turn_id"] for row in run.ledger.database.rows("SELECT turn_id FROM samples WHERE origin = 'practice'")}
    assert len(held) == HELDOUT
    assert held.isdisjoint(used)


def test_other_peoples_turns_probes_episodes_and_side_turns_are_left_alone(tmp_path: Path) -> None:
    run = Run(tmp_path / "ledger.sqlite")
    run.ledger.lessons.add(ALICE, "Answer in German.")
    run.turn("bob-1", BOB)
    run.turn("likes-alice", "alice2")
    run.turn("probe", reason=PROBE)
    run.turn("side", kind="side")
    run.ledger.turns.record(make_turn("agent", session_id=stored_id(episode_owner(ALICE, "episode-1"), "s")))
    run.turn("picture", messages=[{"role": "user", "content": [picture_part("ab" * 32)]}])
    assert run.practise() is None
    run.turn("own")
    run.turn("child", "alice/phone")
    assert run.practise() == "drawn"
    samples = run.ledger.samples.claim(0, 99, origin="practice")
    assert {sample.metadata["turn_id"] for sample in samples} == {"own"}
    run.ledger.close()


def test_a_single_prompt_is_practised_unmeasured_and_then_never_held_out(tmp_path: Path) -> None:
    """A first complaint works at once, in as many rounds as a day has; the next prompts measure it."""
    run = Run(tmp_path / "ledger.sqlite")
    run.ledger.lessons.add(ALICE, "Answer in German.")
    run.turn("first")
    for rollout in range(3):
        assert run.practise() == "drawn"
        assert run.train(rollout) == 6
    assert run.practise() is None
    [kl] = {row["kl"] for row in run.ledger.database.rows("SELECT kl FROM practice_rounds")}
    assert kl is None
    run.now += 86401.0
    run.turn("second")
    run.turn("third")
    assert run.practise() == "drawn"
    assert run.train(3) == 12
    held = {row["turn_id"] for row in run.ledger.database.rows("SELECT turn_id FROM heldout_prompts")}
    assert held == {"third"}
    run.ledger.close()


def test_a_single_prompt_is_not_practised_for_ever(tmp_path: Path) -> None:
    """Nothing measures it, so a person who never comes back would practise it every day; a second prompt goes on."""
    run = Run(tmp_path / "ledger.sqlite")
    run.ledger.lessons.add(ALICE, "Answer in German.")
    run.turn("first")
    found = []
    for rollout in range(6):
        found.append(run.practise())
        run.train(rollout)
        run.now += 86401.0
    assert found == ["drawn"] * 3 + [None] * 3
    run.turn("second")
    assert run.practise() == "drawn"
    assert run.train(6) == 12
    run.ledger.close()


def test_prompts_that_come_one_by_one_are_measured_and_end_practice(tmp_path: Path) -> None:
    """Each is practised before the next one comes, so there never are two that were not practised."""
    run = Run(tmp_path / "ledger.sqlite")
    run.ledger.lessons.add(ALICE, "Answer in German.")
    for number in range(8):
        run.turn(f"turn-{number}")
        run.engine.gap = 1.0 - 0.1 * number
        assert run.practise() == "drawn"
        assert run.train(number)
        run.now += 86401.0
    held = {row["turn_id"] for row in run.ledger.database.rows("SELECT turn_id FROM heldout_prompts")}
    used = {row["turn_id"] for row in run.ledger.database.rows("SELECT turn_id FROM samples WHERE origin = 'practice'")}
    assert held == {"turn-3", "turn-4"}
    assert held.isdisjoint(used)
    run.engine.gap = 0.0
    assert run.practise() == "reached"
    run.ledger.close()


def test_the_next_round_waits_for_the_weights_of_the_last_and_a_day_has_three(run: Run) -> None:
    assert run.practise() == "drawn"
    assert run.practise() is None, "its samples are ready"
    run.ledger.samples.claim(0, 99, person=ALICE, origin="practice")
    assert run.practise() is None, "their step is not live"
    run.ledger.samples.record_step(0, "5", run.now, run.now)
    for rollout, gap in ((1, 0.9), (2, 0.8)):
        run.engine.gap = gap
        assert run.practise() == "drawn"
        run.train(rollout)
    assert run.practise() is None
    run.now += 86401.0
    run.engine.gap = 0.7
    assert run.practise() == "drawn"


def test_it_ends_near_the_teacher_or_when_it_comes_no_nearer(run: Run, tmp_path: Path) -> None:
    assert run.practise() == "drawn"
    run.train(0)
    run.engine.gap = 0.0
    assert run.practise() == "reached"
    assert run.ledger.samples.ready_count(ALICE, "practice") == 0
    assert run.practise() is None
    other = Run(tmp_path / "other.sqlite")
    other.ledger.lessons.add(ALICE, "Answer in German.")
    for number in range(4):
        other.turn(f"turn-{number}")
    found = []
    for rollout in range(3):
        found.append(other.practise())
        other.train(rollout)
    assert found == ["drawn", "drawn", "stuck"]
    other.ledger.lessons.add(ALICE, "Keep answers short.")
    assert other.practise() == "drawn", "another lesson begins anew"
    other.ledger.close()


def test_a_prompt_that_has_the_complaint_in_it_is_left_out(run: Run) -> None:
    [lesson] = run.ledger.lessons.of(ALICE)
    with run.ledger.transaction() as connection:
        connection.execute("INSERT INTO lesson_turns VALUES (?, 'turn-2', 'said')", (lesson.id,))
    run.turn("elsewhere", session_id=stored_id(ALICE, "t"))
    assert run.practise() == "drawn"
    used = {sample.metadata["turn_id"] for sample in run.ledger.samples.claim(0, 99, person=ALICE, origin="practice")}
    held = {row["turn_id"] for row in run.ledger.database.rows("SELECT turn_id FROM heldout_prompts")}
    assert used | held == {"turn-0", "turn-1", "turn-2", "elsewhere"}


def test_replies_of_a_teacher_with_other_lessons_are_dropped(run: Run) -> None:
    assert run.practise() == "drawn"
    run.ledger.lessons.add(ALICE, "Keep answers short.")
    assert run.practise() == "drawn"
    rows = run.ledger.database.rows("SELECT state, reason, COUNT(*) AS n FROM samples GROUP BY state, reason")
    assert {(row["state"], row["reason"], row["n"]) for row in rows} == {
        ("dropped", LESSONS_CHANGED, 24),
        ("ready", None, 24),
    }


def test_a_failure_costs_one_person_a_round_and_an_outage_nobody(run: Run) -> None:
    run.ledger.lessons.add(BOB, "Answer in French.")
    for number in range(2):
        run.turn(f"bob-{number}", BOB)
    run.engine.error = EngineUnavailableError("away")
    with pytest.raises(EngineUnavailableError):
        run.practise()
    assert run.ledger.database.rows("SELECT * FROM practice_rounds") == []
    run.engine.error, run.engine.bad_owner = None, ALICE
    assert [run.practise() for _ in range(4)] == ["failed", "failed", "failed", None]
    assert run.practise(BOB) == "drawn"
    assert run.counted("rounds_total", outcome="failed") == 3.0


def test_an_adapter_that_cannot_be_loaded_keeps_nobody_else_from_practice(run: Run) -> None:
    """To the engine's client that looks like an outage, which would begin each search anew with the same person."""
    run.ledger.lessons.add(BOB, "Answer in French.")
    run.turn("bob", BOB)
    run.engine.away_owner = ALICE
    for _ in range(2):
        with suppress(EngineUnavailableError):
            asyncio.run(run.loop._look())
    assert run.counted("rounds_total", outcome="drawn") == 1.0
    run.engine.away_owner = ""
    asyncio.run(run.loop._look())
    assert run.counted("rounds_total", outcome="drawn") == 2.0


def test_a_process_that_dies_in_a_round_leaves_nothing_of_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(*_: Any, **__: Any) -> int:
        raise KeyboardInterrupt

    due = run.loop.due(ALICE)
    assert due is not None
    with monkeypatch.context() as patch:
        patch.setattr("openclaw.ledger.practice.insert_sample", dies)
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(run.loop.practise(due))
    for table in ("samples", "practice_rounds", "heldout_prompts"):
        assert run.ledger.database.rows(f"SELECT * FROM {table}") == []
    assert run.practise() == "drawn"


def test_who_switched_lessons_off_is_not_practised(run: Run) -> None:
    run.paused = {ALICE}
    assert run.practise() is None, "nor is one whose training is paused"
    run.paused = set()
    run.ledger.lessons.choose_mode(ALICE, "off")
    assert run.practise() is None


def lesson_of(run: Run) -> str:
    return run.ledger.lessons.of(ALICE)[0].id


CHANGES: dict[str, Callable[[Run], object]] = {
    "off": lambda run: run.ledger.lessons.choose_mode(ALICE, "off"),
    "switched off": lambda run: run.ledger.lessons.edit(ALICE, lesson_of(run), on=False),
    "another": lambda run: run.ledger.lessons.add(ALICE, "Keep answers short."),
    "reworded": lambda run: run.ledger.lessons.edit(ALICE, lesson_of(run), text="Answer in French."),
    "deleted": lambda run: run.ledger.lessons.remove(ALICE, lesson_of(run)),
    "forgotten": lambda run: run.ledger.lessons.forget_person(ALICE),
}


@pytest.mark.parametrize("change", CHANGES)
def test_no_step_uses_practice_from_before_a_change_of_the_lessons(run: Run, change: str) -> None:
    assert run.practise() == "drawn"
    run.ledger.samples.claim(0, 8, person=ALICE, origin="practice")
    run.now += 1.0
    CHANGES[change](run)
    assert run.ledger.waiting.rounds() == []
    run.ledger.samples.reconcile(-1)
    assert run.ledger.waiting.rounds() == [], "nor after a restore from before its batch"
    rows = run.ledger.database.rows("SELECT state, reason FROM samples")
    deleted = change in ("reworded", "deleted", "forgotten")
    assert [tuple(row) for row in rows] == ([] if deleted else [("dropped", LESSONS_CHANGED)] * 24)
    assert run.ledger.samples.forgotten_count() == (24 if deleted else 0), "the teacher's numbers came from the words"


def test_the_teachers_numbers_go_once_no_step_can_use_them_again(run: Run) -> None:
    """They are 600 bytes for each token of a reply, so a ledger would grow without bound."""

    def kept(state: str) -> int:
        rows = "SELECT COUNT(*) FROM samples WHERE state = ? AND {} IS NOT NULL"
        numbers = ("teacher_topk_log_probs", "teacher_topk_indices")
        [count] = {run.ledger.database.rows(rows.format(name), (state,))[0][0] for name in numbers}
        return count

    for rollout in range(2):
        assert run.practise() == "drawn"
        assert run.train(rollout) == 24
    run.ledger.samples.mark_trained(0)
    assert (kept("trained"), kept("leased")) == (24, 24), "a restored checkpoint would train them again"
    run.now += 1.0
    run.ledger.lessons.add(ALICE, "Keep answers short.")
    assert (kept("trained"), kept("leased")) == (0, 24), "a batch that is collected again still needs them"
    assert run.practise() == "drawn"
    run.ledger.samples.mark_trained(1)
    run.ledger.lessons.choose_mode(ALICE, "off")
    assert (kept("trained"), kept("dropped")) == (0, 0)


@pytest.mark.parametrize("change", CHANGES)
def test_a_round_is_lost_if_its_lessons_change_meanwhile(run: Run, change: str) -> None:
    due = run.loop.due(ALICE)
    assert due is not None
    run.now += 1.0
    CHANGES[change](run)
    asyncio.run(run.loop.practise(due))
    for table in ("samples", "practice_rounds", "heldout_prompts"):
        assert run.ledger.database.rows(f"SELECT * FROM {table}") == []


def test_a_lesson_that_loses_its_likes_takes_its_practice_back(run: Run) -> None:
    assert run.practise() == "drawn"
    run.turn("under it")
    with run.ledger.transaction() as connection:
        connection.execute("INSERT INTO lesson_turns VALUES (?, 'under it', 'read')", (lesson_of(run),))
        connection.execute("UPDATE verdicts SET verdict = json_set(verdict, '$.score', -1) WHERE turn_id = 'under it'")
    assert run.loop.due(ALICE) is None
    assert run.ledger.waiting.rounds() == []


def test_rounds_of_weights_that_a_rollback_undid_do_not_count(run: Run) -> None:
    assert run.practise() == "drawn"
    run.train(0)
    run.ledger.samples.mark_trained(0)
    run.now, run.engine.gap = 1010.0, 0.0
    assert run.practise() == "reached"
    run.now, run.engine.gap = 1020.0, 1.0
    assert run.practise() is None
    run.ledger.decisions.record_rollback(-1, 0, "9", run.now)
    for rollout in (1, 2):
        assert run.practise() == "drawn", "the weights from before have learned nothing of it"
        assert run.train(rollout) == 24
    assert run.practise() == "stuck"


def test_after_a_restore_each_round_is_a_batch_and_measures_of_undone_weights_do_not_count(run: Run) -> None:
    for rollout in (0, 1):
        run.engine.gap = 1.0 - 0.1 * rollout
        assert run.practise() == "drawn"
        run.now += 10.0
        run.train(rollout)
        run.now += 10.0
    run.engine.gap = 0.0
    assert run.practise() == "reached"
    [series] = {row["series"] for row in run.ledger.database.rows("SELECT series FROM practice_rounds")}
    run.now += 10.0
    assert run.ledger.samples.reconcile(-1)["ready"] == 48
    assert [each.at for each in run.ledger.practices.rounds(ALICE, series)] == [1000.0], (
        "others measured undone weights"
    )
    assert run.ledger.waiting.rounds() == [WaitingRound(ALICE, 24, 1000.0), WaitingRound(ALICE, 24, 1020.0)]
    assert run.practise() is None
    for rollout in (0, 1):
        assert len(run.ledger.samples.claim(rollout, 24, person=ALICE, origin="practice")) == 24
        run.ledger.samples.record_step(rollout, str(rollout), run.now, run.now)
    run.engine.gap = 0.5
    assert run.practise() == "drawn"


def test_a_prompt_of_several_turns_is_one_prompt(run: Run) -> None:
    run.ledger.sessions.forget(stored_id(ALICE, "s"))
    for name, ids in (("a", [1, 2]), ("b", [3, 4]), ("a again", [1, 2]), ("b again", [3, 4])):
        run.turn(name, session_id=stored_id(ALICE, "t"), prompt_ids=ids)
    assert run.practise() == "drawn"
    assert run.train(0) == 6
    run.turn("b once more", session_id=stored_id(ALICE, "t"), prompt_ids=[3, 4])
    run.engine.gap = 0.5
    assert run.practise() == "drawn"
    of_prompt = "SELECT DISTINCT turns.id FROM turns JOIN {} ON turns.id = turn_id"
    held, used = (
        {row["id"].split()[0] for row in run.ledger.database.rows(of_prompt.format(table))}
        for table in ("heldout_prompts", "samples")
    )
    assert (held, used) == ({"b"}, {"a"})


def test_a_copy_of_a_run_has_no_practice(run: Run, tmp_path: Path) -> None:
    assert run.practise() == "drawn"
    copy = Ledger(tmp_path / "copy.sqlite")
    copy_run(run.ledger, copy, [stored_id(ALICE, "s")])
    assert copy.views.counts()["turns"] == {"judged": 7}
    assert copy.database.rows("SELECT * FROM samples") == []
    copy.close()


def test_forgetting_a_session_takes_its_practice_along(run: Run) -> None:
    assert run.practise() == "drawn"
    due = run.loop.due(ALICE)
    assert due is None
    run.ledger.sessions.forget(stored_id(ALICE, "s"))
    for table in ("samples", "heldout_prompts"):
        assert run.ledger.database.rows(f"SELECT * FROM {table}") == []
    assert run.ledger.lessons.forget_person(ALICE) == 1
    assert run.ledger.database.rows("SELECT * FROM practice_rounds") == []


def test_a_prompt_that_is_deleted_meanwhile_ends_the_round(run: Run) -> None:
    due = run.loop.due(ALICE)
    assert due is not None
    run.ledger.sessions.forget(stored_id(ALICE, "s"))
    asyncio.run(run.loop.practise(due))
    assert run.ledger.database.rows("SELECT * FROM practice_rounds") == []
    assert run.ledger.database.rows("SELECT * FROM samples") == []


class Votes(NoJudge):
    """Finds that every other reply obeys, or all, or gives no vote."""

    def __init__(self, values: list[int | None]) -> None:
        self.values, self.asked = itertools.cycle(values), list[str]()

    async def votes(self, kind: Any, question: Any, count: int) -> list[Vote]:
        self.asked.append(question.prompt[-1]["content"])
        return [Vote(kind, "", next(self.values))]


def rubric_of(engine: Engine, *values: int | None) -> tuple[Rubric, Votes]:
    judge = Votes(list(values))
    return Rubric(BaseModel(engine), (judge, lambda prompt, ids: f"reply {list(ids)}")), judge


def test_a_group_trains_what_obeys_against_what_does_not(tmp_path: Path) -> None:
    run = Run(tmp_path / "ledger.sqlite")
    run.loop._rubric, judge = rubric_of(run.engine, 1, -1, -1, -1)
    run.ledger.lessons.add(ALICE, "Answer in German.")
    run.turn("only")
    assert run.practise() == "drawn"
    samples = run.ledger.samples.claim(0, 99, person=ALICE, origin="practice")
    taught = [sample for sample in samples if sample.teacher_topk_log_probs is not None]
    group = [sample for sample in samples if sample.teacher_topk_log_probs is None]
    assert (len(taught), len(group)) == (6, 4)
    assert [sample.reward for sample in taught] == [0.0] * 6
    assert sorted(sample.reward for sample in group) == pytest.approx([-0.05, -0.05, -0.05, 0.15])
    assert all(sample.tokens == [1, 2, 3, 101, *REPLY] for sample in group), "without the lesson"
    assert len(judge.asked) == 4, "replies to the prompt with the lesson are in no group"
    assert all("Answer in German." in text and "reply [7, 8, 9]" in text for text in judge.asked)
    run.ledger.close()


@pytest.mark.parametrize("values", [(1,), (-1,), (1, None)])
def test_a_group_that_is_alike_or_unread_trains_nothing(tmp_path: Path, values: tuple[int | None, ...]) -> None:
    run = Run(tmp_path / "ledger.sqlite")
    run.loop._rubric, _ = rubric_of(run.engine, *values)
    run.ledger.lessons.add(ALICE, "Answer in German.")
    run.turn("only")
    assert run.practise() == "drawn"
    samples = run.ledger.samples.claim(0, 99, person=ALICE, origin="practice")
    assert all(sample.teacher_topk_log_probs is not None for sample in samples)
    assert len(samples) == 6
    run.ledger.close()


class Longest:
    """Finds the reply with the highest last token best, or fails."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.asked = error, list[Any]()

    def score_group(self, prompt: Any, replies: Any, rubric: str) -> list[float]:
        self.asked.append((prompt, replies, rubric))
        if self.error:
            raise self.error
        return [int(reply[0]["content"].split()[-1]) / 10 for reply in replies]


def practised_as_a_group(run: Run, scorer: Longest, *replies: list[int]) -> list[Sample]:
    """Practise a round in which one question compares the replies to each prompt; return the samples with rewards of a group."""
    judge = GroupJudge(ClassJudge(scorer), votes=1, quorum=0.5)
    reader = lambda prompt, ids: " ".join(map(str, ids))  # noqa: E731
    run.loop._rubric = Rubric(BaseModel(run.engine), group=(judge, reader))
    run.engine.replies = itertools.cycle(replies)
    run.ledger.lessons.add(ALICE, "Answer in German.")
    run.turn("only")
    run.practise()
    samples = run.ledger.samples.claim(0, 99, person=ALICE, origin="practice")
    return [sample for sample in samples if sample.teacher_topk_log_probs is None]


def test_one_question_compares_the_replies_to_a_prompt_and_gives_their_rewards(tmp_path: Path) -> None:
    run, scorer = Run(tmp_path / "ledger.sqlite"), Longest()
    group = practised_as_a_group(run, scorer, [7, 8, 9], [7, 8, 1], [7, 8, 9], [7, 8, 5])
    [(prompt, shown, rubric)] = scorer.asked
    assert prompt == run.ledger.turns.get("only").messages
    assert sorted(reply[0]["content"] for reply in shown) == ["7 8 1", "7 8 5", "7 8 9"], "two are alike"
    assert "Answer in German." in rubric
    assert [sample.tokens[-1] for sample in group] == [9, 1, 9, 5]
    assert [sample.reward for sample in group] == pytest.approx([0.2 * each for each in (0.3, -0.5, 0.3, -0.1)])
    notes = [sample.metadata["group"] for sample in group]
    assert [note["score"] for note in notes] == pytest.approx([0.9, 0.1, 0.9, 0.5])
    assert ([note["place"] for note in notes], [sorted(note["orders"][0]) for note in notes]) == (
        [0, 1, 2, 3],
        [[0, 1, 3]] * 4,
    )
    assert run.counted("groups_total", outcome="scored", shortened="False") == 1.0
    run.ledger.close()


@pytest.mark.parametrize(
    ("replies", "outcome"),
    [([[7, 8, 9]], "alike"), ([[7, 7, 9], [7, 8, 9]], "tied"), ([[7, 8, 99], [7, 8, 9]], "no_quorum")],
)
def test_a_group_without_a_difference_or_an_answer_trains_nothing_and_is_counted(
    tmp_path: Path, replies: list[list[int]], outcome: str
) -> None:
    run = Run(tmp_path / "ledger.sqlite")
    assert practised_as_a_group(run, Longest(), *replies) == []
    assert run.counted("groups_total", outcome=outcome, shortened="False") == 1.0
    assert run.counted("rounds_total", outcome="drawn") == 1.0, "the teacher's part of the round is trained"
    run.ledger.close()


def test_a_round_waits_for_a_judge_of_groups_that_is_away(tmp_path: Path) -> None:
    run, scorer = Run(tmp_path / "ledger.sqlite"), Longest(EngineUnavailableError("away"))
    with pytest.raises(EngineUnavailableError):
        practised_as_a_group(run, scorer, [7, 8, 9], [7, 8, 1])
    assert run.ledger.database.rows("SELECT * FROM practice_rounds") == []
    scorer.error = None
    assert run.practise() == "drawn"
    assert run.counted("groups_total", outcome="scored", shortened="False") == 1.0
    run.ledger.close()


def trained(run: Run, name: str, rollout_id: int, log_probs: list[float], reward: float = -1.0, **changes: Any) -> None:
    """Record a turn of Alice's whose sample a live step has used."""
    turn = make_turn(
        name, session_id=stored_id(ALICE, name), response_ids=REPLY, response_logprobs=log_probs, **changes
    )
    run.ledger.turns.record(turn)
    run.ledger.turns.record_next_state(name, USER_NEXT, 102.0)
    sample = make_sample(run.ledger.turns.get(name), reward, score=int(reward))
    record_judged(run.ledger, name, Verdict(score=int(reward)), [sample], None)
    run.ledger.samples.claim(rollout_id, 9, person=ALICE)
    run.ledger.samples.record_step(rollout_id, str(rollout_id), run.now, run.now)


def replays(run: Run, rollout_id: int) -> list[Sample]:
    """Practise a round, train it, and return the turns that it trained again."""
    assert run.practise() == "drawn"
    samples = run.ledger.samples.claim(rollout_id, 99, person=ALICE, origin="practice")
    run.ledger.samples.record_step(rollout_id, str(rollout_id), run.now, run.now)
    return [sample for sample in samples if sample.teacher_topk_log_probs is None]


def test_own_turns_are_trained_again_twice_while_the_weights_are_near_to_them(tmp_path: Path) -> None:
    """The stand-in's log probabilities are -0.5 for each token, at temperature 1 as at 0.6 about -0.3."""
    run = Run(tmp_path / "ledger.sqlite", replay=14, temperature=1.0)
    run.ledger.lessons.add(ALICE, "Answer in German.")
    trained(run, "near", 0, [-0.5, -1.0, -0.2])
    trained(run, "far", 1, [-2.5, -1.5, -1.6], reward=1.0)
    run.turn("own")
    for rollout, gap in ((2, 1.0), (3, 0.9)):
        run.engine.gap = gap
        [sample] = replays(run, rollout)
        assert (sample.metadata["turn_id"], sample.reward) == ("near", -1.0)
        assert sample.rollout_log_probs == pytest.approx([-0.5, -1.0, -0.2]), "what it was sampled with"
    run.engine.gap = 0.8
    assert replays(run, 4) == [], "twice is enough"
    run.ledger.close()


def test_no_turn_is_trained_again_unless_asked_or_if_an_opinion_was_corrected(tmp_path: Path) -> None:
    off = Run(tmp_path / "off.sqlite", temperature=1.0)
    off.ledger.lessons.add(ALICE, "Answer in German.")
    trained(off, "near", 0, [-0.5, -1.0, -0.2])
    assert replays(off, 1) == []
    off.ledger.close()
    run = Run(tmp_path / "ledger.sqlite", replay=14, temperature=1.0)
    run.ledger.lessons.add(ALICE, "Answer in German.")
    trained(run, "near", 0, [-0.5, -1.0, -0.2])
    with run.ledger.transaction() as connection:
        turn = run.ledger.turns.get("near")
        insert_sample(run.ledger.database, connection, "near", make_sample(turn, 1.0))
    assert replays(run, 1) == [], "its first reward was wrong"
    run.ledger.close()


def test_no_held_out_turn_is_trained_again(tmp_path: Path) -> None:
    run = Run(tmp_path / "ledger.sqlite", replay=14, temperature=1.0)
    run.ledger.lessons.add(ALICE, "Answer in German.")
    for number in range(4):
        trained(run, f"turn-{number}", number, [-0.5, -1.0, -0.2], prompt_ids=[1, 2, 3, 100 + number])
    again = {sample.metadata["turn_id"] for sample in replays(run, 4)}
    held = {row["turn_id"] for row in run.ledger.database.rows("SELECT turn_id FROM heldout_prompts")}
    assert (again, held) == ({"turn-0", "turn-1"}, {"turn-2", "turn-3"})
    run.ledger.close()


def test_replays_and_groups_stay_within_the_tokens_of_a_round(tmp_path: Path) -> None:
    run = Run(tmp_path / "ledger.sqlite", replay=14, temperature=1.0, budget=4 * (4 + 16) + 2)
    run.loop._rubric, _ = rubric_of(run.engine, 1, -1)
    run.ledger.lessons.add(ALICE, "Answer in German.")
    trained(run, "near", 0, [-0.5, -1.0, -0.2])
    assert run.practise() == "drawn"
    [tokens] = [row["tokens"] for row in run.ledger.database.rows("SELECT tokens FROM practice_rounds")]
    samples = run.ledger.samples.claim(1, 99, person=ALICE, origin="practice")
    assert tokens == sum(len(sample.tokens) for sample in samples) <= 82
    assert any(sample.teacher_topk_log_probs is None for sample in samples)
    run.ledger.close()


async def test_the_loop_ends_when_it_is_told_to(run: Run) -> None:
    stop = asyncio.Event()
    running = asyncio.create_task(run.loop.run(stop))
    while run.ledger.samples.ready_count(ALICE, "practice") == 0:
        await asyncio.sleep(0.01)
    stop.set()
    await asyncio.wait_for(running, 5.0)
    assert run.ledger.samples.ready_count(ALICE, "practice") == 24
