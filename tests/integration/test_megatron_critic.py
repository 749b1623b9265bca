"""PPO's critic with Megatron: values, losses, gradients and steps are those of float64 on every layout; it saves and resumes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lab.testkit import trainer
from tests.helpers import megatron_critic, tiny_models
from tests.helpers.ppo_ranks import close, equal
from tests.helpers.reference_loss import reference, reference_critic
from tests.helpers.reference_steps import by_expert
from tests.helpers.tolerance import MODEL, assert_near

# A larger epsilon, as in test_megatron_parity; a clip that some values reach in three steps and others don't.
PPO: dict[str, Any] = {
    **{"advantage_estimator": "ppo", "gamma": 0.9, "lambd": 0.8, "kl_coef": 0.1, "use_rollout_logprobs": True},
    **{"adam_eps": 1e-4, "value_clip": 0.05},
}
TP2 = {"tensor_model_parallel_size": 2}
PP2 = {"pipeline_model_parallel_size": 2}
SEQUENCE = TP2 | {"sequence_parallel": True}
OWN_MODEL = {
    "custom_megatron_init_path": "tests.helpers.megatron_hooks.init",
    "custom_model_provider_path": "tests.helpers.megatron_hooks.model_provider",
}
RANKS = {"tp 1": 1}
LAYOUTS: dict[str, dict[str, Any]] = {
    "tp 1": {},
    "tp 2": TP2,
    "tp 2, sequence parallel": SEQUENCE,
    "pp 2": PP2,
    "pp 2, a model of one's own": PP2 | OWN_MODEL,
    "dp 2": {},
    "cp 2": {"context_parallel_size": 2},
    "ep 2": {"expert_model_parallel_size": 2} | SEQUENCE | {"expert_tensor_parallel_size": 1},
}
MODELS = {"tp 2, sequence parallel": "tied", "pp 2, a model of one's own": "tied", "ep 2": "experts"}
"""Of a layout, another model than the default: one whose embedding the policy's head shares, or one of experts."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, tiny_random_model: Path, tiny_random_tied_model: Path):
    """The folders by name."""
    experts = tiny_models.qwen3_moe(tmp_path_factory.mktemp("critic") / "moe")
    return {"default": tiny_random_model, "tied": tiny_random_tied_model, "experts": experts}


