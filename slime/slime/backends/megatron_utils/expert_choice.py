"""How one router chooses experts: freely, freely and recorded, or as recorded before.

Guarantees: the scores used are always the router's own, with their gradient. A layer recomputed in a backward pass gets
the experts of its own micro-batch. During replay no other experts are used, except for tokens without a record. A
record that is not used, or that runs out, is an error.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from slime.utils.types import OWN_CHOICE


class Mode(Enum):
    """What a router does: choose; choose and record; replay; replay with possible recomputation in the backward pass."""

    CHOOSE = "choose"
    RECORD = "record"
    REPLAY = "replay"
    REPLAY_AND_REPEAT = "replay and repeat"


class ExpertChoice:
    """Replacement for Megatron's ``RouterReplay``, which cannot tell micro-batches from recomputation.

    Call :meth:`start`, then for each micro-batch :meth:`begin_forward` and :meth:`end_forward`, and :meth:`finish`.
    """

    def __init__(self) -> None:
        self.start(Mode.CHOOSE)

    def start(self, mode: Mode) -> None:
        """Switch to ``mode`` and forget all records."""
        self.mode = mode
        self._recorded: Tensor | None = None
        self._had: Tensor | None = None
        self._to_repeat: deque[Tensor] = deque()

    def begin_forward(self, recorded: Tensor | None = None) -> None:
        """Begin a micro-batch's forward pass; replay ``recorded`` ``[n, K]``, with `OWN_CHOICE` for tokens without one."""
        self._recorded, self._had = recorded, None

    def end_forward(self) -> Tensor:
        """End it and return the experts ``[n, K]`` that the router used; raise RuntimeError if it did not run."""
        had, self._recorded, self._had = self._had, None, None
        if had is None:
            raise RuntimeError(
                "a router did not run in the forward pass of a micro-batch, so its experts are not replayed"
            )
        return had

    def finish(self) -> None:
        """Raise RuntimeError if an expected recomputation of a layer did not happen."""
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
        """Return scores and indices ``[n, K]`` of the experts, from all ``scores`` ``[n, E]``; Megatron calls it.

        Raises:
            RuntimeError: no experts are recorded for these tokens.
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
        """Return the running micro-batch's experts; outside a forward pass, those of the oldest one to recompute.

        Megatron first runs a layer to be recomputed without gradients, and runs backward passes in micro-batch order.
        """
        if self._recorded is None:
            if not self._to_repeat:
                raise RuntimeError("a router runs outside the micro-batches whose experts are recorded")
            return self._to_repeat.popleft()
        self._had = self._recorded
        if self.mode is Mode.REPLAY_AND_REPEAT and not torch.is_grad_enabled():
            self._to_repeat.append(self._recorded)
        return self._recorded
