"""From the flags to the two control loops: how many rollouts, and what comes after the last one."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import train
import train_async

from groundwork.checkpoint_names import LATEST
from groundwork.exceptions import ConfigError
from slime.args import Arguments
from slime.arguments.placement import Placement
from slime.exceptions import DataUsedError
from slime.ray import run as run_module
from slime.ray.placement import ReservedPlacement
from slime.ray.processes import RemoteManager
from slime.ray.run import Run
from slime.utils import logging_utils


class Loop:
    """A run that remembers which rollouts were collected and trained, and how it ended."""

    start_rollout_id = 1

    def __init__(self, **flags: Any) -> None:
        self.args = Arguments(**({"num_rollout": 4, "serve_when_done": False} | flags))
        self.collected: list[int] = []
        self.trained: list[int] = []
        self.served = False

    def generate(self, rollout_id: int) -> int:
        self.collected.append(rollout_id)
        return rollout_id

    def wait(self, batch: int) -> int:
        return batch

    def train(self, rollout_id: int, batch: int) -> None:
        self.publish(self.step(rollout_id, batch))

    def step(self, rollout_id: int, batch: int) -> int:
        assert rollout_id == batch
        self.trained.append(rollout_id)
        return rollout_id

    def publish(self, update: int) -> None:
        assert update == self.trained[-1]

    def serve_until_stopped(self) -> None:
        self.served = True

    def evaluate_start(self) -> None:
        """Not looked at here."""

    def save_if_due(self, rollout_id: int) -> None:
        """Not looked at here."""

    def evaluate_if_due(self, rollout_id: int) -> None:
        """Not looked at here."""


@pytest.mark.parametrize("program", [train, train_async])
def test_a_run_has_as_many_rollouts_as_the_flag_says(program: ModuleType) -> None:
    for count, expected in ((4, [1, 2, 3]), (2, [1]), (1, [])):
        run: Any = Loop(num_rollout=count)
        program.train(run)
        assert (run.collected, run.trained, run.served) == (expected, expected, False)


@pytest.mark.parametrize("program", [train, train_async])
def test_engines_serve_on_where_the_flag_wants_it(program: ModuleType) -> None:
    run: Any = Loop(serve_when_done=True)
    program.train(run)
    assert (run.trained, run.served) == ([1, 2, 3], True)


class UsedUp(Loop):
    """A loop whose data ends at a rollout."""

    def __init__(self, end: int, **flags: Any) -> None:
        super().__init__(**flags)
        self.end, self.told = end, ""

    def wait(self, batch: int) -> int:
        if batch == self.end:
            raise DataUsedError("all used")
        return batch

    def data_used(self, end: DataUsedError) -> None:
        self.told = str(end)


@pytest.mark.parametrize("program", [train, train_async])
def test_a_run_ends_with_its_data(program: ModuleType) -> None:
    run: Any = UsedUp(3)
    program.train(run)
    assert (run.trained, run.served, run.told) == ([1, 2], False, "all used")
    run = UsedUp(1, serve_when_done=True)
    program.train(run)
    assert (run.trained, run.served) == ([], True)


def started(monkeypatch: pytest.MonkeyPatch, **flags: Any) -> tuple[Run, list[int]]:
    """Return a run that has one engine and no trainer, and how many GPUs its cluster was asked for."""

    class Manager:
        """Its methods are called as Ray's, and answer at once."""

        def __getattr__(self, name: str) -> Any:
            return SimpleNamespace(remote=lambda *_: {"rollouts_per_epoch": 5}.get(name, {}))

    asked: list[int] = []

    def cluster(args: Arguments, *, num_gpus: int, stop: Any) -> Any:
        asked.append(num_gpus)
        return contextlib.nullcontext()

    nowhere = ReservedPlacement(Placement((), (0,), ()), None, ())
    monkeypatch.setattr(run_module, "ray_cluster", cluster)
    monkeypatch.setattr(run_module, "create_placement", lambda args, stop: nowhere)
    monkeypatch.setattr(run_module, "release_placement", lambda reserved: None)
    monkeypatch.setattr(run_module, "create_rollout_manager", lambda args, reserved: RemoteManager(Manager()))
    monkeypatch.setattr(logging_utils, "init_tracking", lambda args: None)
    run = Run(
        Arguments(
            debug_rollout_only=True, rollout_num_gpus=1, rollout_global_dataset=False, run_dir="/nowhere", **flags
        )
    )
    monkeypatch.setattr(run.stop, "install", lambda: None)
    monkeypatch.setattr(run, "wait", lambda answer: answer)
    # Nothing here ends the run, and so its thread.
    monkeypatch.setattr(run_module.StartWatch, "start", lambda watch: None)
    run._start()
    return run, asked


def test_an_epoch_is_as_many_rollouts_as_use_every_prompt_once(monkeypatch: pytest.MonkeyPatch) -> None:
    run, _ = started(monkeypatch, num_epoch=3, num_rollout=None)
    assert run.args.num_rollout == 15


@pytest.mark.parametrize(("num_gpus", "expected"), [(None, 1), (4, 4)])
def test_a_cluster_has_the_gpus_of_the_flag_or_those_that_the_roles_need(
    monkeypatch: pytest.MonkeyPatch, num_gpus: int | None, expected: int
) -> None:
    _, asked = started(monkeypatch, num_rollout=1, num_gpus=num_gpus)
    assert asked == [expected]


def test_checkpoints_that_another_run_wrote_while_this_one_waited_for_gpus_are_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A job that is submitted twice: both found an empty folder."""

    def wait(args: Arguments, stop: Any) -> ReservedPlacement:
        (tmp_path / LATEST).write_text("2")
        return ReservedPlacement(Placement((0,), (), ()), None, ())

    monkeypatch.setattr(run_module, "ray_cluster", lambda *_, **__: contextlib.nullcontext())
    monkeypatch.setattr(run_module, "create_placement", wait)
    monkeypatch.setattr(run_module, "create_rollout_manager", lambda *_: pytest.fail("it started"))
    folders = {"save": str(tmp_path), "run_dir": str(tmp_path / "run")}
    run = Run(Arguments(**folders, rollout_global_dataset=False, rollout_num_gpus=1))
    monkeypatch.setattr(run.stop, "install", lambda: None)
    with pytest.raises(ConfigError, match="holds checkpoints of an earlier run; add --resume"), run:
        pytest.fail("it started")
