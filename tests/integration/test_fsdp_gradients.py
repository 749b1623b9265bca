"""The trainer's loss and gradients are those of a plain float64 loop over samples, on one and on two ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lab.testkit import trainer
from tests.helpers import trainer_ranks
from tests.helpers.gradient_cases import CASES, check


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, tiny_random_model: Path, tiny_random_tied_model: Path):
    """Metrics, gradients and adapters of every case, by (tied, ranks)."""
    out = tmp_path_factory.mktemp("gradients")
    models = {False: (tiny_random_model, list(CASES.values())), True: (tiny_random_tied_model, [CASES["packed"]])}
    found = {}
    for ranks in (1, 2):
        work = [(cases, str(model), str(out / f"{tied}-{ranks}.pt")) for tied, (model, cases) in models.items()]
        trainer.on_ranks(ranks, trainer_ranks.gradients_of_models, work)
        found |= {(tied, ranks): torch.load(out / f"{tied}-{ranks}.pt", weights_only=False) for tied in models}
    return found


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_gradients_equal_the_reference(results, tiny_random_model: Path, name: str, ranks: int) -> None:
    check(tiny_random_model, name, results[False, ranks][list(CASES).index(name)])


@pytest.mark.parametrize("ranks", [1, 2])
def test_gradients_with_tied_embeddings(results, tiny_random_tied_model: Path, ranks: int) -> None:
    check(tiny_random_tied_model, "packed", results[True, ranks][0])
