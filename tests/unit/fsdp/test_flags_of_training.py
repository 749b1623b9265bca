"""From the command line to the trainer with FSDP2: optimizer, schedule, adapters, the model that is built."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from slime.args import Arguments
from slime.arguments import parse_args
from slime.backends.fsdp_utils import backend
from slime.backends.fsdp_utils import model as fsdp_model
from slime.backends.fsdp_utils.backend import build_optimizer
from slime.backends.trainer.rank import critic_arguments
from slime.backends.trainer.schedule import Schedule
from slime.backends.trainer.trainable import lora_config
from tests.helpers.checkpoints import config_only
from tests.helpers.tolerance import assert_near

OPTIMIZER = {
    "--lr 3e-5": {"lr": 3e-5},
    "--weight-decay 0.3": {"weight_decay": 0.3},
    "--adam-beta1 0.8": {"betas": (0.8, 0.98)},
    "--adam-beta2 0.97": {"betas": (0.9, 0.97)},
    "--adam-eps 1e-7": {"eps": 1e-7},
}
LINEAR = "--lr-decay-style linear"
# Flags beside a rate of 1, and the rates of the first four of eight steps.
RATES = {
    "": [1.0, 1.0, 1.0, 1.0],
    "--lr 0.5": [0.5, 0.5, 0.5, 0.5],
    LINEAR: [1.0, 0.875, 0.75, 0.625],
    f"{LINEAR} --lr-decay-iters 4": [1.0, 0.75, 0.5, 0.25],
    f"{LINEAR} --lr-decay-iters 2 --min-lr 0.2": [1.0, 0.6, 0.2, 0.2],
    "--lr-warmup-iters 2": [0.5, 1.0, 1.0, 1.0],
    "--lr-warmup-iters 2 --lr-warmup-init 0.4": [0.7, 1.0, 1.0, 1.0],
    "--lr-warmup-fraction 0.5": [0.25, 0.5, 0.75, 1.0],
    "--lr-decay-style WSD --lr-wsd-decay-iters 7 --lr-wsd-decay-style linear": [1.0, 1.0, 0.857143, 0.714286],
    "--lr-decay-style WSD --lr-wsd-decay-iters 7 --lr-wsd-decay-style cosine": [1.0, 1.0, 0.950484, 0.811745],
}
ADAPTERS = {
    "--lora-rank 16": {"r": 16},
    "--lora-alpha 64": {"lora_alpha": 64},
    "--lora-dropout 0.25": {"lora_dropout": 0.25},
    "--lora-target-modules q_proj,v_proj": {"target_modules": {"q_proj", "v_proj"}},
}


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    base = f"--hf-checkpoint {config_only(tmp_path / 'model')} --rollout-batch-size 8 --num-rollout 8 --device cpu"
    return base.split()


@pytest.fixture
def matrix() -> nn.Module:
    return nn.Linear(2, 1, bias=False)


@pytest.mark.parametrize("flags", OPTIMIZER)
def test_a_flag_is_in_the_optimizers_groups(words: list[str], matrix: nn.Module, flags: str) -> None:
    (before,), (after,) = (
        build_optimizer(parse_args([*words, *more]), matrix).param_groups for more in ([], flags.split())
    )
    assert {name: value for name, value in after.items() if value != before[name] and name != "params"} == (
        OPTIMIZER[flags]
    )


@pytest.mark.parametrize(("flags", "norm"), [("", 1.0), ("--clip-grad 0.25", 0.25), ("--clip-grad 0", 5.0)])
def test_gradients_are_clipped_to_the_flag(
    words: list[str], matrix: nn.Module, flags: str, norm: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = parse_args([*words, *flags.split()])
    seen = []
    optimizer = build_optimizer(args, matrix)
    optimizer.register_step_pre_hook(lambda *_: seen.append(float(matrix.weight.grad.norm())))
    monkeypatch.setattr(backend, "mean_over_ranks", lambda sums, denominator: {})
    monkeypatch.setattr(backend.dist, "get_world_size", lambda: 1)
    shard: Any = SimpleNamespace(global_batch_sizes=[1], micro_batches=[[[0]]])
    loss = (matrix.weight * torch.tensor([[3.0, 4.0]])).sum()
    schedule = Schedule(args, 8)
    backend.optimizer_step(
        args, matrix, optimizer, schedule, shard, 0, torch.device("cpu"), loss_of=lambda *_: (loss, {})
    )
    assert_near(seen, [norm])


@pytest.mark.parametrize(("kl", "taken"), [(0.4, True), (0.6, False), (float("nan"), False)])
def test_a_fuse_holds_back_the_step_before_it_changes_a_weight(
    words: list[str], matrix: nn.Module, monkeypatch: pytest.MonkeyPatch, kl: float, taken: bool
) -> None:
    """Finding B7: the update that shows the collapse must not serve, and nothing has to be undone."""
    args = parse_args([*words, "--fuses", "train/ppo_kl>0.5"])
    before = matrix.weight.detach().clone()
    monkeypatch.setattr(backend, "mean_over_ranks", lambda sums, denominator: {"ppo_kl": kl})
    monkeypatch.setattr(backend.dist, "get_world_size", lambda: 1)
    shard: Any = SimpleNamespace(global_batch_sizes=[1], micro_batches=[[[0]]])
    optimizer, schedule = build_optimizer(args, matrix), Schedule(args, 8)
    loss = (matrix.weight * torch.tensor([[3.0, 4.0]])).sum()
    metrics = backend.optimizer_step(
        args, matrix, optimizer, schedule, shard, 0, torch.device("cpu"), loss_of=lambda *_: (loss, {})
    )
    assert torch.equal(matrix.weight.detach(), before) is not taken
    assert (metrics["fuse_held"], metrics["skipped_steps"], schedule.steps) == (not taken, not taken, int(taken))
    assert matrix.weight.grad is None
    assert bool(optimizer.state) is taken, "the moments of a step that was not taken stay as they were"


@pytest.mark.parametrize("flags", RATES)
def test_the_rates_of_the_first_steps(words: list[str], flags: str) -> None:
    schedule = Schedule(parse_args([*words, "--lr", "1", *flags.split()]), 8)
    found = []
    for _ in range(4):
        found.append(round(schedule.lr(), 6))
        schedule.steps += 1
    assert found == RATES[flags]


def test_the_critic_has_a_rate_and_a_warm_up_of_its_own(words: list[str]) -> None:
    ppo = [*words, "--advantage-estimator", "ppo", "--lr", "1e-6", "--lr-warmup-iters", "4"]
    shared = critic_arguments(parse_args(ppo))
    assert (shared.lr, shared.lr_warmup_iters) == (1e-6, 0)
    own = critic_arguments(parse_args([*ppo, "--critic-lr", "1e-4", "--critic-lr-warmup-iters", "2"]))
    assert (own.lr, own.lr_warmup_iters) == (1e-4, 2)


@pytest.mark.parametrize("flags", ADAPTERS)
def test_a_flag_is_in_the_adapters_configuration(words: list[str], flags: str) -> None:
    before, after = (vars(lora_config(parse_args([*words, "--use-lora", *more]))) for more in ([], flags.split()))
    assert {name: value for name, value in after.items() if value != before[name]} == ADAPTERS[flags]


class Recorded(nn.Module):
    """A model that remembers what is done with it."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[str] = []

    @property
    def base_model(self) -> SimpleNamespace:
        return SimpleNamespace(layers=[])

    def tie_weights(self) -> None:
        pass

    def gradient_checkpointing_enable(self, options: dict[str, bool]) -> None:
        self.done.append("checkpointing")


