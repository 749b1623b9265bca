"""A base in NF4 on the command line: what it cannot go with, what an engine is told, and what the memory plan counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slime.arguments import parse_args
from slime.arguments.memory_budget.shape import Shape
from slime.arguments.memory_budget.trainer import trainer_need
from slime.arguments.placement import EngineSpec
from slime.backends.sglang_utils.server_args import server_command
from slime.backends.sglang_utils.server_hooks import NF4_BASE
from tests.helpers.arguments import refusal
from tests.helpers.needed import needs

pytestmark = needs("bitsandbytes")
NF4 = ["--use-lora", "--lr", "1e-4", "--base-quantization", "nf4", "--actor-num-gpus-per-node", "1"]
QWEN3_4B = Shape(
    layers=36, hidden=2560, ffn=9728, heads=32, kv_heads=8, head_dim=128, vocab=151936, tied=True, full_layers=36, qk_norm=True
)  # fmt: skip


def test_only_the_policys_engine_quantises_its_base(base: list[str]) -> None:
    args = parse_args([*base, *NF4, "--prm-enable", "--prm-num-gpus", "1"])
    assert args.update_weight_mode == "adapter"
    words = {
        role: " ".join(server_command(args, EngineSpec(role, 0, 1), port=1, cpu=False)) for role in ("policy", "prm")
    }
    for wanted in ("--quantization bitsandbytes --load-format bitsandbytes", NF4_BASE):
        assert [wanted in words[role] for role in ("policy", "prm")] == [True, False]
    plain = parse_args([*base, *NF4, "--base-quantization", "none"])
    assert "bitsandbytes" not in " ".join(server_command(plain, EngineSpec("policy", 0, 1), port=1, cpu=False))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--train-backend megatron", "is for FSDP2 only"),
        ("--num-gpus-per-node 8 --actor-num-gpus-per-node 2", "needs one training GPU"),
        ("--fsdp-cpu-offload", "remove --fsdp-cpu-offload"),
        ("--fused-kernels compile --device cuda", "remove --fused-kernels compile"),
        ("--update-weight-mode full", "use --update-weight-mode adapter"),
        ("--rollout-num-gpus 2 --rollout-num-gpus-per-engine 2", "use --rollout-num-gpus-per-engine 1"),
        ("--sglang-load-format dummy", "chooses it; remove --sglang-load-format"),
        ("--sglang-dtype float32", "remove --sglang-dtype"),
        ("--colocate --rollout-num-gpus-per-engine 1", "use --share-gpu in place of --colocate"),
    ],
)
def test_what_cannot_hold_its_base_in_nf4_is_refused(
    base: list[str], capsys: pytest.CaptureFixture[str], words: str, says: str
) -> None:
    said = refusal(capsys, [*base, *NF4, *words.split()])
    assert f"--base-quantization nf4 {says}" in said or ("--base-quantization nf4" in said and says in said)


def test_whole_weights_and_other_models_are_refused(
    base: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    said = refusal(capsys, [*base, "--base-quantization", "nf4"])
    assert "--base-quantization has no effect without --use-lora; add it" in said
    config = json.loads((Path(base[1]) / "config.json").read_text()) | {"model_type": "llama"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    said = refusal(capsys, [*base, *NF4, "--hf-checkpoint", str(tmp_path)])
    assert f"--base-quantization nf4 is for qwen2 and qwen3, but {tmp_path} (llama) is another type" in said


def test_the_plan_counts_values_scales_and_one_layer_at_work(base: list[str]) -> None:
    linear = 36 * (2560 * (2 * 4096 + 2 * 1024) + 3 * 2560 * 9728)
    rest = QWEN3_4B.parameters - linear
    assert QWEN3_4B.bytes_in_nf4(2) == linear * 0.5625 + 2 * rest
    nf4 = parse_args([*base, *NF4, "--train-dtype", "bfloat16"])
    plain = nf4.changed(base_quantization="none")
    sizes = [{part.name: part.size for part in trainer_need(args, QWEN3_4B, 1).parts} for args in (nf4, plain)]
    assert sizes[1]["weights"] - sizes[0]["weights"] == linear * (2 - 0.5625)
    assert (sizes[0]["gathered"], sizes[1]["gathered"]) == (2 * 2560 * 9728, 0)
    assert sizes[0]["gradients and moments"] == sizes[1]["gradients and moments"]
