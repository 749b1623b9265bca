"""What one router asks for its experts: its own choice, its own choice recorded, or experts that were recorded before.

Guarantees: the values given to the router are its own scores of the experts, with their gradient; a layer that is computed
again in a backward pass gets the experts of its own micro-batch; while experts are replayed nothing else is ever given,
except to tokens that have none. A record that nobody asks for, or that runs out, is an error.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from slime.utils.types import OWN_CHOICE


class Mode(Enum):
    """What a router does: chooses; chooses and keeps it; replays; replays with a backward pass that may compute it again."""

    CHOOSE = "choose"
    RECORD = "record"
    REPLAY = "replay"
    REPLAY_AND_REPEAT = "replay and repeat"


class ExpertChoice:
    """Stands where Megatron's router has its own ``RouterReplay``, which does not tell micro-batches from recomputation.

    Call :meth:`start`, then for each micro-batch :meth:`begin_forward` and :meth:`end_forward`, and :meth:`finish`.
    """

    def __init__(self) -> None:
        self.start(Mode.CHOOSE)

    def start(self, mode: Mode) -> None:
        """Work in ``mode`` from now on, and forget everything before."""
        self.mode = mode
        self._recorded: Tensor | None = None
        self._had: Tensor | None = None
        self._to_repeat: deque[Tensor] = deque()

    def begin_forward(self, recorded: Tensor | None = None) -> None:
        """Begin the forward pass of a micro-batch; ``recorded`` ``[n, K]`` to replay, `OWN_CHOICE` where a token has none."""
        self._recorded, self._had = recorded, None

    def end_forward(self) -> Tensor:
        """End it, and return the experts ``[n, K]`` that the router had or was given; raises RuntimeError when it did not run."""
        had, self._recorded, self._had = self._had, None, None
        if had is None:
            raise RuntimeError(
                "a router did not run in the forward pass of a micro-batch, so its experts are not replayed"
            )
        return had

    def finish(self) -> None:
        """Raise RuntimeError when a layer that was to be computed again was not."""
        if self._to_repeat:
            raise RuntimeError(
                f"a router did not run again for {len(self._to_repeat)} micro-batches that were recomputed"
            )

    def get_replay_topk(
        self,
        scores: Tensor,
        topk: int,
        num_groups: int | None = None,
        group_topk: int | None = None,
        default_compute_topk: Any = None,
    ) -> tuple[Tensor, Tensor]:
        """Return scores and numbers ``[n, K]`` of the experts, given the ``scores`` ``[n, E]`` of all; Megatron calls it.

        Raises:
            RuntimeError: when no experts are recorded for these tokens.
        """
        if self.mode in (Mode.CHOOSE, Mode.RECORD):
            values, chosen = default_compute_topk(scores, topk, num_groups=num_groups, group_topk=group_topk)
            self._had = chosen if self.mode is Mode.RECORD else None
            return values, chosen
        experts = self._due()
        if experts.shape != (len(scores), topk):
            raise RuntimeError(f"experts {tuple(experts.shape)} are recorded for {len(scores)} tokens with {topk} each")
        with torch.no_grad():
            own = default_compute_topk(scores, topk, num_groups=num_groups, group_topk=group_topk)[1]
            experts = torch.where(experts == OWN_CHOICE, own, experts)
        return scores.gather(1, experts), experts

    def _due(self) -> Tensor:
        """Of the micro-batch that runs; outside of forward passes of the oldest that ran without gradients, computed again.

        Megatron runs a layer that it will compute again without gradients first, and micro-batches backward in order.
        """
        if self._recorded is None:
            if not self._to_repeat:
                raise RuntimeError("a router runs outside of the micro-batches whose experts are recorded")
            return self._to_repeat.popleft()
        self._had = self._recorded
        if self.mode is Mode.REPLAY_AND_REPEAT and not torch.is_grad_enabled():
            self._to_repeat.append(self._recorded)
        return self._recorded
