"""The flag of the gate: what it cannot work with, and what its snapshots take of the host's memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slime.args import Arguments
from slime.arguments import parse_args
from slime.arguments.algorithm import check_gate
from slime.arguments.memory_budget.budget import host_line, snapshot_bytes
from slime.arguments.memory_budget.gpu import GIB
from slime.arguments.memory_budget.shape import Shape
from slime.arguments.memory_budget.trainer import push_bytes
from slime.arguments.plugins import missing_plugins
from tests.helpers.arguments import refusal
from tests.unit.slime_core.test_memory_budget import QWEN3_4B

PLUGIN = "tests.helpers.gate_plugin.decide"
PROMPTS = "--prompt-data p.jsonl --rollout-max-response-len 64"


def test_a_plugin_is_found_before_anything_starts(base: list[str], tmp_path: Path) -> None:
    words = [*base, *PROMPTS.split()]
    assert parse_args([*words, "--before-push-path", PLUGIN]).before_push_path == PLUGIN
    file = tmp_path / "gate.py"
    file.write_text("def decide(args, rollout_id, data_source, policies): ...\n")
    assert parse_args([*words, "--before-push-path", f"{file}:decide"]).before_push_path == f"{file}:decide"
    (missing,) = missing_plugins(parse_args([*words, "--before-push-path", f"{file}:judge"]))
    assert missing.startswith(f"--before-push-path {file}:judge: {file} has no 'judge'")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--update-weights-interval 2", "--update-weights-interval 2 joins several; remove one of them"),
        ("--debug-rollout-only", "no effect with --debug-rollout-only"),
        ("--debug-train-only", "no effect with --debug-train-only"),
        ("--load-debug-rollout-data x", "or replayed rollouts"),
    ],
)
def test_what_cannot_have_a_gate_is_refused(
    base: list[str], capsys: pytest.CaptureFixture[str], flags: str, says: str
) -> None:
    assert says in refusal(capsys, [*base, *PROMPTS.split(), "--before-push-path", PLUGIN, *flags.split()])


ENGINES = "--rollout-num-gpus 2"


def test_two_engines_and_a_gate_let_one_be_first(base: list[str]) -> None:
    words = [*base, *PROMPTS.split(), "--before-push-path", PLUGIN, *ENGINES.split()]
    assert parse_args([*words, "--canary-engine"]).canary_engine
    assert not parse_args(words).canary_engine


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (ENGINES, "--canary-engine has no effect without --before-push-path; add it"),
        (f"--before-push-path {PLUGIN}", "needs 2 engines, but there is one: give --rollout-num-gpus 2 or more"),
        (
            f"--before-push-path {PLUGIN} {ENGINES} --rollout-num-gpus-per-engine 2",
            "there is one: give --rollout-num-gpus 4 or more, or remove it",
        ),
        (f"--before-push-path {PLUGIN} --colocate", "remove it or --colocate"),
        (f"--before-push-path {PLUGIN} {ENGINES} --no-use-fault-tolerance", "remove it or --no-use-fault-tolerance"),
        (
            f"--before-push-path {PLUGIN} --rollout-external-engine-addrs a:1 b:2",
            "needs the run's own engines; remove it or --rollout-external-engine-addrs",
        ),
    ],
)
def test_what_cannot_have_an_engine_first_is_refused(
    base: list[str], capsys: pytest.CaptureFixture[str], flags: str, says: str
) -> None:
    assert says in refusal(capsys, [*base, *PROMPTS.split(), "--canary-engine", *flags.split()])


@pytest.mark.parametrize("name", ["optimizer_cpu_offload", "use_precision_aware_optimizer"])
def test_an_optimizer_whose_state_is_elsewhere_is_refused(name: str) -> None:
    flags: dict[str, Any] = {name: True}
    args = Arguments(before_push_path=PLUGIN, update_weights_interval=1, **flags)
    (problem,) = check_gate(args)
    assert f"cannot undo the steps of --{name.replace('_', '-')}" in problem
    assert check_gate(args.changed(before_push_path=None)) == []


def test_snapshots_are_in_the_budget() -> None:
    """Weights in float32 and both moments; adapters only with LoRA; a Megatron copy has its own weights too."""
    shape, whole = QWEN3_4B, QWEN3_4B.parameters
    flags: dict[str, Any] = {"train_backend": "fsdp", "train_dtype": "bfloat16", "actor_num_nodes": 1}
    args = Arguments(before_push_path=PLUGIN, actor_num_gpus_per_node=4, **flags)
    assert snapshot_bytes(args, shape) == 12 * whole
    assert snapshot_bytes(args.changed(ref_update_interval=1), shape) == 14 * whole
    lora = args.changed(use_lora=True, lora_rank=16)
    assert snapshot_bytes(lora, shape) == 12 * shape.adapters(16)
    megatron = args.changed(train_backend="megatron", tensor_model_parallel_size=2)
    assert snapshot_bytes(megatron, shape) == (12 + 2 * 2) * whole
    critic = whole - (0 if shape.tied else shape.embedding)
    assert snapshot_bytes(args.changed(use_critic=True), shape) == 12 * (whole + critic)
    assert f"{12 * whole / GIB:.1f} GiB more (--before-push-path)" in host_line(args, shape)
    assert isinstance(shape, Shape)
    assert "people" not in host_line(lora, shape)
    people = lora.changed(adapter_per_person=True, people_in_memory=30)
    assert f"{12 * 32 * shape.adapters(16) / GIB:.1f} GiB more (--people-in-memory)" in host_line(people, shape)
    assert "before-push" not in host_line(args.changed(before_push_path=None), shape)


def test_the_second_connection_is_in_the_budget() -> None:
    args = Arguments(before_push_path=PLUGIN, train_dtype="bfloat16", update_weight_mode="full", canary_engine=True)
    one = push_bytes(args.changed(canary_engine=False), QWEN3_4B, "actor")
    assert push_bytes(args, QWEN3_4B, "actor") == 2 * one > 0
