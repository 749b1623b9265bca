"""Flags of the Megatron back end: what does not work together, or not here, is refused with what to type instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime.arguments import parse_args
from tests.helpers.arguments import refusal
from tests.helpers.checkpoints import config_only

CUSTOM = "--context-parallel-size 2 --loss-type custom_loss --custom-loss-function-path tests.helpers.custom_losses.surrogate"
PARTS = "of a custom loss needs whole responses, but --context-parallel-size 2 splits them over ranks"
TIS = "--custom-tis-function-path slime.algorithms.losses.rejection.sequence_rejection"
REDUCER = "--custom-pg-loss-reducer-function-path slime.algorithms.losses.reduce.constant_denominator"
OFFLOAD = "--use-precision-aware-optimizer --optimizer-cpu-offload --overlap-cpu-optimizer-d2h-h2d"
REFUSED = {
    "--tensor-model-parallel-size 0": "--tensor-model-parallel-size 0: give 1 or more",
    "--tensor-model-parallel-size 3": "2 actor GPUs are not a multiple of 3 tensor x 1 pipeline x 1 context parallel ranks",
    "--expert-tensor-parallel-size 4": "--expert-model-parallel-size 1 does not divide the actor ranks of a pipeline stage",
    "--context-parallel-size 0": "--context-parallel-size 0: give 1 or more",
    "--context-parallel-size 4": "2 actor GPUs are not a multiple of 1 tensor x 1 pipeline x 4 context parallel ranks",
    "--expert-tensor-parallel-size -1": "--expert-tensor-parallel-size -1: give 1 or more",
    "--recompute-granularity full --recompute-method uniform --recompute-num-layers -1": "--recompute-num-layers -1: give 1",
    f"{CUSTOM} --advantage-estimator gspo": f"--advantage-estimator gspo {PARTS}",
    f"{CUSTOM} --use-opsm": f"--use-opsm {PARTS}",
    f"{CUSTOM} --use-tis {TIS}": f"--custom-tis-function-path {PARTS}",
    f"{CUSTOM} {REDUCER}": f"--custom-pg-loss-reducer-function-path {PARTS}",
    "--expert-model-parallel-size 2": "has no experts; remove it",
    "--use-routing-replay": "--use-routing-replay: ",
    "--use-rollout-routing-replay": "has no experts; remove it",
    OFFLOAD: "--overlap-cpu-optimizer-d2h-h2d needs a GPU; remove it",
    "--overlap-cpu-optimizer-d2h-h2d": "--overlap-cpu-optimizer-d2h-h2d has no effect without --optimizer-cpu-offload",
    "--transformer-impl transformer_engine": "use --transformer-impl local",
    "--attention-backend flash": "--attention-backend has no effect with --transformer-impl local",
    "--recompute-granularity full": "needs --recompute-method uniform --recompute-num-layers 1",
    "--recompute-num-layers 1": "need --recompute-granularity full",
    "--use-lora --transformer-impl transformer_engine": "--use-lora with --train-backend megatron needs --transformer-impl local",
    "--use-lora --lora-dropout 0.1": "--lora-dropout is for FSDP2 only",
    "--use-lora --lora-target-modules q_proj,lm_head": "--lora-target-modules lm_head: with --train-backend megatron choose from",
    "--advantage-estimator ppo --use-lora": "--use-lora cannot be combined with --advantage-estimator ppo",
    "--advantage-estimator ppo --tensor-model-parallel-size 2 --critic-num-gpus-per-node 3": "3 critic GPUs are not a multiple of "
    "2 tensor x 1 pipeline x 1 context parallel ranks; change --critic-num-gpus-per-node",
    "--advantage-estimator ppo --critic-num-gpus-per-node 3 --expert-tensor-parallel-size 2": "does not divide the critic ranks of",
    "--spec module": "--spec takes two words",
    "--spec m n --custom-model-provider-path m.f": "--spec has no effect with --custom-model-provider-path",
}
LIVE = "--data-source-path openclaw.training.rollout.LedgerDataSource"

OF_EXPERTS = {
    "--tensor-model-parallel-size 2": "of a model with experts needs --sequence-parallel",
    "--tensor-model-parallel-size 2 --sequence-parallel --expert-tensor-parallel-size 1": "needs --expert-model-parallel-size 2 or more",
    "--use-lora": "--use-lora of a model with experts is not supported with megatron",
    "--expert-model-parallel-size 2 --expert-tensor-parallel-size 1": None,
    "--tensor-model-parallel-size 2 --sequence-parallel": None,
    "--context-parallel-size 2 --expert-model-parallel-size 2": None,
    "--use-routing-replay": None,
    "--use-routing-replay --use-rollout-routing-replay --use-rollout-logprobs": None,
    "--use-routing-replay --use-rollout-logprobs": "in the pass of old logprobs, which --use-rollout-logprobs skips",
    "--use-routing-replay --disable-compute-advantages-and-returns --loss-type custom_loss --custom-loss-function-path "
    "tests.helpers.custom_losses.surrogate": "--disable-compute-advantages-and-returns skips; use --use-rollout-routing-replay",
    "--use-routing-replay --loss-type sft_loss": "--use-routing-replay has no effect with --loss-type sft_loss",
    "--use-rollout-routing-replay --loss-type sft_loss": "--use-rollout-routing-replay has no effect with --loss-type",
    "--train-backend fsdp --use-routing-replay": "--use-routing-replay needs --train-backend megatron",
    "--use-rollout-routing-replay --sglang-pp-size 2": "with --sglang-pp-size 2 an engine reports experts that it did not",
    "--use-rollout-routing-replay --sglang-enable-hierarchical-cache": "with --sglang-enable-hierarchical-cache an engine",
    "--use-rollout-routing-replay --sglang-speculative-algorithm NGRAM": "with --sglang-speculative-algorithm NGRAM an engine",
    "--use-rollout-routing-replay --sglang-speculative-algorithm EAGLE3": "EAGLE3 and no --sglang-speculative-eagle-topk 1 an engine",
    "--use-rollout-routing-replay --sglang-speculative-algorithm EAGLE3 --sglang-speculative-eagle-topk 1": None,
    f"{LIVE} --use-routing-replay": None,
    f"{LIVE} --use-rollout-routing-replay": "record no experts; use --use-routing-replay without --use-rollout-logprobs",
    f"{LIVE} --use-routing-replay --use-rollout-logprobs": "which --use-rollout-logprobs skips; remove that",
}


@pytest.fixture
def two_gpus(base: list[str]) -> list[str]:
    return [*base, "--actor-num-gpus-per-node", "2"]


@pytest.mark.parametrize("flags", REFUSED)
def test_what_cannot_work_is_refused(two_gpus: list[str], capsys: pytest.CaptureFixture[str], flags: str) -> None:
    assert REFUSED[flags] in refusal(capsys, [*two_gpus, "--train-backend", "megatron", *flags.split()])


@pytest.mark.parametrize("flags", OF_EXPERTS)
def test_experts_are_split_only_as_megatron_can(
    two_gpus: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: str
) -> None:
    model = config_only(tmp_path / "moe", model_type="qwen3_moe", num_experts=8, moe_intermediate_size=768)
    words = [*two_gpus, "--hf-checkpoint", str(model), "--train-backend", "megatron", *flags.split()]
    expected = OF_EXPERTS[flags]
    if expected is None:
        assert parse_args(words).train_backend == "megatron"
    else:
        assert expected in refusal(capsys, words)


def test_an_inner_width_that_does_not_divide_is_refused(
    two_gpus: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = config_only(tmp_path / "moe", model_type="qwen3_moe", num_experts=8, moe_intermediate_size=767)
    flags = "--tensor-model-parallel-size 2 --sequence-parallel --train-backend megatron"
    error = refusal(capsys, [*two_gpus, "--hf-checkpoint", str(model), *flags.split()])
    assert "--expert-tensor-parallel-size 2 does not divide moe_intermediate_size 767" in error


def test_with_the_other_back_end_they_are_refused_by_name(
    two_gpus: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    error = refusal(
        capsys, [*two_gpus, "--train-backend", "fsdp", "--tensor-model-parallel-size", "2", "--sequence-parallel"]
    )
    assert "--tensor-model-parallel-size --sequence-parallel : only with --train-backend megatron" in error


def test_the_layers_follow_the_device(two_gpus: list[str]) -> None:
    args = parse_args([*two_gpus, "--train-backend", "megatron", "--tensor-model-parallel-size", "2"])
    assert (args.transformer_impl, args.tensor_model_parallel_size) == ("local", 2)


def test_a_critic_of_another_shape_has_to_divide_too(
    two_gpus: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    critic = config_only(tmp_path / "critic", num_key_value_heads=1)
    words = f"--advantage-estimator ppo --tensor-model-parallel-size 2 --critic-load {critic}".split()
    said = f"--tensor-model-parallel-size 2 does not divide num_key_value_heads 1 of {critic}/config.json"
    assert said in refusal(capsys, [*two_gpus, *words])


NO_ENGINE = {
    "--transformer-impl transformer_engine": "Transformer Engine is not installed on this machine; use --transformer-impl local",
    "--use-precision-aware-optimizer": "needs the Adam of Transformer Engine: Transformer Engine is not installed on this machine",
}


@pytest.mark.parametrize("flags", NO_ENGINE)
def test_what_needs_transformer_engine_is_refused_where_it_is_not_installed(
    two_gpus: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, flags: str
) -> None:
    words = [*two_gpus, "--train-backend", "megatron", "--device", "cuda", *flags.split()]
    monkeypatch.setattr("slime.arguments.backend.has_transformer_engine", lambda: True)
    assert parse_args(words).transformer_impl == "transformer_engine"
    monkeypatch.setattr("slime.arguments.backend.has_transformer_engine", lambda: False)
    assert NO_ENGINE[flags] in refusal(capsys, words)
    assert (
        parse_args([*words[:-1], "local"] if "impl" in flags else [*words, "--optimizer-cpu-offload"]).device == "cuda"
    )


def test_a_dry_run_for_another_machine_does_not_need_transformer_engine(
    two_gpus: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slime.arguments.backend.has_transformer_engine", lambda: False)
    words = [*two_gpus, "--train-backend", "megatron", "--device", "cuda", "--transformer-impl", "transformer_engine"]
    more = ["--disable-rollout-global-dataset", "--rollout-max-response-len", "8", "--dry-run"]
    with pytest.raises(SystemExit) as ended:
        parse_args([*words, *more])
    assert ended.value.code == 0
    assert "warning: not found on this machine: --transformer-impl transformer_engine" in capsys.readouterr().out
