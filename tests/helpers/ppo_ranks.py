"""Policy and critic of one rollout in one process per rank, whatever the back end, and how what they give is compared."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor

from slime.backends.trainer.rank import CriticRank, PolicyRank
from tests.helpers.tolerance import MODEL, assert_near


def from_all_ranks(value: Any) -> list[Any]:
    """What each rank has."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def ppo_rollout(actor: PolicyRank, critic: CriticRank, rollout_id: int, shard: Any, learn: bool = True) -> Any:
    """Train both on a rollout, in the order of the trainer; return the metrics."""
    values = from_all_ranks(critic.values(rollout_id, shard))
    returns = from_all_ranks(actor.prepare(rollout_id, shard, values))
    return {**(critic.step(rollout_id, returns) or {}), **(actor.step(rollout_id, learn) or {})}


def close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Fail unless all tensors are equal up to the rounding of a model in float32."""
    assert_near(found, expected, roundings=MODEL)


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Whether both have the same tensors, bit for bit."""
    return set(a) == set(b) and all(a[name].equal(b[name]) for name in a)
