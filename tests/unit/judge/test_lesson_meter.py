"""After an update the weights' replies without a lesson are compared with replies that read it, on the person's own prompts."""

from __future__ import annotations

import asyncio
import math
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from lab.testkit.ledger_records import USER_NEXT, make_turn
from openclaw.credit.baseline import record_judged
from openclaw.exceptions import EngineRefusedError, EngineUnavailableError
from openclaw.judge.client import BaseModel
from openclaw.judge.interface import NoJudge, Question
from openclaw.judge.measure import FEWEST_PROMPTS, PROMPTS, REPLIES, TRIES, LessonMeter, Rubric, chosen_turns, compared
from openclaw.judge.voting import JudgeMetrics
from openclaw.ledger.codec import pack_ids, unpack_ids
from openclaw.ledger.records import Verdict, Vote
from openclaw.ledger.samples import insert_sample
from openclaw.ledger.store import Ledger
from openclaw.lessons.lesson import Lesson, Mode
from openclaw.training.samples import make_sample

ALICE, BOB = "alice", "bob"
SHORT = "Keep answers short."
PLAIN, OBEYS, BEGIN = 1, 2, 99
"""The tokens of a reply: an ordinary one, one as the lesson wants it, and what a prompt ends with."""
BASE = {True: 0.9, False: 0.2}
"""How often the base model says `OBEYS`: with the lesson in its prompt, and without."""


def render(messages: Sequence[Any], tools: Any = None, keywords: Any = None) -> list[int]:
    """Render messages to a number per character, above those of the reply, and the beginning of a reply."""
    return [*(100 + ord(letter) for message in messages for letter in message["content"]), BEGIN]


def has_lesson(ids: Sequence[int]) -> bool:
    return SHORT in "".join(chr(each - 100) for each in ids if each > 100)


class Weights:
    """An engine of a LoRA run: the policy says `OBEYS` so often without lessons; its base model is frozen."""

    def __init__(self, obeys: float, version: str = "8", *, base: bool = True) -> None:
        self.obeys, self.version, self.base = obeys, version, base
        self.prompts: list[tuple[str, list[int], str | None]] = []
        self._random = random.Random(1)

    async def generate(self, payload: dict[str, Any], owner: str | None = None) -> dict[str, Any]:
        asked_base = payload.get("lora_path") == "base"
        if asked_base and not self.base:
            raise EngineRefusedError("LoRA is not enabled")
        ids = payload["input_ids"]
        meta: dict[str, Any] = {"weight_version": "base" if asked_base else self.version}
        if payload.get("return_logprob"):
            start = payload["logprob_start_len"]
            assert asked_base, "an update must not move its own measure"
            rate = BASE[has_lesson(ids[: start + 1])]
            meta["input_token_logprobs"] = [
                [math.log(rate if each == OBEYS else 1 - rate), each, None] for each in ids[start:]
            ]
            return {"text": "", "meta_info": meta}
        self.prompts.append(("base" if asked_base else "policy", ids, owner))
        rate = BASE[has_lesson(ids)] if asked_base or has_lesson(ids) else self.obeys
        return {
            "output_ids": [OBEYS if self._random.random() < rate else PLAIN for _ in range(64)],
            "meta_info": meta,
        }

    async def answers(self) -> bool:
        return True

    async def close(self) -> None:
        return


