"""A run that cannot practise is refused before it starts, and told what to type."""

from __future__ import annotations

from typing import Any

import pytest
from openclaw_personal_method import LOSS, Personal

from lab.testkit.ledger_records import make_turn
from openclaw.config.runtime import RuntimeConfig
from openclaw.ledger.records import Verdict
from openclaw.training.live_arguments import practice_problem
from slime.args import Arguments

FITS: dict[str, Any] = {
    "use_lora": True,
    "loss_type": "custom_loss",
    "custom_loss_function_path": LOSS,
    "distill_topk": 50,
}


@pytest.mark.parametrize(
    ("change", "practice", "wrong"),
    [
        ({}, "liked", None),
        ({"use_lora": False}, "off", None),
        ({"use_lora": False}, "trial", "needs LoRA"),
        ({"loss_type": "policy_loss"}, "liked", "use --method personal"),
        ({"distill_topk": 0}, "liked", "use --method personal"),
        ({"custom_loss_function_path": "combine_loss.combine_loss_function"}, "liked", "use --method personal"),
    ],
)
def test_what_practice_needs(change: dict[str, Any], practice: str, wrong: str | None) -> None:
    found = practice_problem(Arguments(**{**FITS, **change}), practice)
    assert found is None if wrong is None else wrong in (found or "")


def test_a_replay_needs_importance_weights() -> None:
    plain, weighted = (Arguments(**FITS, use_tis=use_tis) for use_tis in (False, True))
    assert "--use-tis" in (practice_problem(plain, "liked", replays=True) or "")
    assert practice_problem(weighted, "liked", replays=True) is None
    assert practice_problem(plain, "liked") is None
    assert practice_problem(plain, "off", replays=True) is None, "the launcher says that it has no effect"


def test_a_turn_without_lessons_trains_its_score() -> None:
    method, turn = Personal(RuntimeConfig.from_env({})), make_turn()
    assert method.judges().prm_votes == 3
    assert [sample.reward for sample in method.samples(turn, Verdict(score=-1)).samples] == [-1.0]
    assert method.samples(turn, Verdict(score=0)).reason == "score_zero"
    assert method.session_samples([]) == []
