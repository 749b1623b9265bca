"""A training run over the ledger that dies where it is told to, as one rank sees it; for new processes.

The order is that of ``train_async.py``: the next batch is leased before this one trains, a checkpoint is written every other
rollout, and the ledger hears of it after that.
"""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.fault_parts.trainer import NoRuntime
from lab.testkit import trainer
from lab.testkit.ledger_records import USER_NEXT, make_turn
from openclaw.credit.baseline import record_judged
from openclaw.ledger.records import Verdict, VersionSpan
from openclaw.ledger.store import Ledger
from openclaw.runtime.where import ledger_path
from openclaw.training.rollout import LedgerDataSource, collect
from openclaw.training.samples import make_sample
from slime.args import Arguments
from slime.backends.fsdp_utils.backend import FSDPTrainActor
from slime.backends.fsdp_utils.model import gather
from slime.rollout.train_data import convert, split_by_dp
from tests.helpers import trainer_ranks
from tests.helpers.ppo_ranks import from_all_ranks

BATCH = 4
ROLLOUTS = 5


def fill_ledger(folder: str) -> None:
    """Write the judged samples of all rollouts, of different lengths and tokens."""
    generator = random.Random(3)
    with_ledger = Ledger(ledger_path(source_args(folder)))
    for number in range(ROLLOUTS * BATCH):
        prompt, reply = ([generator.randrange(600) for _ in range(generator.randint(2, 12))] for _ in range(2))
        logprobs = [-6.0 - generator.random() for _ in reply]
        spans = [VersionSpan("0", 0, len(reply))]
        turn = make_turn(
            f"turn-{number}", session_id=f"session-{number}", prompt_ids=prompt, response_ids=reply,
            response_logprobs=logprobs, weight_versions=spans,
        )  # fmt: skip
        score = generator.choice([-1, 1])
        with_ledger.turns.record(turn)
        with_ledger.turns.record_next_state(turn.id, USER_NEXT, 102.0)
        record_judged(with_ledger, turn.id, Verdict(score=score), [make_sample(turn, float(score), score=score)], None)
    with_ledger.close()


def source_args(folder: str) -> Arguments:
    """What the ledger's data source reads."""
    return Arguments(
        save=folder, run_dir=folder, rollout_batch_size=BATCH, max_weight_staleness=None, stale_samples="drop"
    )


def run(
    rank: int, world_size: int, changes: dict[str, Any], model: str, folder: str,
    resume: bool, dies: tuple[str, int] | None, out: str,
) -> None:  # fmt: skip
    """Start or resume, and train all rollouts, or up to the moment ``dies``: (``leased``, ``trained`` or ``saved``, rollout).

    Rank 0 writes what the run ends with: batches, metrics, weights, moments, every rank's random state.
    """
    args = trainer.trainer_args(model, **changes, save=folder, resume=resume)
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(os.getpid())  # a new process may be in any state
    actor, start = trainer_ranks.start_actor(args, rank, world_size, trainer.meeting_port(rank, out))
    source = LedgerDataSource(source_args(folder)) if rank == 0 else None
    if source is not None:
        source.load(start - 1)
    batches: dict[int, list[int]] = {}
    metrics: dict[int, Any] = {}

    def lease(rollout_id: int) -> Any:
        shared: list[Any] = [None]
        if source is not None:
            samples, _, _ = collect(source.args, rollout_id, source, NoRuntime())  # type: ignore[arg-type]
            batches[rollout_id] = [sample.metadata["ledger_id"] for sample in samples]
            whole = args.changed(global_batch_size=BATCH)
            shared = [split_by_dp(convert(whole, samples), world_size, whole)]
        dist.broadcast_object_list(shared, src=0)
        return shared[0][rank]

    def die_at(moment: str, rollout_id: int) -> None:
        if dies == (moment, rollout_id):
            dist.barrier()
            os._exit(0)

    following = lease(start)
    for rollout_id in range(start, ROLLOUTS):
        shard = following
        following = lease(rollout_id + 1) if rollout_id + 1 < ROLLOUTS else None
        die_at("leased", rollout_id)
        metrics[rollout_id] = actor.train(rollout_id, shard)
        if source is not None:
            source.weights_live(rollout_id, str(rollout_id + 1))
        die_at("trained", rollout_id)
        if rollout_id % 2 == 1:
            actor.save(rollout_id)
            if source is not None:
                source.save(rollout_id)
            die_at("saved", rollout_id)
            actor.publish(rollout_id)
    states = from_all_ranks(random_state())
    found = {"start": start, "weights": trainer_ranks.full_parameters(actor), "moments": moments(actor)}
    if rank == 0:
        torch.save({**found, "batches": batches, "metrics": metrics, "random": states}, out)
    actor.shutdown()


def moments(actor: FSDPTrainActor) -> dict[str, torch.Tensor]:
    """Whole copies of every tensor of the optimizer's state, by parameter and name; collective."""
    found = {}
    for name, parameter in actor.backend.model.named_parameters():
        for key, value in sorted(actor.backend.optimizer.state.get(parameter, {}).items()):
            found[f"{name} {key}"] = gather(value, trainer_ranks.CPU).clone()
    return found


def random_state() -> list[Any]:
    """The state of the three generators of this process, in comparable form."""
    numbers = np.random.get_state()
    return [random.getstate(), [str(part) for part in numbers], torch.get_rng_state().tolist()]