class Voter(NoJudge):
    """Votes that a reply obeys if most of its tokens do."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.value: int | None = None

    async def votes(self, kind: Any, question: Question, count: int) -> list[Vote]:
        words = question.asked(kind, "full")[-1]["content"]
        self.asked.append(words)
        obeys = words.count(str(OBEYS)) > words.count(str(PLAIN))
        return [Vote(kind, "", (1 if obeys else -1) if self.value is None else self.value or None)]


class Run:
    """A run whose update to version 8 is live, with a person whose lesson was liked."""

    def __init__(self, path: Path) -> None:
        self.now = 100.0
        self.ledger = Ledger(path, clock=lambda: self.now)
        self.moved: list[str] = []
        self.registry = CollectorRegistry()
        self.rubric = Voter()
        self._count = 0

    def says(self, words: str, person: str = ALICE, *, read: Lesson | None = None, score: int | None = None) -> None:
        """Record a turn of a person; ``score`` judges it."""
        self._count += 1
        self.now += 1
        messages = [{"role": "user", "content": words}]
        turn = make_turn(
            f"turn-{self._count}",
            session_id=f"@{person}:s",
            messages=messages,
            prompt_ids=render(messages),
            lessons=() if read is None else ((read.id, read.text),),
            created_at=self.now,
        )
        self.ledger.turns.record(turn)
        if score is not None:
            self.ledger.turns.record_next_state(turn.id, USER_NEXT, self.now)
            with self.ledger.transaction() as connection:
                record_judged(self.ledger, turn.id, Verdict(score=score), [], "under_lesson")
                self.ledger.lessons.settle(connection, turn.id, person, None)

    def practises(self, *turns: str) -> None:
        with self.ledger.transaction() as connection:
            for turn_id in turns:
                sample = make_sample(self.ledger.turns.get(turn_id), 1.0)
                insert_sample(self.ledger.database, connection, turn_id, sample, origin="practice")

    def served(self, change: Callable[[list[int]], list[int]]) -> None:
        """Change the ids of all prompts."""
        with self.ledger.transaction() as connection:
            for row in connection.execute("SELECT id, prompt_ids FROM turns").fetchall():
                ids = pack_ids(change(unpack_ids(row["prompt_ids"])))
                connection.execute("UPDATE turns SET prompt_ids = ? WHERE id = ?", (ids, row["id"]))

    def liked(self, person: str = ALICE, text: str = SHORT) -> Lesson:
        lesson = self.ledger.lessons.add(person, text)
        self.says(f"liked {text} {person}", person, read=lesson, score=1)
        return self.ledger.lessons.get(person, lesson.id)

    def update(self, version: str = "8") -> None:
        self.now += 10
        self.ledger.samples.record_step(int(version) - 1, version, self.now, self.now)
        self.now += 10

    def meter(self, weights: Weights, *, judged: bool = False, default: Mode = "auto") -> LessonMeter:
        def read(prompt: Sequence[int], ids: Sequence[int]) -> str:
            return "".join(map(str, ids))

        self.registry = CollectorRegistry()
        return LessonMeter(
            *(self.ledger, weights, BaseModel(weights), render, JudgeMetrics(self.registry)),
            temperature=1.0,
            default=default,
            rubric=Rubric(BaseModel(weights), (self.rubric, read) if judged else None),
            on_moved=self.moved.append,
        )

    def measure(self, weights: Weights, **options: Any) -> Lesson:
        asyncio.run(self.meter(weights, **options).step())
        return self.ledger.lessons.of(ALICE)[0]

    def counted(self, outcome: str) -> float:
        return self.registry.get_sample_value("openclaw_judge_measured_lessons_total", {"outcome": outcome}) or 0.0


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path / "ledger.sqlite")
    with closing(run.ledger):
        run.liked()
        for number in range(12):
            run.says(f"question {number}")
        run.practises(*(f"turn-{number}" for number in range(2, 8)))
        run.update()
        yield run


@pytest.mark.parametrize("judged", [False, True])
@pytest.mark.parametrize(("obeys", "rests"), [(0.9, True), (0.2, False), (0.35, False)])
def test_a_lesson_rests_once_the_weights_satisfy_it(run: Run, obeys: float, rests: bool, judged: bool) -> None:
    lesson = run.measure(Weights(obeys), judged=judged)
    assert (lesson.state, lesson.reason) == (("resting", "learned") if rests else ("active", None))
    found = lesson.measure
    assert found is not None
    assert (found.weight_version, found.scorer, found.prompts) == ("8", "judge" if judged else "base", PROMPTS)
    assert found.practised == PROMPTS // 2
    if not judged:
        expected = 0.9 * math.log(0.9 / 0.2) + 0.1 * math.log(0.1 / 0.8)
        assert found.taught == pytest.approx(expected, abs=0.1), "the divergence of the two base distributions"
    assert run.moved == ([ALICE] if rests else [])
    assert run.counted("learned" if rests else "stays") == 1


def test_it_comes_back_when_a_later_update_unlearns_it(run: Run) -> None:
    assert run.measure(Weights(0.9)).reason == "learned"
    run.update("9")
    assert run.measure(Weights(0.9, "9")).reason == "learned"
    run.update("10")
    lesson = run.measure(Weights(0.3, "10"))
    assert (lesson.state, lesson.reason) == ("active", None)
    assert run.counted("returned") == 1


def test_restored_weights_are_measured_although_later_ones_were(run: Run) -> None:
    run.measure(Weights(0.3))
    run.update("9")
    assert run.measure(Weights(0.9, "9")).reason == "learned"
    run.ledger.samples.reconcile(7)
    assert run.ledger.samples.live_weight_version() == "8"
    assert run.ledger.lessons.of(ALICE)[0].state == "active", "these weights have not learned it"
    run.now += 1
    lesson = run.measure(Weights(0.3))
    assert lesson.measure is not None
    assert (lesson.state, lesson.measure.weight_version, lesson.measure.at) == ("active", "8", run.now)


def test_a_person_is_measured_once_per_update_on_its_own_prompts(run: Run) -> None:
    run.says("a secret of bob", BOB)
    run.liked(BOB, "No tables.")
    weights = Weights(0.3)
    meter = run.meter(weights)
    asyncio.run(meter.step())
    count = len(weights.prompts)
    plain = [ids for who, ids, _ in weights.prompts if who == "policy"]
    assert len(plain) == PROMPTS * REPLIES
    assert count == 2 * len(plain) + 1, "a look at the base model, and as many replies of it"
    assert not any(
        render([{"content": "bob"}])[:-1] == ids[place : place + 3]
        for _, ids, _ in weights.prompts
        for place in range(len(ids))
    )
    assert {owner for who, _, owner in weights.prompts[1:]} == {ALICE}
    assert run.counted("few_prompts") == 1, "bob has too few"
    asyncio.run(meter.step())
    run.measure(weights)
    assert len(weights.prompts) == count + 1, "a restarted process only looks whether there is a base model"


def test_no_look_counts_the_evidence_of_who_was_measured(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read from every turn under a lesson, under the ledger's lock."""
    counted: list[str] = []
    of = run.ledger.lessons.of
    monkeypatch.setattr(run.ledger.lessons, "of", lambda person: counted.append(person) or of(person))
    meter = run.meter(Weights(0.3))
    for version in ("8", "9"):
        run.update(version)
        meter._policy = Weights(0.3, version)
        for _ in range(3):
            asyncio.run(meter.step())
    assert counted == [ALICE, ALICE], "once per update"


