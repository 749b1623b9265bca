"""The way of a sample: from its row in the ledger to the loss of one rank.

The processes are one here: the rollout manager and the trainer's rank run in turn, Ray's object store is left out, and
a stand-in takes the place of the runtime process. What the driver does between the two is passing references.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks.path_parts.recorder import Entry, Recorder
from lab.testkit import tiny_random
from lab.testkit.ledger_records import USER_NEXT, make_turn
from lab.testkit.trainer import trainer_args
from openclaw.credit.baseline import record_judged
from openclaw.training.rollout import LedgerDataSource
from slime.args import Arguments
from slime.arguments.placement import Placement
from slime.backends.fsdp_utils.backend import FSDPTrainActor
from slime.ray.placement import ReservedPlacement
from slime.ray.rollout import RolloutManager

WARM_UP, RECORDED = 0, 1


def arguments(folder: Path) -> Arguments:
    """Return the arguments of Combine on a CPU: one sample per rollout, score and teacher, KL to the reference."""
    return trainer_args(
        tiny_random.build(folder / "model"),
        run_dir=str(folder / "run"),
        rollout_batch_size=1,
        global_batch_size=1,
        n_samples_per_prompt=1,
        rollout_function_path="openclaw_combine_rollout.generate_rollout_openclaw_combine",
        data_source_path="openclaw.training.rollout.LedgerDataSource",
        use_fault_tolerance=False,
        rewards_normalization=False,
        use_opd=True,
        use_kl_loss=True,
        kl_loss_coef=0.2,
        max_tokens_per_gpu=64,
    )


def judge(source: LedgerDataSource, name: str) -> None:
    """Put a judged turn with a score and a teacher into the ledger."""
    from openclaw_combine_method import Combine

    from openclaw.config.runtime import RuntimeConfig
    from openclaw.ledger.records import Verdict

    turn = make_turn(name, session_id=name)
    verdict = Verdict(score=1, hint="Write plain prose.", teacher_log_probs=[-0.5, -0.25, -2.0])
    decision = Combine(RuntimeConfig()).samples(turn, verdict)
    source.ledger.turns.record(turn)
    source.ledger.turns.record_next_state(name, USER_NEXT, 102.0)
    record_judged(source.ledger, name, verdict, decision.samples, decision.reason)


def manager_of(args: Arguments) -> RolloutManager:
    """Return a rollout manager without engines whose shards stay in this process."""
    reserved = ReservedPlacement(Placement(actor=(0,), rollout=(), judge=()), None, ())
    return RolloutManager(args, reserved)


def trace_sample(folder: Path) -> list[Entry]:
    """Return the functions that one sample of Combine enters up to the first backward pass, after another one."""
    recorder = Recorder()
    args = arguments(folder)
    backward = torch.Tensor.backward

    def loss_is_there(tensor: torch.Tensor, *values: Any, **options: Any) -> None:
        recorder.stop()
        backward(tensor, *values, **options)

    with (
        mock.patch.dict(os.environ, {"OPENCLAW_LEDGER": str(folder / "ledger.sqlite")}),
        mock.patch(
            "openclaw.training.rollout.start_runtime",
            return_value=mock.Mock(restarts=0, frozen=0, api_url="http://127.0.0.1:30000/v1"),
        ),
        mock.patch("slime.ray.rollout.ray.put", side_effect=lambda shard: shard),
        mock.patch.object(torch.Tensor, "backward", loss_is_there),
    ):
        manager, actor = manager_of(args), FSDPTrainActor(1, 0, "127.0.0.1")
        source = LedgerDataSource(args)
        judge(source, "warm-up")
        judge(source, "recorded")
        manager.before_rollouts()
        try:
            actor.init(args)
            actor.train(WARM_UP, manager.generate(WARM_UP)["shards"][0])
            recorder.install()
            with recorder.recording():
                [shard] = manager.generate(RECORDED)["shards"]
                actor.train(RECORDED, shard)
        finally:
            recorder.remove()
            actor.shutdown()
            manager.dispose()
    return recorder.entries
