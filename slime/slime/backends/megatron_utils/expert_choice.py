"""What one router asks for its experts: its own choice, its own choice recorded, or experts that were recorded before.

Guarantees: the values given to the router are its own scores of the experts, with their gradient; a layer that is computed
again in a backward pass gets the experts of its own micro-batch; while experts are replayed nothing else is ever given,
except to tokens that have none.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from slime.rollout.routed_experts import OWN_CHOICE


class Mode(Enum):
    """What a router does: chooses; chooses and keeps it; replays; replays with a backward pass that may compute it again."""

    CHOOSE = "choose"
    RECORD = "record"
    REPLAY = "replay"
    REPLAY_AND_REPEAT = "replay and repeat"


class ExpertChoice:
    """Stands where Megatron's router has its own ``RouterReplay``, which does not tell micro-batches from recomputation.

    Attributes:
        experts: ``[n, K]`` of the micro-batch that runs; `OWN_CHOICE` where a token has none.
        chosen: ``[n, K]`` of the last micro-batch, with ``Mode.RECORD``.
    """

    def __init__(self) -> None:
        self.start(Mode.CHOOSE)

    def start(self, mode: Mode) -> None:
        """Work in ``mode`` from now on, and forget everything before."""
        self.mode = mode
        self.experts: Tensor | None = None
        self.chosen: Tensor | None = None
        self._to_repeat: deque[Tensor] = deque()

    def get_replay_topk(
        self,
        scores: Tensor,
        topk: int,
        num_groups: int | None = None,
        group_topk: int | None = None,
        default_compute_topk: Any = None,
    ) -> tuple[Tensor, Tensor]:
        """Return scores and numbers ``[n, K]`` of the experts, given the ``scores`` ``[n, E]`` of all; Megatron calls it."""
        if self.mode in (Mode.CHOOSE, Mode.RECORD):
            values, chosen = default_compute_topk(scores, topk, num_groups=num_groups, group_topk=group_topk)
            self.chosen = chosen if self.mode is Mode.RECORD else None
            return values, chosen
        experts = self._due()
        if experts.shape != (len(scores), topk):
            raise RuntimeError(f"experts {tuple(experts.shape)} are recorded for {len(scores)} tokens with {topk} each")
        with torch.no_grad():
            own = default_compute_topk(scores, topk, num_groups=num_groups, group_topk=group_topk)[1]
            experts = torch.where(experts == OWN_CHOICE, own, experts)
        return scores.gather(1, experts), experts

    def _due(self) -> Tensor:
        """Of the micro-batch that runs; with gradients of the oldest that ran without, which is a layer computed again.

        Megatron runs a layer that it will compute again without gradients first, and micro-batches backward in order.
        """
        if self._to_repeat and torch.is_grad_enabled():
            return self._to_repeat.popleft()
        if self.experts is None:
            raise RuntimeError("a router runs outside of the micro-batches whose experts are recorded")
        if self.mode is Mode.REPLAY_AND_REPEAT and not torch.is_grad_enabled():
            self._to_repeat.append(self.experts)
        return self.experts