def built(args: Arguments, monkeypatch: pytest.MonkeyPatch, **more: Any) -> dict[str, Any]:
    """What `build_policy` does on one rank: the precision it loads in, and what it does with the model."""
    hf, seen = Recorded(), {}

    def load(args: Arguments, path: str, auto_class: Any, dtype: torch.dtype, *, empty: bool) -> tuple[Any, str]:
        seen["dtype"] = dtype
        return hf, "sdpa"

    monkeypatch.setattr(fsdp_model, "load_hf", load)
    monkeypatch.setattr(fsdp_model, "add_adapters", lambda args, model: hf.done.append("adapters"))
    monkeypatch.setattr(fsdp_model, "sharded", lambda args, construct, **_: construct(False))
    fsdp_model.build_policy(args, "model", device=torch.device("cpu"), **more)
    return seen | {"done": hf.done}


def test_the_model_that_is_built(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert built(parse_args(words), monkeypatch) == {"dtype": torch.float32, "done": []}
    recomputed = built(parse_args([*words, "--gradient-checkpointing"]), monkeypatch)
    assert recomputed["done"] == ["checkpointing"]
    adapters = built(parse_args([*words, "--use-lora", "--train-dtype", "bfloat16"]), monkeypatch)
    assert adapters == {"dtype": torch.bfloat16, "done": ["adapters"]}
    reference = built(parse_args([*words, "--train-dtype", "bfloat16"]), monkeypatch, trainable=False)
    assert reference["dtype"] == torch.bfloat16


def test_the_attention_that_is_built(words: list[str], tiny_random_model: Path) -> None:
    from transformers import AutoModelForCausalLM

    for flags, expected in (
        ("", "packed_sdpa"),
        ("--no-pack-sequences", "sdpa"),
        ("--attn-implementation eager", "eager"),
    ):
        args = parse_args([*words, *flags.split()])
        found = fsdp_model.load_hf(args, str(tiny_random_model), AutoModelForCausalLM, torch.float32, empty=True)
        assert found[1] == found[0].config._attn_implementation == expected


def test_memory_that_shards_live_in(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = []
    monkeypatch.setattr(fsdp_model, "fully_shard", lambda module, **options: given.append(options))
    monkeypatch.setattr(fsdp_model, "init_device_mesh", lambda *_: None)
    monkeypatch.setattr(fsdp_model.dist, "get_world_size", lambda: 2)
    backbone = nn.Module()
    backbone.layers = nn.ModuleList()
    root = nn.Module()
    root.hf = nn.Module()
    root.hf.base_model = backbone
    for flags in ([], ["--fsdp-cpu-offload"], ["--train-dtype", "bfloat16"]):
        args = parse_args([*words, *flags])
        fsdp_model._shard(args, root, torch.device("cpu"), trainable=True, head=None)
    plain, offloaded, half = given
    assert type(offloaded["offload_policy"]).__name__ == "CPUOffloadPolicy"
    assert type(plain["offload_policy"]).__name__ == "OffloadPolicy"
    assert (plain["mp_policy"].param_dtype, half["mp_policy"].param_dtype) == (None, torch.bfloat16)

    monkeypatch.setattr(fsdp_model.dist, "get_world_size", lambda: 1)
    for flags, wrapped in ([], 0), (["--fsdp-cpu-offload"], 1), (["--train-dtype", "bfloat16"], 0):
        given.clear()
        fsdp_model._shard(parse_args([*words, *flags]), root, torch.device("cpu"), trainable=True, head=None)
        assert len(given) == wrapped
