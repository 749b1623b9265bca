"""What a rank does in the tests of routing replay; at module level, so that new processes can import it."""

from __future__ import annotations

import random
import warnings
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from lab.testkit import trainer
from slime.rollout.train_data import split_by_dp
from tests.helpers import megatron_ranks

GRADIENTS, CHOICES = ".gradients", ".choices"


def run(
    rank: int,
    world_size: int,
    runs: list[dict[str, Any]],
    cases: list[dict[str, Any]],
    two_steps: dict[str, Any],
    model: str,
    out: str,
) -> None:
    """Write to ``out`` what `megatron_ranks.run_actors` finds in ``runs``, and besides the gradients of ``cases`` and the `choices`."""
    megatron_ranks.run_actors(rank, world_size, runs, model, out)
    megatron_ranks.gradients_of_losses(rank, world_size, cases, model, f"{out}{GRADIENTS}")
    found = choices(rank, world_size, two_steps, model, f"{out}.two-steps")
    if rank == 0:
        torch.save(found, f"{out}{CHOICES}")


def choices(
    rank: int, world_size: int, changes: dict[str, Any], model: str, place: str
) -> list[tuple[str, Tensor, Tensor]]:
    """Train on a rollout in two steps on one copy of the model.

    Returns:
        At each call of a router the mode, the experts it was given, and those of its own choice.
    """
    from slime.backends.megatron_utils.backend import MegatronTrainActor
    from slime.backends.megatron_utils.routing_replay import ExpertChoice

    warnings.filterwarnings("ignore")
    args = megatron_ranks.megatron_args(model, **changes)
    actor = MegatronTrainActor(world_size, rank, "127.0.0.1", trainer.meeting_port(rank, place))
    actor.init(args)
    found: list[tuple[str, Tensor, Tensor]] = []
    original = ExpertChoice.get_replay_topk

    def watched(choice: Any, scores: Tensor, topk: int, *rest: Any) -> tuple[Tensor, Tensor]:
        values, given = original(choice, scores, topk, *rest)
        found.append((choice.mode.value, given.sort(-1).values, scores.detach().topk(topk).indices.sort(-1).values))
        return values, given

    data = trainer.train_data(6)
    data["rewards"] = random.Random(1).choices([-1.0, 1.0], k=6)
    with patch.object(ExpertChoice, "get_replay_topk", watched):
        actor.train(0, split_by_dp(data, 1, args.changed(global_batch_size=3))[0])
    actor.shutdown()
    return found
