"""The whole loop with ``--train-backend megatron``: real engine, Ray, policy and critic of two tensor-parallel ranks, a push after every step.

The launch line is the one of `test_train_loop` but for the back end's flags. The engine is the shared one, joined as an external
engine, and serves its start weights again at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from lab.testkit.logged import logged_records
from tests.helpers.driver import Driver, live_version

FLAGS = (
    *("--train-backend", "megatron", "--actor-num-gpus-per-node", "2"),
    *("--tensor-model-parallel-size", "2", "--sequence-parallel"),
    *("--advantage-estimator", "ppo", "--critic-lr", "1e-2"),
)
ROLLOUTS = 3


def ask(url: str, route: str, **body: Any) -> Any:
    answer = httpx.post(f"{url}/{route}", json=body, timeout=60, trust_env=False)
    assert answer.status_code == 200, f"{route}: {answer.text}"
    return answer.json()


def checksums(url: str) -> Any:
    """A hash of every tensor that the engine holds."""
    (rank,) = ask(url, "weights_checker", action="checksum")["ranks"]
    return rank["checksums"]


def load(url: str, folder: Path) -> None:
    ask(url, "update_weights_from_disk", model_path=str(folder), weight_version="0")


@pytest.fixture
def borrowed(engine: Any, tiny_random_model: Path) -> Iterator[str]:
    """The address of the shared engine."""
    yield engine.url()
    load(engine.url(), tiny_random_model)


@pytest.mark.timeout(600)
def test_every_step_reaches_the_engine(
    borrowed: str, repository: Path, tmp_path: Path, tiny_random_model: Path
) -> None:
    run_dir = tmp_path / "run"
    driver = Driver(
        *(repository, run_dir, tiny_random_model, *FLAGS, "--num-rollout", str(ROLLOUTS)),
        *("--rollout-external-engine-addrs", borrowed.removeprefix("http://")),
        *("--save-interval", "3", "--save-hf", str(run_dir / "hf")),
        script="train.py",
    )
    driver.run_to_end()
    driver.assert_on_policy(ROLLOUTS)
    assert live_version(borrowed) == str(ROLLOUTS)
    logged = logged_records(run_dir)
    values = [row["rollout/values"] for row in logged if "rollout/values" in row]
    assert (len(values), values[0], 0.0 in values[1:]) == (ROLLOUTS, 0.0, False)
    assert len([row for row in logged if "train/value_loss" in row]) == ROLLOUTS
    for folder in ("checkpoints", "checkpoints/critic"):
        assert (run_dir / folder / "latest_checkpointed_iteration.txt").read_text().strip() == str(ROLLOUTS)
    # what was pushed is the exported Hugging Face checkpoint, bit for bit
    pushed = checksums(borrowed)
    load(borrowed, run_dir / "hf")
    assert checksums(borrowed) == pushed
    load(borrowed, tiny_random_model)
    start = checksums(borrowed)
    assert len(start) > 10
    assert all(pushed[name] != value for name, value in start.items()), start
