"""``train.py --colocate`` as users run it, on a CPU: real engine, Ray, trainer, and the weights of a trainer that is all alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from groundwork.network import find_available_port
from slime.arguments import parse_args
from slime.rollout.train_data import convert, split_by_dp
from slime.utils.types import Sample
from tests.helpers.driver import COMMON
from tests.helpers.shared_loop import ROLLOUTS, run_shared
from tests.helpers.trainer_ranks import start_actor


def alone(model: Path, run_dir: Path) -> dict[str, torch.Tensor]:
    """The weights after training, without engine and Ray, on the rollouts that a run left in its folder."""
    words = ["--hf-checkpoint", str(model), "--num-rollout", str(ROLLOUTS)]
    args = parse_args([*COMMON, *words, "--prompt-data", str(run_dir / "prompts.jsonl")])
    actor, _ = start_actor(args, 0, 1, find_available_port())
    try:
        for rollout_id in range(ROLLOUTS):
            dump = torch.load(run_dir / f"{rollout_id}.pt", weights_only=False)
            data = convert(args, [Sample.from_dict(record) for record in dump["samples"]])
            actor.train(rollout_id, split_by_dp(data, 1, args)[0])
        return {name: value.clone() for name, value in actor.backend.weights()}
    finally:
        actor.shutdown()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_shared_run_trains_as_one_that_shares_nothing(
    repository: Path, tmp_path: Path, tiny_random_model: Path
) -> None:
    run_dir = tmp_path / "run"
    driver = run_shared(
        *(repository, run_dir, tiny_random_model, "--colocate"),
        *("--save-interval", str(ROLLOUTS), "--save-hf", str(run_dir / "hf")),
        *("--save-debug-rollout-data", str(run_dir / "{rollout_id}.pt")),
        script="train.py",
    )
    said = driver.text()
    assert "rollout  GPU 0      1 engine(s) of 1, on the trainer's" in said
    # saved before the push
    assert said.index(f"saved {run_dir}") < said.index(f"step {ROLLOUTS - 1} ")
    exported, expected = load_file(run_dir / "hf" / "model.safetensors"), alone(tiny_random_model, run_dir)
    assert all(torch.equal(value, expected[name]) for name, value in exported.items())
    start = load_file(tiny_random_model / "model.safetensors")
    assert not any(torch.equal(value, start[name]) for name, value in exported.items() if value.dim() == 2)
