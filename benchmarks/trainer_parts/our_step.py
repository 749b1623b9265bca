"""Our optimizer step, on request: `python -m benchmarks.trainer_parts.our_step SETTINGS.json`, see the meter beside.

The step is the training actor's, on one rank: forward and backward over all micro-batches, clipping and AdamW. The engine's
log probabilities are the old policy (``--use-rollout-logprobs``), so no other pass belongs to it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.losses import settings
from benchmarks.trainer_parts.meter import Meter
from groundwork.network import find_available_port
from slime.args import Arguments
from slime.arguments.memory_budget import budget_of
from slime.arguments.memory_budget.budget import reason_to_plan_nothing
from slime.arguments.memory_budget.gpu import GpuMemory, gpu_memory
from slime.arguments.memory_budget.shape import policy_shape
from slime.arguments.memory_budget.trainer import trainer_need
from slime.backends.fsdp_utils.backend import FSDPTrainActor
from slime.rollout.train_data import split_by_dp


def arguments(given: dict[str, Any]) -> Arguments:
    """The trainer's arguments for one batch as one step; ``given``: model, device, and flags by attribute."""
    changes = {"use_rollout_logprobs": True, "num_rollout": 1000, "num_steps_per_rollout": 1, **given}
    return settings(changes)


def with_planned_layers(args: Arguments) -> Arguments:
    """Return ``args`` with the layers that the start of a run plans for this GPU: one rank alone, no sample above a micro-batch.

    Raises:
        RuntimeError: nothing tells the GPU's memory.
    """
    run = _alone(args, args.max_tokens_per_gpu)
    layers = budget_of(run, gpu_memory(run)).layers
    if not layers:
        raise RuntimeError(
            "no plan of layers: it needs --gradient-checkpointing and a GPU whose memory the driver tells"
        )
    return args.changed(**layers)


def _alone(args: Arguments, tokens: int | None) -> Arguments:
    machine = {"actor_num_gpus_per_node": 1, "rollout_num_gpus": 0, "num_nodes": 1, "ray_address": None}
    return args.changed(**machine, train_backend="fsdp", max_tokens_per_gpu=tokens, rollout_max_context_len=tokens)


def estimated_bytes(args: Arguments, shard: dict[str, Any]) -> float | None:
    """Return what torch allocates in a step on ``shard`` by the memory plan; None for what the plan does not count exactly."""
    sizes = [len(tokens) for tokens in shard["tokens"]]
    steps = shard["micro_batch_indices"]
    run = _alone(args, max(sum(sizes[index] for index in indices) for step in steps for indices in step))
    shape = policy_shape(run)
    if shape is None or reason_to_plan_nothing(run, shape, GpuMemory(0.0, "a benchmark")) is not None:
        return None
    parts = trainer_need(run, shape, 1).parts
    return sum(part.size for part in parts if part.name not in NOT_ALLOCATED)


NOT_ALLOCATED = ("runtime", "push buffers")
"""Parts that a step alone has not: CUDA's context is none of torch's memory, and nothing is pushed."""


def main() -> None:
    """Command line."""
    given = json.loads(Path(sys.argv[1]).read_text())
    args = arguments(given["flags"])
    if given.get("planned"):
        args = with_planned_layers(args)
    meter = Meter(torch.device(args.device))
    shards = {
        name: split_by_dp(json.loads(Path(file).read_text()), 1, args)[0] for name, file in given["batches"].items()
    }
    estimates = {name: estimated_bytes(args, shard) for name, shard in shards.items()}
    actor = FSDPTrainActor(1, 0, "127.0.0.1", find_available_port())
    actor.init(args)
    meter.answer({name: getattr(args, name) or 0 for name in ("unchecked_layers", "kept_attention_layers")})
    rollout = 0
    while (name := meter.wait()) is not None:
        actor.prepare(rollout, shards[name])
        meter.begin()
        metrics = actor.step(rollout)
        meter.end({} if (estimate := estimates[name]) is None else {"estimated_bytes": estimate})
        assert metrics is not None
        assert not metrics["train/skipped_steps"], metrics
        rollout += 1
    actor.shutdown()


if __name__ == "__main__":
    main()