def test_replies_of_other_weights_do_not_count(run: Run) -> None:
    meter = run.meter(Weights(0.9, "7"))
    for _ in range(TRIES):
        with pytest.raises(EngineUnavailableError, match="version 7 answered"):
            asyncio.run(meter.step())
    asyncio.run(meter.step())
    assert run.ledger.lessons.of(ALICE)[0].measure is None, "it waits for the next update"
    assert run.counted("failed") == 1


def test_whole_weights_are_measured_by_a_judge_alone(run: Run) -> None:
    assert run.measure(Weights(0.9, base=False)).measure is None
    assert run.counted("no_base") == 1
    lesson = run.measure(Weights(0.9, base=False), judged=True)
    assert (lesson.reason, lesson.measure and lesson.measure.scorer) == ("learned", "judge")


def test_an_answer_that_is_no_vote_measures_nothing(run: Run) -> None:
    run.rubric.value = 0
    assert run.measure(Weights(0.9), judged=True).measure is None
    assert run.counted("unread") == 1


def test_the_judge_sees_wish_request_and_reply(run: Run) -> None:
    run.measure(Weights(0.9), judged=True)
    assert all(SHORT in each and ("question" in each or "liked" in each) for each in run.rubric.asked)


def test_nobody_who_has_lessons_off_is_measured(run: Run) -> None:
    assert run.measure(Weights(0.9), default="off").measure is None


def test_the_ids_that_were_served_stay_around_the_lesson(run: Run) -> None:
    """Earlier replies may have ids of the policy's own, which their text alone does not give again."""
    weights = Weights(0.9)
    run.served(lambda ids: [1, *ids])
    assert run.measure(weights).reason == "learned"
    assert len(weights.prompts) > 1
    assert all(ids[0] == 1 for _, ids, _ in weights.prompts[1:])


def test_a_prompt_without_a_place_for_the_lesson_is_left_out(run: Run) -> None:
    meter = run.meter(Weights(0.9))
    run.served(lambda ids: [1, *ids, 1])
    asyncio.run(meter.step())
    assert run.counted("few_prompts") == 1 < FEWEST_PROMPTS


def test_without_an_update_nothing_is_asked(tmp_path: Path) -> None:
    run = Run(tmp_path / "ledger.sqlite")
    with closing(run.ledger):
        run.liked()
        weights = Weights(0.9)
        run.measure(weights)
        assert weights.prompts == []


def test_half_of_the_prompts_were_never_practised() -> None:
    turns = [(make_turn(f"turn-{number}", prompt_ids=[number, 1]), number % 3 > 0) for number in range(30)]
    chosen = chosen_turns(turns)
    assert [was for _, was in chosen] == [False] * (PROMPTS // 2) + [True] * (PROMPTS // 2)
    assert [turn.id for turn, _ in chosen[:2]] == ["turn-0", "turn-3"]
    new, used = ([each for each in turns if each[1] == was] for was in (False, True))
    assert chosen_turns(new) == new[:PROMPTS]
    assert chosen_turns(used) == used[:PROMPTS]
    assert len(chosen_turns([*new[:1], *used])) == len(chosen_turns([*new, *used[:1]])) == PROMPTS
    [(turn, was)] = chosen_turns(
        [(make_turn("again", prompt_ids=[1]), False), (make_turn("before", prompt_ids=[1]), True)]
    )
    assert (turn.id, was) == ("again", True), "the same prompt was practised"


def test_errors_are_those_of_paired_prompts() -> None:
    plain, taught = [[1.0, 3.0], [4.0, 4.0], [0.0, 1.0]], [[2.0, 2.0], [5.0, 7.0], [1.0, 1.0]]
    found = compared(plain, taught)
    assert (found["plain"], found["taught"]) == (pytest.approx(6.5 / 3), pytest.approx(3.0))
    assert found["error"] == pytest.approx(statistics.stdev([0.0, -2.0, -0.5]) / math.sqrt(3))
    assert found["taught_error"] == pytest.approx(statistics.stdev([2.0, 6.0, 1.0]) / math.sqrt(3))
