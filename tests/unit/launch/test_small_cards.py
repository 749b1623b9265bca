"""One card of 16 or 12 GB: a policy of 4B over a base in NF4, and a judge elsewhere."""

from __future__ import annotations

import itertools

import pytest

from openclaw.launch.plan import Plan, Recipe
from openclaw.launch.profiles import PROFILES
from openclaw.launch.resolve import make_plan
from slime.arguments.memory_budget.gpu import GIB
from tests.helpers.needed import needs
from tests.unit.launch.test_scripts import CLEAN, SMALL_CARDS, plan_words

pytestmark = needs("bitsandbytes")
JUDGE = {"OPENCLAW_JUDGE_BASE_URL": "https://host/v1", "OPENCLAW_JUDGE_MODEL": "m"}


def plan_of(script: str, profile: str = "gpu1_16gb", **environment: str) -> Plan:
    options = dict(itertools.pairwise(plan_words(script)))
    recipe = Recipe(options["--method"], options["--model"], PROFILES[profile])
    return make_plan(recipe, [], CLEAN | environment, options["--name"])


def of_memory(warnings: tuple[str, ...]) -> list[str]:
    return [warning for warning in warnings if not warning.startswith("the disk of ")]


@pytest.mark.parametrize("script", SMALL_CARDS)
def test_a_script_fits_16_gb_with_a_judge_elsewhere(script: str) -> None:
    plan = plan_of(script, **JUDGE)
    assert plan.budget.problems == ()
    assert of_memory(plan.budget.warnings) == []
    assert (plan.args.base_quantization, plan.args.update_weight_mode) == ("nf4", "adapter")
    (row,) = plan.budget.rows
    assert [need.role for need in row.needs] == ["actor", "rollout"]
    assert row.total + row.doubt <= 16 * GIB


def test_without_the_quantised_base_it_does_not_fit() -> None:
    plan = plan_of(SMALL_CARDS[0], **JUDGE)
    options = dict(itertools.pairwise(plan_words(SMALL_CARDS[0])))
    recipe = Recipe(options["--method"], options["--model"], PROFILES["gpu1_16gb"])
    whole = make_plan(recipe, ["--base-quantization", "none"], CLEAN | JUDGE, options["--name"])
    assert any("GPU 0 needs" in problem for problem in whole.problems)
    saved = whole.budget.rows[0].total - plan.budget.rows[0].total
    assert 9 * GIB < saved < 10 * GIB


def test_12_gb_hold_short_conversations_of_binary_rl() -> None:
    plan = plan_of("openclaw-rl/run_qwen3_4b_openclaw_rl_16gb.sh", "gpu1_12gb", **JUDGE)
    assert plan.budget.problems == ()
    assert of_memory(plan.budget.warnings) == []
    assert plan.args.rollout_max_context_len == 4096
    (row,) = plan.budget.rows
    assert row.total + row.doubt <= 12 * GIB


def test_a_judge_of_its_own_is_refused_in_one_line() -> None:
    problems = [problem for problem in plan_of(SMALL_CARDS[0]).problems if "no such folder" not in problem]
    wanted = "--profile gpu1_16gb has no room for a judge: set OPENCLAW_JUDGE_BASE_URL=https://HOST/v1"
    assert len(problems) == 1
    assert problems[0].startswith(wanted)
