"""Experts that were recorded are replayed: a model's own change nothing, others give what float64 gives with them forced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers import forced_experts, gradient_cases, replay_ranks, tiny_models, trainer
from tests.helpers.reference_steps import by_expert

TOLERANCE = 1e-5
RECOMPUTED = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
FIRST_RECOMPUTED = RECOMPUTED | {"recompute_method": "block"}
TP2 = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
EP2 = {"expert_model_parallel_size": 2}
LAYOUTS: dict[str, dict[str, Any]] = {
    "dp 2, ep 2, recomputed": EP2 | RECOMPUTED,
    "tp 2, the first layer recomputed": TP2 | FIRST_RECOMPUTED,
    "pp 2, recomputed": {"pipeline_model_parallel_size": 2} | RECOMPUTED,
    "cp 2": {"context_parallel_size": 2},
}
# The KL to a reference of the same weights is zero where the reference's pass replays too.
COMMON = {"use_kl_loss": True, "kl_loss_coef": 0.5, "kl_loss_type": "k1"}
OWN, ENGINES = {"use_routing_replay": True}, {"use_routing_replay": True, "use_rollout_routing_replay": True}
TWO_STEPS = TP2 | {"use_routing_replay": True, "lr": 0.05}
KINDS = {"plain": {}, "own": OWN, "engines": ENGINES}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.qwen3_moe(tmp_path_factory.mktemp("replay") / "model")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the ranks leave what they found."""
    return tmp_path_factory.mktemp("outcomes")


@pytest.fixture(scope="module")
def outcomes(model: Path, folder: Path) -> dict[tuple[str, str], Any]:
    """Metrics and gradients of a step by layout and by what is replayed."""
    file = str(folder / "out.pt")
    keys = [(layout, kind) for layout in LAYOUTS for kind in KINDS]
    cases = [COMMON | LAYOUTS[layout] | KINDS[kind] for layout, kind in keys]
    trainer.on_ranks(2, replay_ranks.steps, cases, TWO_STEPS, str(model), file)
    return dict(zip(keys, torch.load(file, weights_only=False), strict=True))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_models_own_experts_change_nothing(outcomes, layout: str) -> None:
    (plain, expected, _), (metrics, gradients, _) = (outcomes[layout, kind] for kind in ("plain", "own"))
    assert all(torch.equal(gradients[name], value) for name, value in expected.items())
    assert metrics["train/loss"] == plain["train/loss"]
    assert metrics["rollout/log_probs"] == plain["rollout/log_probs"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_other_experts_are_those_of_float64(outcomes, model: Path, layout: str) -> None:
    metrics, gradients, _ = outcomes[layout, "engines"]
    args = trainer.trainer_args(model, **COMMON, use_rollout_routing_replay=True)
    loss, expected = forced_experts.forced_reference(args, gradient_cases.data_of(args))
    assert metrics["train/loss"] == pytest.approx(loss, abs=TOLERANCE)
    expected = by_expert(expected)
    assert set(gradients) == set(expected)
    differences = {name: float((gradients[name].double() - value).abs().max()) for name, value in expected.items()}
    assert max(differences.values()) <= TOLERANCE, differences
    routers = [name for name in expected if name.endswith("mlp.gate.weight")]
    assert len(routers) == 2
    assert all(float(expected[name].abs().max()) > 1e-3 for name in routers)
    plain = outcomes[layout, "plain"][1]
    assert max(float((plain[name].double() - value).abs().max()) for name, value in expected.items()) > 100 * TOLERANCE


def test_the_second_step_sends_tokens_where_the_first_pass_did(outcomes, folder: Path) -> None:
    found = torch.load(folder / "out.pt.steps", weights_only=False)
    recorded = [given for mode, given, _ in found if mode == "record"]
    replayed = [(given, own) for mode, given, own in found if mode == "replay and repeat"]  # with --use-routing-replay
    assert len(recorded) == len(replayed) > 4
    assert all(torch.equal(given, kept) for (given, _), kept in zip(replayed, recorded, strict=True))
    differ = [not torch.equal(given, own) for given, own in replayed]
    half = len(differ) // 2
    assert not any(differ[:half])
    assert any(differ[half:])  # by then the router would choose others
