"""A Qwen3-MoE whose experts ranks share.

Its checkpoints go on on other ranks, and the export is what was trained. Experts that were recorded are replayed: a model's own
change nothing, others give what float64 gives with them forced.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from lab.testkit import trainer
from tests.helpers import forced_experts, gradient_cases, replay_ranks, tiny_models
from tests.helpers.reference_steps import by_expert
from tests.helpers.tolerance import MODEL, assert_near

STEPS = {"loss_type": "sft_loss", "adam_eps": 1e-4}
TP2 = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
LAYOUTS = {
    "ep 2 over data": {"expert_model_parallel_size": 2},
    "ep 2 over tensor": TP2 | {"expert_model_parallel_size": 2, "expert_tensor_parallel_size": 1},
    "tp 2": TP2,
}
RECOMPUTED = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
REPLAYED: dict[str, dict[str, Any]] = {
    "ep 2 over data, recomputed": {"expert_model_parallel_size": 2} | RECOMPUTED,
    "pp 2, recomputed": {"pipeline_model_parallel_size": 2} | RECOMPUTED,
    "tp 2, the first layer recomputed": TP2 | RECOMPUTED | {"recompute_method": "block"},
    "cp 2": {"context_parallel_size": 2},
}
OWN, ENGINES = {"use_routing_replay": True}, {"use_routing_replay": True, "use_rollout_routing_replay": True}
KINDS = {"plain": {}, "own": OWN, "engines": ENGINES}
BOTH = list(REPLAYED)[:2]
# By layout and by what is replayed. The KL to a reference of the same weights is zero where its pass replays too.
REPLAYS = [
    *((layout, kind) for layout in BOTH for kind in ("plain", "own")),
    *((layout, "engines") for layout in REPLAYED),
]
COMMON = {"use_kl_loss": True, "kl_loss_coef": 0.5, "kl_loss_type": "k1"}
TWO_STEPS = TP2 | {"use_routing_replay": True, "lr": 0.05}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.qwen3_moe(tmp_path_factory.mktemp("moe") / "model")


@pytest.fixture(scope="module")
def found(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, Any]]]:
    """A run of two rollouts at EP 2, and its second rollout again from the checkpoint after the first, on other layouts.

    In the folder also what `replay_ranks` found, from the same start of processes.
    """
    folder = tmp_path_factory.mktemp("moe-checkpoint")
    whole = {"save": str(folder / "whole"), "save_hf": str(folder / "hf-{rollout_id}"), "expert_model_parallel_size": 2}
    plans = {"whole": {"changes": STEPS | whole, "rollouts": [0, 1]}}
    for name, layout in LAYOUTS.items():
        again = {"load": str(folder / "whole" / "iter_0000001"), "save": str(folder / name.replace(" ", "-"))}
        plans[name] = {"changes": STEPS | layout | again, "rollouts": [1]}
    file = folder / "out.pt"
    cases = [COMMON | REPLAYED[layout] | KINDS[kind] for layout, kind in REPLAYS]
    trainer.on_ranks(2, replay_ranks.run, list(plans.values()), cases, TWO_STEPS, str(model), str(file))
    return folder, dict(zip(plans, torch.load(file, weights_only=False), strict=True))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_checkpoint_of_shared_experts_goes_on(found, layout: str) -> None:
    resumed, whole = found[1][layout], found[1]["whole"]
    if layout == "ep 2 over data":
        assert all(torch.equal(resumed["after"][name], value) for name, value in whole["after"].items())
    assert_near(resumed["after"], whole["after"], roundings=MODEL)
    moved = [float((resumed["before"][name] - value).abs().max()) for name, value in whole["after"].items()]
    assert max(moved) > 1e-4


def test_the_export_of_shared_experts_is_what_was_trained(found) -> None:
    folder, runs = found
    exported = load_file(folder / "hf-1" / "model.safetensors")
    assert set(exported) == set(runs["whole"]["after"])
    assert all(torch.equal(exported[name], value) for name, value in runs["whole"]["after"].items())


@pytest.fixture(scope="module")
def outcomes(found) -> dict[tuple[str, str], Any]:
    """Metrics and gradients of a step by layout and by what is replayed."""
    results = torch.load(f"{found[0] / 'out.pt'}{replay_ranks.GRADIENTS}", weights_only=False)
    return dict(zip(REPLAYS, results, strict=True))


@pytest.mark.parametrize("layout", BOTH)
def test_a_models_own_experts_change_nothing(outcomes, layout: str) -> None:
    (plain, expected, _), (metrics, gradients, _) = (outcomes[layout, kind] for kind in ("plain", "own"))
    assert all(torch.equal(gradients[name], value) for name, value in expected.items())
    assert metrics["train/loss"] == plain["train/loss"]
    assert metrics["rollout/log_probs"] == plain["rollout/log_probs"]


@pytest.mark.parametrize("layout", REPLAYED)
def test_other_experts_are_those_of_float64(outcomes, model: Path, layout: str) -> None:
    metrics, gradients, _ = outcomes[layout, "engines"]
    args = trainer.trainer_args(model, **COMMON, use_rollout_routing_replay=True)
    loss, expected = forced_experts.forced_reference(args, gradient_cases.data_of(args))
    assert_near(metrics["train/loss"], loss, roundings=MODEL)
    expected = by_expert(expected)
    assert_near(gradients, expected, roundings=MODEL)
    routers = [name for name in expected if name.endswith("mlp.gate.weight")]
    assert len(routers) == 2
    assert all(float(expected[name].abs().max()) > 1e-3 for name in routers)
    plain = outcomes[BOTH[0], "plain"][1]
    assert max(float((plain[name].double() - value).abs().max()) for name, value in expected.items()) > 1e-3


def test_the_second_step_sends_tokens_where_the_first_pass_did(found) -> None:
    calls = torch.load(f"{found[0] / 'out.pt'}{replay_ranks.CHOICES}", weights_only=False)
    recorded = [given for mode, given, _ in calls if mode == "record"]
    replayed = [(given, own) for mode, given, own in calls if mode == "replay and repeat"]  # with --use-routing-replay
    assert len(recorded) == len(replayed) > 4
    assert all(torch.equal(given, kept) for (given, _), kept in zip(replayed, recorded, strict=True))
    differ = [not torch.equal(given, own) for given, own in replayed]
    half = len(differ) // 2
    assert not any(differ[:half])
    assert any(differ[half:])  # by then the router would choose others
