"""Where metrics stand: a record per optimizer step on train/step, one per rollout on rollout/step; and what an epoch's end does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lab.testkit.trainer import trainer_args
from slime.args import Arguments
from slime.backends.trainer import rank as rank_module
from slime.observability.metric_utils import STEPS, TrainSteps, compute_rollout_step, compute_train_step
from slime.ray.reports import Reports
from slime.ray.run import Run
from slime.ray.trainer import side_by_side
from slime.updates.update import Update
from slime.utils import logging_utils
from slime.utils.misc import should_run_periodic_action
from tests.helpers.idle_ranks import idle_rank

BATCH = {"rollout_batch_size": 4, "n_samples_per_prompt": 2, "global_batch_size": 4}  # two optimizer steps


@pytest.fixture
def args(tmp_path: Path) -> Iterator[Arguments]:
    values = Arguments(run_dir=str(tmp_path), use_tensorboard=False, use_wandb=False, **BATCH)
    yield values
    logging_utils.finish_tracking(values)


def report(args: Arguments, rollout_id: int, train: dict[str, Any]) -> list[dict[str, Any]]:
    Reports(args).update(Update(rollout_id, {"rollout/raw_reward": 0.5}, train), 2.0, str(rollout_id + 1))
    lines = (Path(args.run_dir) / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def steps_metrics(*losses: float) -> dict[str, Any]:
    mean = sum(losses) / len(losses)
    return {
        STEPS: [{"train/loss": loss} for loss in losses],
        "train/loss": mean,
        "rollout/log_probs": -1.0,
        "perf/train_time": 3.0,
    }


def test_a_record_per_optimizer_step_and_one_per_rollout(args: Arguments, capsys: pytest.CaptureFixture[str]) -> None:
    records = report(args, 3, steps_metrics(0.5, 0.25))
    assert [(row["step_key"], row[row["step_key"]]) for row in records] == [
        ("rollout/step", 3),
        ("train/step", 6),
        ("train/step", 7),
    ]
    rollout, *steps = records
    assert [row["train/loss"] for row in steps] == [0.5, 0.25]
    assert not [
        name for row in steps for name in row if not name.startswith("train/") and name not in ("time", "step_key")
    ]
    assert (rollout["rollout/log_probs"], rollout["perf/train_time"], rollout["perf/step_time"]) == (-1.0, 3.0, 2.0)
    assert rollout["rollout/weight_version"] == 4
    assert not [name for name in rollout if name.startswith("train/")]
    assert "loss +0.3750" in capsys.readouterr().out  # the driver's line shows the mean


def test_rollout_metrics_on_the_axis_of_steps(args: Arguments) -> None:
    args.wandb_always_use_train_step = True
    records = report(args, 3, steps_metrics(0.5, 0.25))
    assert [row[row["step_key"]] for row in records] == [6, 6, 7]


def test_no_training_gives_no_train_record(args: Arguments) -> None:
    [record] = report(args, 0, {})
    assert record["step_key"] == "rollout/step"


def test_positions() -> None:
    args = Arguments(**BATCH)
    assert compute_rollout_step(args, 5) == 5
    assert compute_train_step(args, 5) == 10
    args.global_batch_size = 16  # a step takes more than a rollout was planned to have
    assert compute_train_step(args, 5) == 5


def test_no_number_of_a_step_comes_twice() -> None:
    numbers = TrainSteps(Arguments(**BATCH))

    def of(rollout_id: int, count: int) -> list[int]:
        metrics = steps_metrics(*range(count)) if count else {}
        return [row["train/step"] for row in numbers.records(rollout_id, metrics)]

    assert of(0, 2) == [0, 1]
    assert of(1, 5) == [2, 3, 4, 5, 6]  # more than the two that were planned
    assert of(2, 1) == [7]
    assert of(3, 1) == [8]
    assert of(4, 0) == []
    assert of(5, 2) == [10, 11]  # as planned again
    assert of(2, 3) == [7, 8, 9]  # trained again from a checkpoint, now with other samples
    assert of(3, 2) == [10, 11]
    resumed = TrainSteps(Arguments(**BATCH))
    assert [row["train/step"] for row in resumed.records(5, steps_metrics(1, 2))] == [10, 11]


def test_critic_and_policy_share_the_records_of_their_steps() -> None:
    critic = {STEPS: [{"train/value_loss": 1.0}, {"train/value_loss": 2.0}], "train/value_loss": 1.5}
    both = side_by_side(critic, steps_metrics(0.5, 0.25))
    assert both[STEPS] == [
        {"train/value_loss": 1.0, "train/loss": 0.5},
        {"train/value_loss": 2.0, "train/loss": 0.25},
    ]
    assert (both["train/value_loss"], both["train/loss"]) == (1.5, 0.375)
    alone = side_by_side(critic, {STEPS: [], "rollout/values": 0.1})  # --num-critic-only-steps
    assert alone[STEPS] == critic[STEPS]


def test_the_trainer_gives_each_step_and_the_means(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_module, "means_of_streams", lambda *_: {"rollout/tokens": 9.0})
    monkeypatch.setattr(rank_module, "speeds_of", lambda *_: {})
    rank = idle_rank(trainer_args(""))
    rank.backend.step = lambda number: {"loss": 1.0 + number, "lr-pg_0": 0.1 * (number + 1), "skipped_steps": 0.0}
    rank._data = SimpleNamespace(micro_batches=[[[0]], [[1]]])  # type: ignore[assignment]
    metrics = rank.step(0)
    assert metrics is not None
    assert [step["train/loss"] for step in metrics[STEPS]] == [1.0, 2.0]
    assert (metrics["train/loss"], metrics["train/lr-pg_0"], metrics["rollout/tokens"]) == (1.5, 0.2, 9.0)
    assert metrics["perf/actor_train_time"] > 0
    rank.rank, rank._data = 1, SimpleNamespace(micro_batches=[[[0]]])  # type: ignore[assignment]
    assert rank.step(1) is None
    assert not rank.clock.seconds, "what another rank logs is of one rollout too"


def test_the_end_of_an_epoch_is_a_reason_to_act() -> None:
    due = [rollout for rollout in range(7) if should_run_periodic_action(rollout, 5, 3, 7)]
    assert due == [2, 4, 5, 6]
    assert [rollout for rollout in range(7) if should_run_periodic_action(rollout, 5, 3)] == [2, 4, 5]
    assert not [rollout for rollout in range(7) if should_run_periodic_action(rollout, None, 3, 7)]


@pytest.mark.parametrize(("per_epoch", "saved", "evaluated"), [(3, [2, 4, 5, 6], [2, 4, 5]), (None, [4, 6], [4])])
def test_the_run_saves_and_evaluates_at_the_end_of_an_epoch(
    monkeypatch: pytest.MonkeyPatch, per_epoch: int | None, saved: list[int], evaluated: list[int]
) -> None:
    run = Run(Arguments(save="folder", save_interval=5, eval_interval=5, num_rollout=7))
    run.updates.progress.per_epoch = per_epoch
    found: dict[str, list[int]] = {"save": [], "evaluate": []}
    monkeypatch.setattr(run.updates, "save", found["save"].append)
    monkeypatch.setattr(run, "evaluate", found["evaluate"].append)
    for rollout_id in range(7):
        run.save_if_due(rollout_id)
        run.evaluate_if_due(rollout_id)
    assert found == {"save": saved, "evaluate": evaluated}
