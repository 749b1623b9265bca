"""What a rank does in the tests of vision-language training; at module level, so that new processes can import it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from lab.testkit import trainer
from slime.backends.fsdp_utils import backend
from tests.helpers import trainer_ranks, vision_samples
from tests.helpers.ppo_ranks import from_all_ranks


def gradients(rank: int, world_size: int, model: str, cases: list[dict[str, Any]], out: str) -> None:
    """For each case take one step on samples with and without images and write its metrics, gradients, adapters and what had images."""
    results = []
    original = backend.apply_gradients
    for number, changes in enumerate(cases):
        args = trainer.trainer_args(model, **changes)
        actor, _ = trainer_ranks.start_actor(args, rank, world_size, trainer.meeting_port(rank, f"{out}.{number}"))
        if args.use_lora:
            trainer_ranks.randomise_lora(actor)
        captured: dict[str, torch.Tensor] = {}

        def capture(policy, optimizer, schedule, clip_grad, actor=actor, captured=captured, **hold):
            captured |= trainer_ranks.full_parameters(actor, lambda parameter: parameter.grad)
            return original(policy, optimizer, schedule, clip_grad, **hold)

        adapters = trainer_ranks.full_parameters(actor) if args.use_lora else {}
        shard = trainer.shards(args, vision_samples.train_data(Path(model)), world_size)[rank]
        backend.apply_gradients = capture
        try:
            metrics = actor.train(0, shard)
        finally:
            backend.apply_gradients = original
        pictured = [
            [any(shard["multimodal_train_inputs"][i] for i in batch) for batch in shard["micro_batch_indices"][0]]
        ]
        results.append(((metrics, captured, adapters), from_all_ranks(pictured)))
        actor.shutdown()
    if rank == 0:
        torch.save(results, out)


def train(rank: int, world_size: int, model: str, changes: dict[str, Any], rollouts: list[int], out: str) -> None:
    """Start (or resume), train ``rollouts``, save after each, and write the weights before and after."""
    args = trainer.trainer_args(model, **changes)
    actor, start = trainer_ranks.start_actor(args, rank, world_size, trainer.meeting_port(rank, out))
    before = trainer_ranks.full_parameters(actor)
    metrics = []
    for rollout in rollouts:
        data = vision_samples.train_data(Path(model), seed=rollout)
        metrics.append(actor.train(rollout, trainer.shards(args, data, world_size)[rank]))
        actor.save(rollout)
        actor.publish(rollout)
    after = trainer_ranks.full_parameters(actor)
    if rank == 0:
        torch.save({"start": start, "before": before, "after": after, "metrics": metrics}, out)
    actor.shutdown()


def two_ranks(rank: int, world_size: int, *calls: tuple[str, tuple[Any, ...]]) -> None:
    """Call functions of this module one after the other, by name, each with its arguments."""
    for name, arguments in calls:
        globals()[name](rank, world_size, *arguments)