@pytest.fixture(scope="module")
def results(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What each layout gives, from one start of processes per number of ranks."""
    out = tmp_path_factory.mktemp("critic")
    found: dict[str, dict[str, Any]] = {}
    for ranks in (1, 2):
        names = [name for name in LAYOUTS if RANKS.get(name, 2) == ranks]
        cases = [(str(models[MODELS.get(name, "default")]), PPO | LAYOUTS[name]) for name in names]
        trainer.on_ranks(ranks, megatron_critic.gradients, cases, str(out / f"{ranks}.pt"))
        found |= dict(zip(names, torch.load(out / f"{ranks}.pt", weights_only=False), strict=True))
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
def test_policy_and_critic_are_those_of_float64(results, models: dict[str, Path], layout: str) -> None:
    found, model = results[layout], models[MODELS.get(layout, "default")]
    args, data = trainer.trainer_args(model, **PPO), trainer.train_data()
    values, critic = reference_critic(args, data, found["head"], megatron_critic.STEPS)
    for value, expected in zip(found["values"], values, strict=True):
        assert_near(value, expected, roundings=MODEL)
    metrics, later = found["metrics"], found["steps"]
    losses = [metrics["train/value_loss"], *(step["value_loss"] for step in later)]
    assert_near(losses, critic["losses"], roundings=MODEL)
    assert 0.0 < later[-1]["value_clipfrac"] < 1.0
    norm = torch.stack([value.norm() for value in critic["gradients"].values()]).norm()
    assert_near(metrics["train/critic-grad_norm"], norm, roundings=MODEL)
    close(found["gradients"]["critic"], by_expert(critic["gradients"]))
    close(found["after"], by_expert(critic["after"]))
    loss, expected = reference(args, data | {"values": values})
    assert_near(metrics["train/loss"], loss, roundings=MODEL)
    close(found["gradients"]["policy"], by_expert(expected))


@pytest.fixture(scope="module")
def outcomes(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """A run of three rollouts at TP 2, the first for the critic alone, and its last ones again from checkpoints."""
    folder = tmp_path_factory.mktemp("critic")

    def saved(name: str) -> dict[str, str]:
        return {"save": str(folder / name), "critic_save": str(folder / name / "critic")}

    begin = PPO | {"critic_lr": 3e-3, "num_critic_only_steps": 1}
    resumed = begin | {"load": str(folder / "a/iter_0000002"), "critic_load": str(folder / "a/critic/iter_0000002")}
    plans = {
        "whole": {"changes": begin | TP2 | saved("a"), "rollouts": [0, 1, 2]},
        "stopped": {"changes": begin | TP2 | saved("b"), "rollouts": [0, 1]},
        "resumed": {"changes": begin | TP2 | saved("b") | {"resume": True}, "rollouts": [2], "leaves": True},
        "pp 2": {"changes": resumed | PP2, "rollouts": [2]},
        "dp 2": {"changes": resumed, "rollouts": [2]},
        "bfloat16": {"changes": begin | SEQUENCE | saved("c") | {"train_dtype": "bfloat16"}, "rollouts": [0, 1, 2]},
        "another start": {"changes": begin | {"critic_load": str(models["default"])}, "rollouts": []},
    }
    file = str(folder / "out.pt")
    trainer.on_ranks(2, megatron_critic.runs, list(plans.values()), str(models["tied"]), file)
    return dict(zip(plans, torch.load(file, weights_only=False), strict=True))


@pytest.mark.long
def test_a_resumed_run_is_bit_equal(outcomes) -> None:
    """Also one whose critic leaves the device before the rollout."""
    whole, stopped, resumed = (outcomes[name] for name in ("whole", "stopped", "resumed"))
    assert (resumed["start"], resumed["steps"]) == (2, 3)
    assert equal(resumed["before"], stopped["critic"])
    assert not equal(stopped["critic"], whole["critic"])
    assert equal(resumed["critic"], whole["critic"])
    assert equal(resumed["policy"], whole["policy"])
    assert resumed["metrics"][0]["train/value_loss"] == whole["metrics"][2]["train/value_loss"]


@pytest.mark.long
@pytest.mark.parametrize("layout", ["pp 2", "dp 2"])
def test_a_checkpoint_moves_to_other_ranks(outcomes, layout: str) -> None:
    found, whole = outcomes[layout], outcomes["whole"]
    assert equal(found["before"], outcomes["stopped"]["critic"])
    close(found["critic"], {name: value.double() for name, value in whole["critic"].items()})
    close(found["policy"], {name: value.double() for name, value in whole["policy"].items()})


@pytest.mark.long
def test_only_the_critic_learns_at_first_and_at_its_own_rate(outcomes) -> None:
    first, second, _ = outcomes["whole"]["metrics"]
    assert (first["rollout/values"], first["train/critic-lr-pg_0"]) == (0.0, 3e-3)
    assert "train/loss" not in first
    assert "train/loss" in second
    assert second["rollout/values"] != 0.0
    assert (outcomes["whole"]["version"], outcomes["resumed"]["version"]) == (1, 2)


@pytest.mark.long
def test_in_bfloat16_it_learns_the_same(outcomes) -> None:
    found, whole = outcomes["bfloat16"], outcomes["whole"]
    losses = [[metrics["train/value_loss"] for metrics in run["metrics"]] for run in (found, whole)]
    assert losses[0] == pytest.approx(losses[1], rel=2e-2)
    head, expected = (run["critic"]["head.weight"] for run in (found, whole))
    assert head.dtype == torch.bfloat16
    assert float((head.float() - expected).norm()) < 0.3 * float(expected.norm())


@pytest.mark.long
def test_a_critic_starts_with_the_backbone_of_a_hugging_face_folder(outcomes, models: dict[str, Path]) -> None:
    from safetensors.torch import load_file

    weights = load_file(models["default"] / "model.safetensors")
    found = outcomes["another start"]["before"]
    backbone = {f"hf.{name.removeprefix('model.')}": value for name, value in weights.items() if "lm_head" not in name}
    assert equal({name: value for name, value in found.items() if name.startswith("hf.")}, backbone)
    assert not any(found[f"head.{name}"].any() for name in ("weight", "bias"))
