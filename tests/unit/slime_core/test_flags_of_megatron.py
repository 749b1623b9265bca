"""From the command line to what Megatron is built with. Megatron itself stands aside: its parity tests show that it obeys."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from slime.args import Arguments
from slime.arguments import parse_args, placement
from slime.backends.megatron_utils import config, model, parallel, state
from slime.backends.megatron_utils.backend import MegatronBackend
from tests.helpers.checkpoints import QWEN3_4B, config_only

FULL = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
ADAM = "--use-precision-aware-optimizer --optimizer-cpu-offload"
# Flags beside a base line, and what they change of Megatron's configuration of the model.
MODEL = {
    "--tensor-model-parallel-size 4": {"tensor_model_parallel_size": 4, "expert_tensor_parallel_size": 4},
    "--tensor-model-parallel-size 4 --sequence-parallel": {
        "tensor_model_parallel_size": 4,
        "expert_tensor_parallel_size": 4,
        "sequence_parallel": True,
    },
    "--pipeline-model-parallel-size 2": {"pipeline_model_parallel_size": 2, "variable_seq_lengths": True},
    "--context-parallel-size 2": {"context_parallel_size": 2},
    "--expert-tensor-parallel-size 2": {"expert_tensor_parallel_size": 2},
    FULL: {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
    FULL.replace("uniform", "block").replace("-layers 1", "-layers 5"): {
        "recompute_granularity": "full",
        "recompute_method": "block",
        "recompute_num_layers": 5,
    },
    "--recompute-granularity selective": {"recompute_granularity": "selective"},
    "--attention-backend flash": {"attention_backend": "flash kernel"},
    "--transformer-impl local": {
        "attention_backend": None,
        "bias_activation_fusion": False,
        "bias_dropout_fusion": False,
        "apply_rope_fusion": False,
    },
    "--train-dtype float32": {"params_dtype": torch.float32, "pipeline_dtype": torch.float32, "bf16": False},
}
OPTIMIZER = {
    "--lr 3e-5": {"lr": 3e-5},
    "--min-lr 1e-7": {"min_lr": 1e-7},
    "--weight-decay 0.3": {"weight_decay": 0.3},
    "--adam-beta1 0.8": {"adam_beta1": 0.8},
    "--adam-beta2 0.97": {"adam_beta2": 0.97},
    "--adam-eps 1e-7": {"adam_eps": 1e-7},
    "--clip-grad 0.5": {"clip_grad": 0.5},
    "--use-precision-aware-optimizer": {"use_precision_aware_optimizer": True},
    ADAM: {
        "use_precision_aware_optimizer": True,
        "optimizer_cpu_offload": True,
        "optimizer_offload_fraction": 1.0,
    },
    f"{ADAM} --overlap-cpu-optimizer-d2h-h2d": {
        "use_precision_aware_optimizer": True,
        "optimizer_cpu_offload": True,
        "optimizer_offload_fraction": 1.0,
        "overlap_cpu_optimizer_d2h_h2d": True,
    },
}


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A run of eight GPUs with Megatron and Transformer Engine."""
    monkeypatch.setattr("slime.arguments.backend.has_transformer_engine", lambda: True)
    base = f"--hf-checkpoint {config_only(tmp_path / 'model')} --rollout-batch-size 8 --num-rollout 1 --device cuda"
    return [*base.split(), "--train-backend", "megatron"]


@pytest.fixture
def words_of_experts(words: list[str], tmp_path: Path) -> list[str]:
    """The same for a model with experts."""
    model = config_only(tmp_path / "moe", model_type="qwen3_moe", num_experts=8, moe_intermediate_size=768)
    return [*words, "--hf-checkpoint", str(model)]


def stand_in(monkeypatch: pytest.MonkeyPatch, name: str, **content: Any) -> None:
    """Put a module of ``content`` where Megatron's would be imported from."""
    parts = name.split(".")
    for end in range(1, len(parts)):
        monkeypatch.setitem(sys.modules, ".".join(parts[:end]), ModuleType(parts[end - 1]))
    module = ModuleType(name)
    vars(module).update(content)
    monkeypatch.setitem(sys.modules, name, module)


