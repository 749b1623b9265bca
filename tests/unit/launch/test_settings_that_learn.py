"""A plan bounds its losses, and settings under which a run serves but never trains are refused (findings B5, B9, B11)."""

from __future__ import annotations

from pathlib import Path

import pytest

from openclaw.launch.method_check import plan_problems
from openclaw.launch.plan import Plan, Recipe
from openclaw.launch.profiles import GPU8
from openclaw.launch.resolve import make_plan
from tests.helpers.checkpoints import config_only

METHODS = ("rl", "opd", "combine")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return config_only(tmp_path / "model")


def plan(method: str, model: Path, *extra: str, **environment: str) -> Plan:
    return make_plan(Recipe(method, None, GPU8), extra, {"HF_CKPT": str(model), **environment})


@pytest.mark.parametrize("method", METHODS)
def test_every_plan_bounds_the_loss_of_a_negative_advantage(method: str, model: Path) -> None:
    """Finding B5: A = -1 at a ratio of e^5 weighed 148."""
    assert plan(method, model).args.eps_clip_c == 3.0
    assert plan(method, model, "--eps-clip-c", "5").args.eps_clip_c == 5.0


@pytest.mark.parametrize("method", METHODS)
def test_every_plan_takes_the_kl_that_has_a_gradient_everywhere(method: str, model: Path) -> None:
    """Finding B9: low_var_kl is clamped, so far from the reference it pulls nothing back."""
    args = plan(method, model, KL_LOSS_COEF="0.02").args
    assert (args.use_kl_loss, args.kl_loss_coef, args.kl_loss_type) == (True, 0.02, "k3")


def test_a_top_p_under_which_nothing_is_trained_is_refused(model: Path) -> None:
    [problem] = plan("combine", model, OPENCLAW_TOP_P="0.9").problems
    assert "never trained; unset it" in problem
    assert plan("combine", model, OPENCLAW_TOP_P="1").problems == ()


@pytest.mark.parametrize(
    ("method", "changes", "words"),
    [
        ("rl", {"MAJORITY_VOTE_THRESHOLD": "0.7"}, None),
        ("rl", {"MAJORITY_VOTE_THRESHOLD": "0.7", "PRM_M": "1"}, "no effect with one vote; set PRM_M=3"),
        ("combine", {"MAJORITY_VOTE_THRESHOLD": "0.7"}, "no effect with one vote; set PRM_M=3"),
        ("combine", {"MAJORITY_VOTE_THRESHOLD": "0.7", "PRM_M": "3"}, None),
        ("combine", {}, None),
        ("opd", {"MAJORITY_VOTE_THRESHOLD": "0.7"}, "asks for no score; unset it"),
        ("combine", {"OPENCLAW_COMBINE_W_RL": "0", "OPENCLAW_COMBINE_W_OPD": "0"}, "nothing to learn"),
    ],
)
def test_votes_and_weights_without_effect_are_refused(
    method: str, changes: dict[str, str], words: str | None, model: Path
) -> None:
    problems = plan_problems(plan(method, model, **changes))
    assert len(problems) == (words is not None)
    assert words is None or words in problems[0]


@pytest.mark.parametrize("name", ["TOKENS", "ROUNDS", "PASSES", "REPLAY", "RUBRIC"])
def test_settings_of_practice_without_practice_are_refused(name: str, model: Path) -> None:
    typed = {f"OPENCLAW_PRACTICE_{name}": "64" if name == "TOKENS" else "1"}
    [problem] = plan_problems(plan("rl", model, **typed))
    assert problem.startswith(f"OPENCLAW_PRACTICE_{name} has no effect")
    assert "set OPENCLAW_PRACTICE=liked" in problem
    assert plan_problems(plan("personal", model, "--use-tis", **typed)) == []


def test_the_threshold_reaches_the_judge_loop(model: Path) -> None:
    """Finding B11: the variable was documented and refused."""
    assert plan("rl", model, MAJORITY_VOTE_THRESHOLD="0.7").runtime.majority_vote_threshold == 0.7
