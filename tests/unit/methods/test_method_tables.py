"""(score, hint, teacher) -> samples, for each of the three methods, as tables."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import pytest
from openclaw_combine_method import Combine, Config
from openclaw_opd_method import OnPolicyDistillation
from openclaw_rl_method import BinaryRL
from openclaw_rl_method import Config as RLConfig

from groundwork.exceptions import ConfigError
from lab.testkit.ledger_records import USER_NEXT, make_turn
from openclaw.config.runtime import RuntimeConfig
from openclaw.ledger.records import JudgedTurn, Verdict, Vote
from openclaw.method import JudgePlan, Method, SampleDecision, SessionPlan, load_method

TURN = make_turn(next_state=USER_NEXT, next_state_at=102.0)
TEACHER = (-0.2, -0.4, -0.6)
HINT = "Write plain prose."
CONFIG = RuntimeConfig()


def outcome(decision: SampleDecision) -> Any:
    """Reward and teacher of the one sample, or the reason."""
    if decision.reason is not None:
        return decision.reason
    [sample] = decision.samples
    sample.validate()
    assert sample.tokens == TURN.prompt_ids + TURN.response_ids
    assert sample.rollout_log_probs == TURN.response_logprobs
    assert sample.loss_mask == [1, 1, 1]
    assert sample.weight_versions == ["1"]
    assert sample.session_id == "session"
    return sample.reward, sample.teacher_log_probs


@pytest.mark.parametrize(
    ("score", "expected"), [(1, (1.0, None)), (-1, (-1.0, None)), (0, "score_zero"), (None, "score_zero")]
)
def test_binary_rl(score: int | None, expected: Any) -> None:
    assert outcome(BinaryRL(CONFIG).samples(TURN, Verdict(score=score))) == expected


@pytest.mark.parametrize(
    ("hint", "teacher", "expected"),
    [(HINT, TEACHER, (0.0, list(TEACHER))), (None, None, "no_hint"), (HINT, None, "no_teacher_log_probs")],
)
def test_opd(hint: str | None, teacher: tuple[float, ...] | None, expected: Any) -> None:
    verdict = Verdict(hint=hint, teacher_log_probs=teacher)
    assert outcome(OnPolicyDistillation(CONFIG).samples(TURN, verdict)) == expected


@pytest.mark.parametrize(
    ("score", "hint", "teacher", "expected"),
    [
        (1, HINT, TEACHER, (1.0, list(TEACHER))),
        (-1, HINT, TEACHER, (-1.0, list(TEACHER))),
        (0, HINT, TEACHER, (0.0, list(TEACHER))),
        (-1, None, None, (-1.0, None)),
        (1, None, None, (1.0, None)),
        (-1, HINT, None, (-1.0, None)),
        (0, HINT, None, "no_teacher_log_probs"),
        (0, None, None, "score_zero_no_hint"),
    ],
)
def test_combine(score: int, hint: str | None, teacher: tuple[float, ...] | None, expected: Any) -> None:
    verdict = Verdict(score=score, hint=hint, teacher_log_probs=teacher)
    assert outcome(Combine(CONFIG).samples(TURN, verdict)) == expected


def test_combine_weighs_the_score_once_and_logs_it_raw() -> None:
    method = Combine(CONFIG, Config(w_rl=0.25))
    [sample] = method.samples(TURN, Verdict(score=-1)).samples
    assert (sample.reward, sample.metadata["raw_reward"]) == (-0.25, -1.0)
    without = Combine(CONFIG, Config(w_rl=0.0))
    assert outcome(without.samples(TURN, Verdict(score=-1))) == "score_zero_no_hint"


def test_combine_asks_only_for_the_terms_with_a_weight() -> None:
    """Finding B11: a weight of 0 asked the teacher all the same and gave samples without a gradient."""
    scored = Combine(CONFIG, Config(w_opd=0.0))
    assert scored.judges() == JudgePlan(prm_votes=1)
    assert outcome(scored.samples(TURN, Verdict(score=0, hint=HINT, teacher_log_probs=TEACHER))) == "score_zero_no_hint"
    assert Combine(CONFIG, Config(w_rl=0.0)).judges() == JudgePlan(hint_votes=1, needs_teacher=True)
    with pytest.raises(ConfigError, match="nothing to learn"):
        Combine(CONFIG, Config(w_rl=0.0, w_opd=0.0))


@pytest.mark.parametrize(
    ("method", "plan", "votes"),
    [
        (BinaryRL, JudgePlan(prm_votes=3), JudgePlan(prm_votes=5)),
        (OnPolicyDistillation, JudgePlan(hint_votes=1, needs_teacher=True), JudgePlan(0, 5, True)),
        (Combine, JudgePlan(1, 1, True), JudgePlan(5, 5, True)),
    ],
)
def test_votes_are_the_papers_unless_set(method: Any, plan: JudgePlan, votes: JudgePlan) -> None:
    assert method(CONFIG).judges() == plan
    assert method(replace(CONFIG, prm_m=5)).judges() == votes
    assert isinstance(method(CONFIG), Method)


def judged(turn_id: str, reason: str | None, score: int = 0) -> JudgedTurn:
    return JudgedTurn(replace(TURN, id=turn_id, state="judged", reason=reason), Verdict(score=score))


@pytest.mark.parametrize("method", [BinaryRL, OnPolicyDistillation, Combine])
def test_a_session_without_any_score_trains_nothing(method: Any) -> None:
    assert method(CONFIG).session_samples([judged("a", "score_zero")]) == []


def zero(turn_id: str, *votes: int | None, source: Any = "judge") -> JudgedTurn:
    verdict = Verdict(score=0, score_source=source, votes=tuple(Vote("prm", "", value) for value in votes))
    return JudgedTurn(replace(TURN, id=turn_id, state="judged", reason="score_zero"), verdict)


@pytest.mark.parametrize(
    ("session", "expected"),
    [
        ([zero("a"), zero("b")], ("b", 0.5)),
        ([zero("a", 1, 0, 0), zero("b", 1, -1, 0)], ("a", 0.5)),
        ([zero("a", 1, 0, 0), zero("b", -1, 0, None)], ("b", -0.5)),
        ([zero("a", -1, 0, 0), zero("b", 0, 0, -1)], ("b", -0.5)),
        ([zero("a"), judged("b", "no_quorum")], ("a", 0.5)),
        ([zero("a"), judged("b", None, 1)], None),
        ([judged("a", "no_quorum"), judged("b", "asks_back")], None),
        ([zero("a", source="feedback")], None),
        ([], None),
    ],
)
def test_at_least_one_reply_of_a_session_is_trained(
    session: list[JudgedTurn], expected: tuple[str, float] | None
) -> None:
    method = BinaryRL(CONFIG, RLConfig(at_least_one=0.5))
    made = [(turn_id, sample.reward) for turn_id, sample in method.session_samples(session)]
    assert made == ([expected] if expected else [])
    for _, sample in method.session_samples(session):
        sample.validate()
        assert (sample.loss_mask, sample.metadata["raw_reward"]) == ([1, 1, 1], 0.0)


def test_truncated_reply_is_marked() -> None:
    turn = replace(TURN, finish_reason="length")
    [sample] = BinaryRL(CONFIG).samples(turn, Verdict(score=-1)).samples
    assert sample.status is type(sample).Status.TRUNCATED


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("openclaw_rollout", "generate_rollout_openclaw"),
        ("openclaw_opd_rollout", "generate_rollout_openclaw_opd"),
        ("openclaw_combine_rollout", "generate_rollout_openclaw_combine"),
        ("openclaw_sdpo_rollout", "generate_rollout_openclaw_sdpo"),
        ("openclaw_oel_rollout", "generate_rollout_openclaw_oel"),
        ("openclaw_personal_rollout", "generate_rollout_openclaw_personal"),
    ],
)
def test_rollout_file_names_a_method_that_loads(module: str, name: str) -> None:
    plugin = __import__(module)
    assert load_method(plugin.METHOD, CONFIG).judges()
    parameters = inspect.signature(getattr(plugin, name)).parameters
    assert list(parameters) == ["args", "rollout_id", "data_source", "evaluation"]
    assert parameters["evaluation"].default is False


def test_method_must_implement_the_protocol() -> None:
    with pytest.raises(ConfigError, match=r"str lacks name: add name = .*; str lacks samples: add def samples"):
        load_method("builtins.str", CONFIG)
    with pytest.raises(ConfigError, match=r"openclaw_rl_method .*has no 'Binary'"):
        load_method("openclaw_rl_method.Binary", CONFIG)


def test_plans_and_decisions_say_what_is_missing() -> None:
    with pytest.raises(ValueError, match="the teacher reads the hint by default; set hint_votes"):
        JudgePlan(needs_teacher=True)
    with pytest.raises(ValueError, match="hint_votes"):
        JudgePlan(prm_votes=1, needs_teacher=True)
    with pytest.raises(ValueError, match="needs_teacher=True"):
        JudgePlan(prm_votes=1, teacher_context=lambda turn, verdict: turn.messages)
    with pytest.raises(ValueError, match="set hint_votes"):
        JudgePlan(prm_votes=1, session=SessionPlan(lambda turns: [], 60.0))
    with pytest.raises(ValueError, match="either samples or a reason"):
        SampleDecision()


def test_a_method_is_built_with_its_own_variables() -> None:
    method = load_method("openclaw_combine_method.Combine", CONFIG, {"OPENCLAW_COMBINE_W_RL": "0.5"})
    [sample] = method.samples(TURN, Verdict(score=-1)).samples
    assert sample.reward == -0.5
    with pytest.raises(ConfigError, match="OPENCLAW_COMBINE_W_RL=-1"):
        load_method("openclaw_combine_method.Combine", CONFIG, {"OPENCLAW_COMBINE_W_RL": "-1"})
