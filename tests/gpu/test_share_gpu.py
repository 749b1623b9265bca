"""``train.py --share-gpu`` on Qwen3-0.6B's shape: engine and trainer on one GPU, whole weights, checksums after every push."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.figures import record_figure
from groundwork.start_timeline import DRIVER, Step, read, seconds_of
from tests.helpers.needed import needs

pytestmark = needs("sglang", "ray")

FIGURES = (
    ("perf/actor_train_time", "optimizer step", "s"),
    ("perf/update_weights_time", "checked push", "s"),
    ("train/train_rollout_logprob_abs_diff", "difference of log probabilities, mean", "nats"),
)
"""Of the last rollout: metric, what it is, unit."""


@pytest.mark.timeout(280)
def test_every_step_is_live_on_the_engine_beside_it(repository: Path, tmp_path: Path, small_qwen: Path) -> None:
    from tests.helpers.shared_loop import ON_A_GPU, ROLLOUTS, logged, run_shared

    run_dir = tmp_path / "run"
    run_shared(repository, run_dir, small_qwen, *ON_A_GPU, script="train.py")
    ready = seconds_of(read(run_dir), DRIVER, Step.READY_TO_STEP)
    assert ready is not None
    record_figure("loop on one GPU/first step possible", ready, "s")
    for name, what, unit in FIGURES:
        values = logged(run_dir, name)
        assert len(values) >= ROLLOUTS, f"{name} was logged {len(values)} times"
        record_figure(f"loop on one GPU/{what}", values[-1], unit)
