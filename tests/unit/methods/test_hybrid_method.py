"""Hybrid: which verdicts become samples, with which terms; and the judge loop that feeds it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from openclaw_hybrid_method import Config, Hybrid
from prometheus_client import CollectorRegistry

from groundwork.exceptions import ConfigError
from lab.testkit.ledger_records import USER_NEXT, make_turn
from lab.testkit.waiting import eventually
from openclaw.config.runtime import RuntimeConfig
from openclaw.judge import wiring
from openclaw.judge.hygiene import Limits
from openclaw.judge.interface import Question
from openclaw.judge.teacher import SupportScorer, TeacherScorer
from openclaw.judge.voting import JudgeMetrics
from openclaw.judge.worker import JudgeWorker, WorkerSettings
from openclaw.ledger.records import JudgeKind, TopK, Verdict, Vote
from openclaw.ledger.store import Ledger
from openclaw.method import HintChoice, JudgePlan
from openclaw.method.check import MethodCheck
from tests.helpers.fake_engine import FakeEngine

CONFIG, DEFAULTS = RuntimeConfig(), Config()
OWN = TopK([[-0.1, -2.5], [-0.4, -1.5], [-0.5, -1.0]], [[5, 9], [6, 8], [7, 4]])
TAUGHT = TopK([[-0.2, -2.0], [-0.3, -1.6], [-0.9, -0.6]], OWN.ids)
TURN = make_turn(next_state=USER_NEXT, next_state_at=102.0, response_topk=OWN)
HINT = "Write plain prose."


@pytest.mark.parametrize(
    ("score", "hint", "teacher", "expected"),
    [
        (1, HINT, TAUGHT, (1.0, True)),
        (-1, HINT, TAUGHT, (-1.0, True)),
        (0, HINT, TAUGHT, (0.0, True)),
        (None, HINT, TAUGHT, (0.0, True)),
        (-1, None, None, (-1.0, False)),
        (-1, HINT, None, (-1.0, False)),
        (0, HINT, None, "no_teacher_topk"),
        (0, None, None, "score_zero_no_hint"),
    ],
)
def test_the_terms_of_a_sample(score: int | None, hint: str | None, teacher: TopK | None, expected: Any) -> None:
    decision = Hybrid(CONFIG).samples(TURN, Verdict(score=score, hint=hint, teacher_topk=teacher))
    if isinstance(expected, str):
        assert decision.reason == expected
        return
    [sample] = decision.samples
    sample.validate()
    assert (sample.reward, sample.teacher_topk_indices is not None) == expected
    streams = (sample.teacher_topk_indices, sample.teacher_topk_log_probs, sample.rollout_topk_log_probs)
    assert streams == ((OWN.ids, TAUGHT.log_probs, OWN.log_probs) if teacher else (None, None, None))
    assert sample.teacher_log_probs is None
    assert sample.metadata.get("hint") == hint


def test_the_weights() -> None:
    verdict = Verdict(score=-1, hint=HINT, teacher_topk=TAUGHT)
    [sample] = Hybrid(CONFIG, Config(w_rl=0.25)).samples(TURN, verdict).samples
    assert (sample.reward, sample.metadata["raw_reward"]) == (-0.25, -1.0)
    flags = list(Config(w_opd=0.5).launch_flags())
    assert flags[flags.index("--opd-kl-coef") + 1] == "0.5"
    assert flags[flags.index("--opd-clip") + 1] == "1.0"
    scored = Hybrid(CONFIG, Config(w_opd=0.0))
    assert scored.judges() == JudgePlan(prm_votes=3)
    assert scored.samples(TURN, replace(verdict, score=0)).reason == "score_zero_no_hint"
    with pytest.raises(ConfigError, match="nothing to learn"):
        Hybrid(CONFIG, Config(w_rl=0.0, w_opd=0.0))


def test_the_variables() -> None:
    given = {
        "OPENCLAW_HYBRID_W_RL": "0",
        "OPENCLAW_HYBRID_W_OPD": "2",
        "OPENCLAW_HYBRID_TOPK": "8",
        "OPENCLAW_HYBRID_HINT_CHOICE": "token_optimal",
    }
    own = Config.from_env(given)
    assert own == Config(w_rl=0.0, w_opd=2.0, topk=8, hint_choice="token_optimal")
    plan = JudgePlan(hint_votes=5, needs_teacher=True, student_topk=8, hint_choice="token_optimal")
    assert Hybrid(replace(CONFIG, prm_m=5), own).judges() == plan
    assert Hybrid(CONFIG).judges() == JudgePlan(3, 3, True, student_topk=4)
    assert Config.declared("hint_choice").choices == get_args(HintChoice)
    with pytest.raises(ConfigError, match="OPENCLAW_HYBRID_TOPK=65"):
        Config.from_env({"OPENCLAW_HYBRID_TOPK": "65"})


def test_it_passes_the_check_of_methods() -> None:
    assert MethodCheck(Hybrid(CONFIG)).run(0.6) == []
    with pytest.raises(ValueError, match="student_topk is for a teacher"):
        JudgePlan(prm_votes=1, student_topk=4)


def test_the_teacher_reports_at_least_as_many_tokens_as_it_scores() -> None:
    plan, engine = Hybrid(CONFIG).judges(), object()
    with pytest.raises(ConfigError, match=r"OPENCLAW_DISTILL_TOPK=3 .* add --distill-topk 64"):
        wiring.build_teacher(replace(CONFIG, distill_topk=3), plan, engine, engine, engine)  # pyright: ignore[reportArgumentType]
    build = wiring.build_teacher(replace(CONFIG, distill_topk=4), plan, engine, engine, engine)  # pyright: ignore[reportArgumentType]
    assert isinstance(build, SupportScorer)


class Voters:
    """A judge whose hint votes are ``hints``."""

    def __init__(self, hints: list[str]) -> None:
        self.hints = hints

    async def votes(self, kind: JudgeKind, question: Question, count: int) -> list[Vote]:
        if kind == "prm":
            return [Vote("prm", "", -1)] * count
        return [Vote("hint", "", 1, hint) for hint in self.hints][:count]

    async def answers(self) -> bool:
        return True

    async def close(self) -> None:
        """Nothing to close."""


def worker(ledger: Ledger, hints: list[str], registry: CollectorRegistry, own: Config = DEFAULTS) -> JudgeWorker:
    """A worker whose prompts have an id per character of the hint, and whose teacher agrees with the policy after `HINT`."""

    def topk(ids: Any, count: int) -> Any:
        shift = abs(len(ids) - 3 - len(HINT))
        rows = [[], *([[]] * (len(ids) - 1 - len(OWN.ids)))]
        return [*rows, *([(-0.5 * n, token + shift) for n, token in enumerate(row)] for row in OWN.ids)]

    def render(messages: Any, tools: Any, keywords: Any) -> list[int]:
        _, hinted, last = messages[-1]["content"].rpartition("\n")
        return [9] * len(last) if hinted else make_turn().prompt_ids

    engine = FakeEngine(
        score=lambda ids: [-1.0] * len(ids), topk=topk, next_of=lambda ids, t, wanted: [-7.0] * len(wanted)
    )
    teacher = SupportScorer(teacher=engine, render=render, choice=own.hint_choice, rows=2, concurrency=1)
    return JudgeWorker(
        ledger,
        Hybrid(CONFIG, own),
        Voters(hints),
        teacher,
        Limits(temperature=TURN.temperature, min_response_tokens=2, max_tokens=100),
        JudgeMetrics(registry),
        Voters([]).answers,
        WorkerSettings(poll_seconds=0.02),
    )


async def judge(ledger: Ledger, loop: JudgeWorker) -> None:
    stop = asyncio.Event()
    task = asyncio.create_task(loop.run(stop))
    await eventually(lambda: ledger.views.counts()["turns"].get("judged"), 1)
    stop.set()
    await task


@pytest.mark.parametrize(
    ("choice", "hint"), [("sequence_optimal", HINT), ("token_optimal", HINT), ("shortest", "No bold text.")]
)
async def test_the_worker_keeps_the_hint_that_the_teacher_read(choice: HintChoice, hint: str, tmp_path: Path) -> None:
    ledger, registry = Ledger(tmp_path / "ledger.sqlite"), CollectorRegistry()
    ledger.turns.record(make_turn(response_topk=OWN))
    ledger.turns.record_next_state("turn-0", USER_NEXT, 102.0)
    hints = ["Write short sentences without lists or bold type.", HINT, "No bold text."]
    await judge(ledger, worker(ledger, hints, registry, Config(hint_choice=choice)))
    [sample] = ledger.samples.claim(0, 1)
    assert (sample.metadata["hint"], sample.reward) == (hint, -1.0)
    assert sample.teacher_topk_indices == OWN.ids
    assert sample.rollout_topk_log_probs == OWN.log_probs
    [judged] = ledger.judging.judged("session")
    assert (judged.verdict.hint, judged.verdict.teacher_versions) == (hint, ("1",))
    positions = "openclaw_judge_teacher_positions_total"
    settled = {name: registry.get_sample_value(positions, {"settled": name}) for name in ("together", "alone")}
    assert sum(value or 0.0 for value in settled.values()) == len(TURN.response_ids)
    assert registry.get_sample_value("openclaw_judge_hint_overlap_count") == 1.0


async def test_a_turn_from_before_the_method_has_its_reward_only(tmp_path: Path) -> None:
    ledger, registry = Ledger(tmp_path / "ledger.sqlite"), CollectorRegistry()
    ledger.turns.record(make_turn())
    ledger.turns.record_next_state("turn-0", USER_NEXT, 102.0)
    await judge(ledger, worker(ledger, [HINT], registry))
    [sample] = ledger.samples.claim(0, 1)
    assert (sample.reward, sample.teacher_topk_indices, sample.rollout_topk_log_probs) == (-1.0, None, None)
    assert registry.get_sample_value("openclaw_judge_teacher_failures_total", {"kind": "mismatch"}) == 1.0


def test_a_worker_without_such_a_teacher_is_refused(tmp_path: Path) -> None:
    other = TeacherScorer(policy=FakeEngine(), teacher=FakeEngine(), render=lambda *_: [1], concurrency=1)
    with pytest.raises(ValueError, match="pass a SupportScorer"):
        JudgeWorker(
            Ledger(tmp_path / "ledger.sqlite"),
            Hybrid(CONFIG),
            Voters([]),
            other,
            Limits(temperature=0.6, min_response_tokens=2, max_tokens=100),
            JudgeMetrics(CollectorRegistry()),
            Voters([]).answers,
        )
