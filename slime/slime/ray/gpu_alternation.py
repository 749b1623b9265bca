"""Trainer and engines occupy the GPUs they share (``--colocate``) in alternation.

During a push the engines hold their weights only, and the trainer sends one tensor after the other. A round: the engines
generate and sleep; the trainer's memory comes back; it steps, saves and releases its memory; the engines get room for
weights, the push, and room for the cache. Without ``--offload-train`` and ``--offload-rollout`` both keep their memory, and
only the order of the work remains.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from slime.args import Arguments
from slime.backends.sglang_utils.memory_calls import CACHE, WEIGHTS
from slime.ray.trainer import Trainer
from slime.utils.misc import should_run_periodic_action


class GpuAlternation:
    """Owned by the driver; a run whose roles have GPUs of their own has one that does nothing.

    Attributes:
        engines_sleep: whether the engines give their memory away.
        trainer_leaves: whether the trainer does.
        run_ends: the engines are ended from here on, which is quicker than to let them sleep.
    """

    def __init__(self, args: Arguments, ask: Callable[..., Any]) -> None:
        """``ask(method, *arguments)`` asks the rollout manager."""
        self.engines_sleep = bool(args.offload_rollout)
        self.trainer_leaves = bool(args.offload_train)
        self._ask = ask
        self._trainer_works = False
        self.run_ends = False

    def before_a_trainer(self) -> None:
        """Make room for a trainer that is about to be made, whoever worked before."""
        self._sleep()
        self._trainer_works = True

    def for_trainer(self, trainer: Trainer) -> None:
        """Let ``trainer`` work; nothing happens when it may already."""
        if self._trainer_works:
            return
        self._sleep()
        self._trainer_works = True
        if self.trainer_leaves:
            trainer.onload()

    def for_engines(self, trainer: Trainer, push: Callable[[], None]) -> None:
        """Let the engines work, with the weights that ``push`` sends them."""
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
    """Whether the engines get the weights after ``rollout_id``: at the interval, and after the last one."""
    return should_run_periodic_action(rollout_id, args.update_weights_interval, None, args.num_rollout)
