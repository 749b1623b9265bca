"""``ADAPTERS``: off as before, refused where it cannot work, and planned by the dry run."""

from __future__ import annotations

from pathlib import Path

import pytest

from groundwork.exceptions import ConfigError
from openclaw.launch.adapters import HELD, KEPT, PER_OWNER, adapter_lines
from openclaw.launch.plan import Plan, Recipe
from openclaw.launch.profiles import GPU8
from openclaw.launch.report import describe
from openclaw.launch.resolve import make_plan
from slime.arguments.memory_budget.budget import PEOPLE_PER_BATCH, people_bytes
from slime.arguments.memory_budget.shape import policy_shape
from slime.backends.sglang_utils.server_args import HELD_PEOPLE, PEOPLE_OPTIONS
from slime.weight_sync import people

SECRET = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}


def plan_of(**environment: str) -> Plan:
    return make_plan(Recipe("rl", "qwen3-4B", GPU8), [], {"GPU_MEMORY_GB": "80", **environment})


def of_adapters(plan: Plan) -> list[str]:
    return [problem for problem in plan.problems if problem.startswith("ADAPTERS=")]


def test_off_and_shared_change_nothing() -> None:
    assert plan_of(ADAPTERS="off").command == plan_of().command
    shared = plan_of(ADAPTERS="shared", USE_LORA="1")
    assert of_adapters(shared) == []
    assert shared.command == plan_of(USE_LORA="1").command
    assert "one per person" not in describe(shared)


@pytest.mark.parametrize("choice", ["shared", "per-owner"])
def test_adapters_need_lora(choice: str) -> None:
    assert f"ADAPTERS={choice} needs LoRA; add USE_LORA=1, or set ADAPTERS=off" in of_adapters(plan_of(ADAPTERS=choice))


def test_an_adapter_per_person_is_for_live_conversations_on_one_machine(tmp_path: Path) -> None:
    of_logs = plan_of(ADAPTERS="per-owner", USE_LORA="1", DATA_PATH=str(tmp_path))
    assert of_adapters(of_logs) == [
        "ADAPTERS=per-owner is for live conversations; set ADAPTERS=shared to train from DATA_PATH"
    ]
    many = plan_of(ADAPTERS="per-owner", USE_LORA="1", NNODES="2", MASTER_ADDR="10.0.0.1", **SECRET)
    assert [problem.partition(",")[0] for problem in of_adapters(many)] == ["ADAPTERS=per-owner is for one machine"]


def test_an_adapter_per_person_is_a_flag_of_the_trainer() -> None:
    plan = plan_of(ADAPTERS="per-owner", USE_LORA="1")
    assert of_adapters(plan) == []
    assert plan.args.adapter_per_person
    assert PEOPLE_OPTIONS["max_loras_per_batch"] == PEOPLE_PER_BATCH
    assert (HELD_PEOPLE, people.KEPT) == (HELD, KEPT)


def test_each_update_of_a_person_is_saved() -> None:
    assert plan_of(ADAPTERS="shared", USE_LORA="1").args.save_interval == plan_of().args.save_interval != 1
    plan = plan_of(ADAPTERS="per-owner", USE_LORA="1")
    assert (plan.args.save_interval, plan.variables["save_interval"].source) == (1, "adapters")
    rarely = plan_of(ADAPTERS="per-owner", USE_LORA="1", SAVE_INTERVAL="5")
    (told,) = [problem for problem in rarely.problems if "--save-interval" in problem]
    assert "use --save-interval 1 (variables: ADAPTERS, SAVE_INTERVAL)" in told


def test_another_word_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"ADAPTERS='each' is not a choice; use one of off, shared, per-owner"):
        plan_of(ADAPTERS="each")


def test_the_dry_run_plans_adapters_loaded_in_memory_and_on_disk() -> None:
    """36 layers of hidden size 2560, 32 and 8 heads of 128, inner size 9728; rank 8: 16.5 million parameters."""
    plan = plan_of(ADAPTERS="per-owner", USE_LORA="1", LORA_RANK="8")
    parameters = 8 * 36 * (2 * (2560 + 4096) + 2 * (2560 + 1024) + 3 * (2560 + 9728))
    first, second = adapter_lines(PER_OWNER, plan.args)
    assert f"of {parameters / 1e6:.1f} million parameters ({2 * parameters / 2**20:.1f} MiB)" in first
    assert f"holds 128 in main memory ({256 * parameters / 2**30:.1f} GiB)" in first
    assert f"32 people in main memory, and two copies ({34 * 12 * parameters / 2**30:.1f} GiB)" in second
    assert f"100 people {100 * 5 * 14 * parameters / 2**30:.1f} GiB" in second
    assert first in describe(plan)
    args = plan.args.changed(sglang_max_loaded_loras=40, sglang_max_loras_per_batch=17, people_in_memory=6)
    first, second = adapter_lines(PER_OWNER, args)
    assert (
        f"with 17 in a batch ({17 * 2 * parameters / 2**30:.1f} GiB of its GPUs) and holds 40 in main memory" in first
    )
    assert (
        f"6 people in main memory, and two copies ({people_bytes(args, policy_shape(args)) / 2**30:.1f} GiB)" in second
    )


def test_adapters_in_float32_are_twice_as_large() -> None:
    plan = plan_of(ADAPTERS="per-owner", USE_LORA="1", LORA_RANK="8")
    parameters = 8 * 36 * (2 * (2560 + 4096) + 2 * (2560 + 1024) + 3 * (2560 + 9728))
    first, second = adapter_lines(PER_OWNER, plan.args.changed(train_dtype="float32"))
    assert f"({4 * parameters / 2**20:.1f} MiB)" in first
    assert f"a person takes {5 * 16 * parameters / 2**20:.0f} MiB" in second
