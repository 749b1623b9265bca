"""A run that died and was resumed is the run that did not: batches, losses, weights, moments and random states, bit by bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lab.testkit import trainer
from tests.helpers import resume_run

FULL: dict[str, Any] = {"lr_decay_style": "cosine", "lr_warmup_iters": 2, "entropy_coef": 0.01, "use_tis": True}
LORA: dict[str, Any] = FULL | {"use_lora": True, "lora_dropout": 0.3, "use_kl_loss": True, "kl_loss_coef": 0.1}
# Where it dies: a batch is leased and not trained; a step is taken and in no checkpoint; the ledger has heard of a
# checkpoint that is not published yet. With the rollout, and the one to resume with.
LEASED, TRAINED, SAVED = (("leased", 3), 2), (("trained", 2), 2), (("saved", 3), 2)


def run(
    folder: Path, model: Path, ranks: int, changes: dict[str, Any], *, resume: bool = False, dies: Any = None
) -> dict[str, Any] | None:
    out = folder / f"{resume}.pt"
    if not resume:
        folder.mkdir()
        resume_run.fill_ledger(str(folder))
    trainer.on_ranks(ranks, resume_run.run, changes, str(model), str(folder), resume, dies, str(out))
    return torch.load(out, weights_only=False) if out.exists() else None


def without_seconds(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if not name.startswith("perf/")}


@pytest.mark.parametrize(
    ("ranks", "changes", "moment"),
    [
        pytest.param(1, FULL, LEASED, id="full-1-leased"),
        pytest.param(1, LORA, TRAINED, id="lora-1-trained", marks=pytest.mark.long),
        pytest.param(2, FULL, TRAINED, id="full-2-trained", marks=pytest.mark.long),
        pytest.param(2, LORA, SAVED, id="lora-2-saved"),
    ],
)
def test_a_resumed_run_is_bit_equal_to_an_uninterrupted_one(
    tmp_path: Path, tiny_random_model: Path, ranks: int, changes: dict[str, Any], moment: Any
) -> None:
    dies, start = moment
    whole = run(tmp_path / "whole", tiny_random_model, ranks, changes)
    assert run(tmp_path / "cut", tiny_random_model, ranks, changes, dies=dies) is None
    resumed = run(tmp_path / "cut", tiny_random_model, ranks, changes, resume=True)
    assert whole is not None
    assert resumed is not None
    assert (whole["start"], resumed["start"]) == (0, start)
    trained = [sample for rollout in range(resume_run.ROLLOUTS) for sample in whole["batches"][rollout]]
    assert trained == list(range(1, resume_run.ROLLOUTS * resume_run.BATCH + 1)), "each sample once, in order"
    for rollout in range(start, resume_run.ROLLOUTS):
        assert resumed["batches"][rollout] == whole["batches"][rollout]
        assert without_seconds(resumed["metrics"][rollout]) == without_seconds(whole["metrics"][rollout])
    for kind in ("weights", "moments"):
        assert set(resumed[kind]) == set(whole[kind])
        assert whole[kind]
        differing = [name for name, value in whole[kind].items() if not torch.equal(value, resumed[kind][name])]
        assert not differing, kind
    assert resumed["random"] == whole["random"]
    if "lora_dropout" in changes:
        assert whole["random"][0] != resume_state(whole), "dropout draws from the generator"


def resume_state(found: dict[str, Any]) -> Any:
    """The random state of a process that has only been seeded."""
    with torch.random.fork_rng():
        torch.manual_seed(1234)
        return [*found["random"][0][:2], torch.get_rng_state().tolist()]
