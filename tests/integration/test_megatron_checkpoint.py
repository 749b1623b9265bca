"""Megatron's checkpoints: a resumed run is the run that was not stopped, on any number and kind of ranks; exports load."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from lab.testkit import trainer
from tests.helpers import megatron_ranks
from tests.helpers.tolerance import MODEL, assert_near

KL = {"use_kl_loss": True, "kl_loss_coef": 0.1, "adam_eps": 1e-4, "save_keep": 0}
HOOKS = {
    "custom_megatron_init_path": "tests.helpers.megatron_hooks.init",
    "custom_megatron_before_log_prob_hook_path": "tests.helpers.megatron_hooks.before_log_prob",
    "custom_megatron_before_train_step_hook_path": "tests.helpers.megatron_hooks.before_train_step",
}
PROVIDER = {"custom_model_provider_path": "tests.helpers.megatron_hooks.model_provider"}
TP2 = {"tensor_model_parallel_size": 2}
LORA = {"use_lora": True, "update_weight_mode": "adapter"}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory, tiny_random_tied_model: Path):
    """A run of two rollouts at TP 2, and its second rollout again from the checkpoint after the first, on other layouts."""
    folder = tmp_path_factory.mktemp("megatron")
    first = folder / "first" / "iter_0000001"
    whole = KL | TP2 | HOOKS | {"save": str(folder / "first"), "save_hf": str(folder / "hf-{rollout_id}")}
    layouts = ("tp 2", "dp 2", "pp 2", "cp 2", "tp 1")
    again = {name: KL | {"load": str(first), "save": str(folder / name)} for name in layouts}
    runs = {
        "whole": {"changes": whole, "rollouts": [0, 1]},
        "tp 2": {"changes": again["tp 2"] | TP2, "rollouts": [1], "leaves": True},
        "dp 2": {"changes": again["dp 2"], "rollouts": [1]},
        "pp 2": {"changes": again["pp 2"] | {"pipeline_model_parallel_size": 2}, "rollouts": [1]},
        "cp 2": {"changes": again["cp 2"] | {"context_parallel_size": 2}, "rollouts": [1]},
        "tp 1": {"changes": again["tp 1"] | HOOKS | PROVIDER, "rollouts": [1]},
    }
    lora = KL | LORA | {"save": str(folder / "lora")}
    resumed = KL | LORA | {"load": str(folder / "lora" / "iter_0000001"), "save": str(folder / "lora-again")}
    runs["lora"] = {"changes": lora | TP2, "rollouts": [0, 1]}
    runs["lora, tp 2"] = {"changes": resumed | TP2, "rollouts": [1]}
    runs["lora, pp 2"] = {"changes": resumed | {"pipeline_model_parallel_size": 2}, "rollouts": [1]}
    found: dict[str, Any] = {}
    for ranks, names in ((2, [name for name in runs if name != "tp 1"]), (1, ["tp 1"])):
        file = folder / f"{ranks}.pt"
        plans = [runs[name] for name in names]
        trainer.on_ranks(ranks, megatron_ranks.run_actors, plans, str(tiny_random_tied_model), str(file))
        found |= dict(zip(names, torch.load(file, weights_only=False), strict=True))
    return folder, found


def differences(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert set(one) == set(other)
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def test_a_resumed_run_is_bit_equal(outcomes) -> None:
    """Also one whose memory leaves the device before the rollout and after it."""
    _, found = outcomes
    assert found["tp 2"]["start"] == 1
    assert found["tp 2"]["steps"] == 2
    assert differences(found["tp 2"]["after"], found["whole"]["after"]) == 0.0
    assert differences(found["whole"]["before"], found["whole"]["after"]) > 1e-4


@pytest.mark.parametrize("layout", ["tp 1", "dp 2", "pp 2", "cp 2"])
def test_a_checkpoint_moves_to_other_ranks(outcomes, layout: str) -> None:
    _, found = outcomes
    assert differences(found[layout]["before"], found["tp 2"]["before"]) == 0.0
    assert_near(found[layout]["after"], found["whole"]["after"], roundings=MODEL)
    losses = [found[name]["metrics"][-1]["train/loss"] for name in (layout, "whole")]
    assert_near(losses[0], losses[1], roundings=MODEL)


def test_the_reference_stays_and_the_hooks_are_called(outcomes) -> None:
    _, found = outcomes
    first, second = found["whole"]["metrics"]
    assert_near(first["train/kl_loss"], 0.0)
    assert second["train/kl_loss"] > 1e-3
    assert_near(first["rollout/log_probs"], first["rollout/ref_log_probs"], roundings=MODEL)
    pass_and_step = "log_probs:1 ref_log_probs:1 step:{0}:0:{0}"
    assert " ".join(found["whole"]["calls"]) == " ".join(["init:tp2", pass_and_step.format(0), pass_and_step.format(1)])


def test_a_model_of_ones_own_is_trained_like_the_built_in_one(outcomes) -> None:
    _, found = outcomes
    assert found["tp 1"]["calls"][:2] == ["init:tp1", "provider"]


def test_the_export_is_what_was_trained(outcomes) -> None:
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    folder, found = outcomes
    exported = load_file(folder / "hf-1" / "model.safetensors")
    assert differences(exported, found["whole"]["after"]) == 0.0
    assert AutoModelForCausalLM.from_pretrained(folder / "hf-1").config.tie_word_embeddings


def test_a_resumed_lora_run_goes_on_and_moves_to_other_ranks(outcomes) -> None:
    _, found = outcomes
    assert differences(found["lora, tp 2"]["after"], found["lora"]["after"]) == 0.0
    assert_near(found["lora, pp 2"]["after"], found["lora"]["after"], roundings=MODEL)
    assert differences(found["lora"]["before"], found["lora"]["after"]) > 1e-4


def test_the_tool_merges_the_adapter(outcomes, tiny_random_tied_model: Path, repository: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    folder, found = outcomes
    tool = repository / "slime" / "tools" / "convert_torch_dist_to_hf.py"
    words = ["--input-dir", folder / "lora", "--origin-hf-dir", tiny_random_tied_model, "--output-dir", tmp_path / "hf"]
    done = subprocess.run([sys.executable, tool, *words], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert_near(load_file(tmp_path / "hf" / "model.safetensors"), found["lora"]["after"])


def test_peft_reads_the_adapter_that_was_trained_and_sent(outcomes, tiny_random_tied_model: Path) -> None:
    from peft import PeftModel
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    folder, found = outcomes
    adapter = folder / "lora" / "iter_0000002" / "adapter"
    assert differences(load_file(adapter / "adapter_model.safetensors"), found["lora"]["sent"]) == 0.0
    base = AutoModelForCausalLM.from_pretrained(tiny_random_tied_model, dtype=torch.float32)
    merged = PeftModel.from_pretrained(base, adapter).merge_and_unload()
    assert_near(dict(merged.named_parameters()), found["lora"]["after"])


def test_a_save_leaves_no_process_behind(outcomes) -> None:
    _, found = outcomes
    assert [found[name]["left"] for name in found] == [[]] * len(found)
