"""Trainer and engines alternate on the GPUs they share (``--colocate``).

One round: the engines generate and release their memory; the trainer's memory returns; it steps, saves and releases its
memory; the engines reserve their weights, receive the push, and reserve their cache. During a push the engines hold
only their weights, and the trainer sends one tensor at a time. Without ``--offload-train`` and ``--offload-rollout``
both keep their memory, and only the order of the work remains.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from slime.args import Arguments
from slime.backends.sglang_utils.engine import CACHE, WEIGHTS
from slime.ray.trainer import Trainer
from slime.utils.misc import should_run_periodic_action


class GpuAlternation:
    """Owned by the driver; does nothing if the roles have separate GPUs.

    Attributes:
        engines_sleep: whether the engines release their memory.
        trainer_leaves: whether the trainer releases its memory.
        run_ends: end the engines instead of letting them sleep, because that is quicker.
    """

    def __init__(self, args: Arguments, ask: Callable[..., Any]) -> None:
        """``ask(method, *arguments)`` calls the rollout manager."""
        self.engines_sleep = bool(args.offload_rollout)
        self.trainer_leaves = bool(args.offload_train)
        self._ask = ask
        self._trainer_works = False
        self.run_ends = False

    @property
    def alternates(self) -> bool:
        """Whether one of them has to leave before the other works."""
        return self.engines_sleep or self.trainer_leaves

    def before_a_trainer(self) -> None:
        """Make room for a trainer that is about to start."""
        self._sleep()
        self._trainer_works = True

    def for_trainer(self, trainer: Trainer) -> None:
        """Give the GPUs to ``trainer``; a no-op if it has them."""
        if self._trainer_works:
            return
        self._sleep()
        self._trainer_works = True
        if self.trainer_leaves:
            trainer.onload()

    def for_engines(self, trainer: Trainer, push: Callable[[], None]) -> None:
        """Give the GPUs to the engines, with the weights that ``push`` sends."""
        if self._trainer_works and self.trainer_leaves:
            trainer.offload()
        self._trainer_works = False
        if self.engines_sleep:
            self._ask("wake_engines", WEIGHTS)
        push()
        if self.engines_sleep:
            self._ask("wake_engines", CACHE)

    def _sleep(self) -> None:
        if self.engines_sleep:
            self._ask("end_engines" if self.run_ends else "sleep_engines")


def push_is_due(args: Arguments, rollout_id: int) -> bool:
    """Return whether a push follows ``rollout_id``: at the interval and after the last rollout."""
    return should_run_periodic_action(rollout_id, args.update_weights_interval, None, args.num_rollout)