@pytest.fixture
def model_config(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function from arguments to the values that Megatron's configuration of the model is made of."""
    backends = {"auto": "auto kernel", "flash": "flash kernel"}
    stand_in(monkeypatch, "megatron.core.transformer.transformer_config", TransformerConfig=SimpleNamespace)
    monkeypatch.setitem(sys.modules, "megatron.core.transformer.enums", SimpleNamespace(AttnBackend=backends))
    return lambda args: vars(config.transformer_config(args, QWEN3_4B))


@pytest.mark.parametrize("flags", MODEL)
def test_a_flag_is_in_the_configuration_of_the_model(words: list[str], model_config: Any, flags: str) -> None:
    before = model_config(parse_args(words))
    after = model_config(parse_args([*words, *flags.split()]))
    changed = {name: after.get(name) for name in before.keys() | after.keys() if after.get(name) != before.get(name)}
    assert changed == MODEL[flags]


def test_ranks_that_share_experts_are_in_the_configuration(words_of_experts: list[str], model_config: Any) -> None:
    one, two = (
        model_config(parse_args([*words_of_experts, *more])) for more in ([], ["--expert-model-parallel-size", "2"])
    )
    assert (one["expert_model_parallel_size"], two["expert_model_parallel_size"]) == (1, 2)


@pytest.mark.parametrize("flags", OPTIMIZER)
def test_a_flag_is_in_the_configuration_of_the_optimizer(
    words: list[str], monkeypatch: pytest.MonkeyPatch, flags: str
) -> None:
    made: list[dict[str, Any]] = []
    group = {"wd_mult": 0.5}
    stand_in(
        monkeypatch,
        "megatron.core.optimizer",
        OptimizerConfig=lambda **values: made.append(values),
        get_megatron_optimizer=lambda *_, **__: SimpleNamespace(param_groups=[group]),
        get_standard_config_overrides=lambda _: None,
    )
    built = SimpleNamespace(config=SimpleNamespace(bf16=True, params_dtype=torch.bfloat16))
    for more in ([], flags.split()):
        args = parse_args([*words, *more])
        state.build_optimizer(args, built, device=torch.device("cuda"))
        assert group["weight_decay"] == args.weight_decay * 0.5
    before, after = made
    assert {name: value for name, value in after.items() if value != before[name]} == OPTIMIZER[flags]


def test_groups_of_ranks_are_those_of_the_flags(
    words: list[str], words_of_experts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}
    seeds: list[int] = []
    state = SimpleNamespace(initialize_model_parallel=given.update)
    seeding = SimpleNamespace(model_parallel_cuda_manual_seed=seeds.append)
    stand_in(monkeypatch, "megatron.core", parallel_state=state, tensor_parallel=seeding)
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    sizes = """--tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 2 --context-parallel-size 2
        --expert-model-parallel-size 2 --expert-tensor-parallel-size 2 --distributed-timeout-minutes 3 --seed 5"""
    args = parse_args([*words_of_experts, *sizes.split()])
    parallel.join(args, torch.device("cuda"))
    assert given == {
        "tensor_model_parallel_size": 2,
        "pipeline_model_parallel_size": 2,
        "context_parallel_size": 2,
        "expert_model_parallel_size": 2,
        "expert_tensor_parallel_size": 2,
        "distributed_timeout_minutes": 3,
        "create_gloo_process_groups": True,
    }
    assert seeds == [5]
    assert placement.data_parallel_size(args, 8) == 1
    assert placement.data_parallel_size(parse_args(words), 8) == 8


def my_spec(args: Arguments, config: Any, stage: int | None) -> str:
    """A layer specification of a method folder."""
    return f"layers of {args.num_rollout}"


def test_a_specification_of_ones_own_is_used(words: list[str]) -> None:
    args = parse_args([*words, "--spec", __name__, "my_spec"])
    assert model.layer_spec(args, None) == "layers of 1"


called: list[Any] = []


def my_hook(*given: Any) -> None:
    """A hook of a method folder."""
    called.append(given)


HOOKS = {
    "custom_megatron_init_path": (lambda made: None, ()),
    "custom_megatron_before_log_prob_hook_path": (lambda made: made._before_pass("ref_"), (["model"], "ref_")),
    "custom_megatron_before_train_step_hook_path": (
        lambda made: made._before_step(3, 1),
        (3, 1, ["model"], "optimizer", "schedule"),
    ),
}


@pytest.mark.parametrize("attribute", HOOKS)
def test_a_hook_is_called_at_its_time(monkeypatch: pytest.MonkeyPatch, attribute: str) -> None:
    monkeypatch.setattr(parallel, "join", lambda args, device: None)
    call, expected = HOOKS[attribute]
    schedule: Any = "schedule"
    for path in (None, f"{__name__}.my_hook"):
        called.clear()
        args = Arguments.of(vars(Arguments()) | {attribute: path})
        made = MegatronBackend(args, torch.device("cpu"), schedule)
        made.model, made.optimizer = "model", "optimizer"
        call(made)
    assert called == [(args, *expected)]


def my_model(pre_process: bool, post_process: bool) -> nn.Module:
    """A model of a method folder."""
    made = nn.Linear(1, 1)
    made.config = SimpleNamespace(bf16=False, stage=(pre_process, post_process))  # pyright: ignore[reportArgumentType]
    return made


def test_a_model_of_ones_own_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, "megatron.core.models.gpt.gpt_model", GPTModel=None)
    stage = SimpleNamespace(is_pipeline_first_stage=lambda: True, is_pipeline_last_stage=lambda: False)
    monkeypatch.setattr(model, "groups", lambda: stage)
    monkeypatch.setattr(model, "read_config", lambda path: QWEN3_4B)
    monkeypatch.setattr(model, "transformer_config", lambda *_: None)
    filled: list[Any] = []
    monkeypatch.setattr(model, "load_hf_weights", lambda built, path, shape: filled.append(built))
    args = Arguments(custom_model_provider_path=f"{__name__}.my_model")
    built, of_model = model.build_model(args, "folder", device=torch.device("cpu"))
    assert isinstance(built, nn.Linear)
    assert (filled, of_model.stage) == ([built], (True, False))
