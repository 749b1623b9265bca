"""Files that guides name as values of flags, and modules that they import, are there and are ours."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import toolcall_trainer
import toolcall_training

from openclaw.launch.method_check import plan_problems
from openclaw.launch.plan import Recipe
from openclaw.launch.profiles import PROFILES
from openclaw.launch.resolve import make_plan
from slime.utils.misc import load_function


@pytest.mark.parametrize(("method", "name"), [("rl", "rollout_binary"), ("opd", "rollout_opd")])
def test_the_rollout_function_of_a_guide_is_that_of_the_method(method: str, name: str, repository: Path) -> None:
    folder = repository / f"openclaw-{method}"
    flags = ["--rollout-function-path", str(folder / f"{name}.py")]
    plan = make_plan(Recipe(method, None, PROFILES["gpu8"]), flags, {})
    assert plan_problems(plan) == []
    own = make_plan(Recipe(method, None, PROFILES["gpu8"]), [], {}).args.rollout_function_path
    assert load_function(plan.args.rollout_function_path) is load_function(own)


def test_the_reward_of_a_guide_is_the_judge_and_scores_evaluation_sets(repository: Path) -> None:
    file = repository / "openclaw-rl" / "process_reward_model.py"
    plan = make_plan(Recipe("rl", None, PROFILES["gpu8"]), ["--custom-rm-path", str(file)], {})
    assert [line for line in plan.warnings if "scores evaluation sets only; the judge scores the turns" in line]
    assert load_function(plan.args.custom_rm_path) is load_function("openclaw.training.evaluation.judge_reward")


def test_the_steps_of_tool_training_have_the_module_of_the_guide() -> None:
    for name in toolcall_trainer.__all__:
        assert getattr(toolcall_trainer, name) is getattr(toolcall_training, name)
    for module in ("rollout_binary", "rollout_opd", "process_reward_model"):
        assert importlib.import_module(module).__all__


def test_a_wrong_loss_is_named_by_the_plan(tmp_path: Path) -> None:
    file = tmp_path / "custom_loss.py"
    file.write_text("def compute_loss(policy_logits, labels): ...\n")
    plan = make_plan(Recipe("rl", None, PROFILES["gpu8"]), ["--custom-loss-function-path", str(file)], {})
    (problem,) = plan_problems(plan)
    assert problem.startswith(f"--custom-loss-function-path {file}:compute_loss: clause loss-1: nothing is known for")
    assert plan.args.loss_type == "custom_loss"
