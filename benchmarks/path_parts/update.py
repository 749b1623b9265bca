"""The way of an update: from the optimizer's step to weights that are live, with the gate's decision.

Live means that the data source knows that engines serve the weights. The report of the update, which follows, is not on the way.

The processes are one here: driver, rank and rollout manager call each other directly instead of over Ray. The run pushes over a
file system (``--update-weight-transport disk``), and one engine without a model takes what it is told.
"""

from __future__ import annotations

import os
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from unittest import mock

import ray
from torch.optim.optimizer import register_optimizer_step_pre_hook

from benchmarks.path_parts.recorder import Entry, Recorder
from benchmarks.path_parts.sample import arguments, judge, manager_of
from groundwork.process import StopRequested
from openclaw.training.rollout import LedgerDataSource
from slime.args import Arguments
from slime.backends.fsdp_utils.backend import FSDPTrainActor
from slime.ray.processes import Processes, RemoteManager
from slime.ray.reports import Reports
from slime.ray.restarts import Restarts
from slime.ray.trainer import RemotePolicy, Trainer, TrainGroup
from slime.updates.policy_engines import Engines
from slime.updates.updates import Updates
from slime.weight_sync.remote_engine import RemoteEngine

WARM_UP, RECORDED = 0, 1
NEVER = 3600.0
"""Seconds between looks at signals, lost machines and the judge's errors, so that a slow machine records the same as a fast one."""


class Done:
    """A reference whose value is there."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def future(self) -> Future[Any]:
        """Return the value as Ray's references do."""
        future: Future[Any] = Future()
        future.set_result(self.value)
        return future


class Here:
    """A handle of an object in this process, in place of Ray's; without an object every call returns None."""

    def __init__(self, target: Any = None) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._target, name) if self._target is not None else lambda *_, **__: None
        return mock.Mock(remote=lambda *words, **keywords: Done(method(*words, **keywords)))


def value_of(reference: Any) -> Any:
    """Return what `ray.get` returns."""
    return [value_of(each) for each in reference] if isinstance(reference, list) else reference.value


def trainer_of(args: Arguments, actor: FSDPTrainActor) -> Trainer:
    """Return a trainer of one rank in this process."""
    group: Any = TrainGroup.__new__(TrainGroup)
    group._args, group._stop, group._nodes, group._noun = args, None, {}, "training rank"
    group._ranks = [RemotePolicy(Here(actor))]
    trainer = Trainer.__new__(Trainer)
    trainer._critic_only, trainer._actor, trainer._critic = 0, group, None
    return trainer


def trace_update(folder: Path) -> list[Entry]:
    """Return the functions that one accepted update enters, after another one."""
    recorder = Recorder()
    args = arguments(folder).changed(
        before_push_path="openclaw.gate.plugin.decide", update_weight_transport="disk", num_rollout=9
    )
    started = mock.Mock(restarts=0, frozen=0, api_url="http://127.0.0.1:30000/v1")
    with (
        mock.patch.dict(os.environ, {"OPENCLAW_LEDGER": str(folder / "ledger.sqlite")}),
        mock.patch("openclaw.training.rollout.start_runtime", return_value=started),
        mock.patch.object(ray, "put", lambda shard: shard),
        mock.patch.object(ray, "get", value_of),
        mock.patch.object(ray, "wait", lambda references, **_: (references, [])),
        mock.patch("slime.updates.decisions.POLL_SECONDS", NEVER),
        mock.patch("openclaw.training.rollout.LOOK_SECONDS", NEVER),
    ):
        manager, actor = manager_of(args), FSDPTrainActor(1, 0, "127.0.0.1")
        source = LedgerDataSource(args)
        judge(source, "warm-up")
        judge(source, "recorded")
        manager.before_rollouts()
        processes = Processes(StopRequested())
        processes.manager, processes.trainer = RemoteManager(Here(manager)), trainer_of(args, actor)
        engines = Engines(args, processes)
        reports = mock.Mock(spec=Reports)
        reports.update.side_effect = lambda *_: recorder.stop()
        updates = Updates(args, processes, engines, Restarts(), reports)
        try:
            actor.init(args)
            processes.trainer.connect_rollout_engines([RemoteEngine(Here())])
            engines.push(connect=False)
            updates.publish(updates.step(WARM_UP, manager.generate(WARM_UP)))
            batch = manager.generate(RECORDED)
            recorder.install()
            hook = register_optimizer_step_pre_hook(lambda *_: recorder.start())
            updates.publish(updates.step(RECORDED, batch))
            hook.remove()
        finally:
            recorder.remove()
            actor.shutdown()
            manager.dispose()
    return recorder.entries
