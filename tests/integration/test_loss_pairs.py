"""Every loss on every back end that does not refuse it, full and LoRA, has the loss and the gradients of float64.

The pairs are those of the table in instructions/backends.md, which a unit test holds against them. PPO is in test_ppo_trainer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lab.testkit import trainer
from tests.helpers import megatron_ranks, pairs, trainer_ranks
from tests.helpers.gradient_cases import LOSSES, check_case

TP2 = {"tensor_model_parallel_size": 2}
CP2 = {"context_parallel_size": 2}
ALL = tuple(LOSSES)
# One for each way from hidden states to a loss: log probabilities with and without advantages, and those of a support.
SOME = ("grpo", "sft_loss", "top-K, reverse")
# How one copy of the model is split, by the number of ranks, and the losses there: full and LoRA.
MEGATRON: dict[str, dict[int, list[tuple[dict[str, Any], tuple[str, ...]]]]] = {
    "Megatron, full": {1: [({}, ALL)], 2: [(TP2, ALL), (CP2, ALL)]},
    "Megatron, LoRA": {1: [({}, ALL)], 2: [(TP2, ALL), (TP2 | {"sequence_parallel": True}, SOME), (CP2, SOME)]},
}
# Terms that read whole responses or are normalised by them, which context-parallel ranks have to exchange.
TERMS: dict[str, dict[str, Any]] = {
    "gspo, opsm, entropy, kl": {
        **{"advantage_estimator": "gspo", "use_opsm": True, "use_rollout_logprobs": True, "use_lora": True},
        **{"entropy_coef": 0.01, "use_kl_loss": True, "kl_loss_coef": 0.1},
    },
    "cispo, rejection, per token": {
        **{"advantage_estimator": "cispo", "use_tis": True, "tis_clip": 2.5, "tis_clip_low": 0.1},
        "custom_tis_function_path": "slime.algorithms.losses.rejection.sequence_rejection",
        "calculate_per_token_loss": True,
    },
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory, tiny_random_model: Path) -> dict[tuple[str, str], list[Any]]:
    """What a step gives by loss and column: on one rank, and for Megatron also on two that split every layer or sequence."""
    folder, model = tmp_path_factory.mktemp("pairs"), str(tiny_random_model)
    names, changes = list(LOSSES), list(LOSSES.values())
    found: dict[tuple[str, str], list[Any]] = {}

    file = str(folder / "fsdp.pt")
    cases = [change | {"use_lora": lora} for lora in (False, True) for change in changes]
    trainer.on_ranks(1, trainer_ranks.gradients_of_cases, cases, model, file)
    results = torch.load(file, weights_only=False)
    for number, key in enumerate((name, column) for column in ("FSDP2, full", "FSDP2, LoRA") for name in names):
        found[key] = [results[number]]
    for ranks in (1, 2):
        file = str(folder / f"megatron-{ranks}.pt")
        plan = [
            (column, layout, name)
            for column in MEGATRON
            for layout, losses in MEGATRON[column][ranks]
            for name in losses
        ]
        cases = [LOSSES[name] | layout | {"use_lora": "LoRA" in column} for column, layout, name in plan]
        if ranks == 2:
            plan += [("context parallel", CP2, name) for name in TERMS]
            cases += [change | CP2 for change in TERMS.values()]
        trainer.on_ranks(ranks, megatron_ranks.gradients_of_losses, cases, model, file)
        for (column, _, name), result in zip(plan, torch.load(file, weights_only=False), strict=True):
            found.setdefault((name, column), []).append(result)
    return found


@pytest.mark.parametrize(("loss", "column"), pairs.TRAINED)
def test_a_pair_has_the_gradients_of_float64(outcomes, tiny_random_model: Path, loss: str, column: str) -> None:
    args = trainer.trainer_args(tiny_random_model, **LOSSES[loss], use_lora="LoRA" in column)
    results = outcomes[loss, column]
    layouts = [losses for split in MEGATRON.get(column, {1: [({}, ALL)]}).values() for _, losses in split]
    assert len(results) == sum(loss in losses for losses in layouts)
    for outcome in results:
        check_case(args, outcome)


@pytest.mark.parametrize("terms", TERMS)
def test_terms_of_whole_responses_are_those_of_float64_in_parts(outcomes, tiny_random_model: Path, terms: str) -> None:
    (outcome,) = outcomes[terms, "context parallel"]
    check_case(trainer.trainer_args(tiny_random_model, **TERMS[terms]), outcome)
