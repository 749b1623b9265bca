"""What trackers and the terminal get about each update and evaluation: metrics, one line each, and warnings.

The mismatch alarm tells when trainer and engines give the same tokens other log probabilities. The trainer learns from
probabilities that the engine reported. If the two disagree by more than their arithmetic explains, the ratios of the loss are
wrong although nothing fails.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from groundwork.checkpoint_names import LATEST
from groundwork.paused import shown
from slime.args import Arguments
from slime.arguments.checkpoint import CONTINUE_VARIABLE
from slime.observability.metric_utils import STEPS, TrainSteps, compute_rollout_step, rollout_part
from slime.rollout.metrics import scores
from slime.tracking.redact import without_secrets
from slime.updates.update import Update
from slime.utils import logging_utils
from slime.utils.metric_names import PAUSED
from slime.utils.run_logs import say

KL = "train/train_rollout_kl"
DIFFERENCE = "train/train_rollout_logprob_abs_diff"
AGE = "rollout/staleness_mean"
MAX_KL = 0.01
"""Nats per token; engine and trainer in bfloat16 differ by some 1e-4."""
ROLLOUTS_BETWEEN = 20
"""A run that keeps disagreeing says so once in so many rollouts."""

# The reward is what the method gives; score and liked are the judge's, where a sample carries its score.
_COLUMNS = (
    ("reward", "rollout/reward", "{:+.3f}"),
    ("score", "rollout/score", "{:+.3f}"),
    ("liked", "rollout/liked_share", "{:.2f}"),
    ("loss", "train/loss", "{:+.4f}"),
    ("samples", "rollout/samples", "{:.0f}"),
    ("stale", "rollout/staleness_mean", "{:.1f}"),
    ("collect", "perf/rollout_time", "{:.1f}s"),
    ("step", "perf/step_time", "{:.1f}s"),
)


class Reports:
    """The reports of a run, in order. Owned by the driver."""

    def __init__(self, args: Arguments) -> None:
        self._args = args
        self._train_steps = TrainSteps(args)
        self._mismatch = MismatchAlarm()

    def update(self, update: Update, seconds: float, weight_version: str) -> None:
        """Report an update that took ``seconds`` with its publication, and the version that serves."""
        paused = {PAUSED: float(update.pauses)} if self._args.fuses else {}
        steps = update.steps
        rollout = {
            **update.metrics,
            **paused,
            **rollout_part(steps),
            **times(steps, seconds, update.waited),
            "rollout/step": compute_rollout_step(self._args, update.rollout_id),
        }
        if weight_version.isdigit():
            rollout["rollout/weight_version"] = int(weight_version)
        logging_utils.log(self._args, rollout, step_key="rollout/step")
        for record in self._train_steps.records(update.rollout_id, steps):
            logging_utils.log(self._args, record, step_key="train/step")
        whose = f" of {shown(update.person)}" if self._args.adapter_per_person else ""
        say(step_line(f"{update.rollout_id}{whose}", {**rollout, **steps}, weight_version))
        if warning := self._mismatch.line(update.rollout_id, {**rollout, **steps}):
            say(warning)

    def evaluation(self, rollout_id: int, metrics: dict[str, Any]) -> None:
        """Report an evaluation."""
        logging_utils.log(self._args, metrics, step_key="eval/step")
        say(evaluation_line(rollout_id, metrics))


class MismatchAlarm:
    """Owned by the driver; remembers when it last spoke."""

    def __init__(self) -> None:
        self._spoke: int | None = None

    def line(self, rollout_id: int, metrics: Mapping[str, Any]) -> str | None:
        """Return a warning about a rollout's steps, or None if they agree or the last warning is recent."""
        steps: list[Mapping[str, Any]] = [metrics, *metrics.get(STEPS, [])]
        worst = max((step for step in steps if step.get(KL) is not None), key=lambda step: step[KL], default=None)
        if worst is None or worst[KL] <= MAX_KL:
            return None
        if self._spoke is not None and rollout_id - self._spoke < ROLLOUTS_BETWEEN:
            return None
        self._spoke = rollout_id
        age = metrics.get(AGE)
        old = f"; its samples are {age:.1f} updates old on average, which explains a part" if age else ""
        mean = f" (mean difference {worst[DIFFERENCE]:.3f})" if worst.get(DIFFERENCE) is not None else ""
        return (
            f"warning: trainer and engines disagree by {worst[KL]:.3f} nats per token at step {rollout_id}{mean}, more than "
            f"{MAX_KL:g}{old}; see instructions/stable_learning.md"
        )


def times(train: dict[str, Any], seconds: float, waited: float) -> dict[str, float]:
    """Return metrics of a step's seconds and, if there was a step, of the trainer's wait for its batch."""
    if not train:
        return {"perf/step_time": seconds}
    ratio = waited / max(waited + seconds, 1e-9)
    return {"perf/step_time": seconds, "perf/train_wait_time": waited, "perf/wait_time_ratio": ratio}


def step_line(rollout: int | str, metrics: dict[str, Any], weight_version: str) -> str:
    """Return one line about a step, without unknown values; ``rollout``: its number, perhaps with whose it is."""
    cells = [f"{name} {form.format(metrics[key])}" for name, key, form in _COLUMNS if metrics.get(key) is not None]
    return "  ".join([f"step {rollout}", *cells, f"weights {weight_version or '-'}"])


def evaluation_line(rollout_id: int, metrics: dict[str, Any]) -> str:
    """Return one line about an evaluation: the score of each set."""
    return "  ".join(
        [f"evaluation at {rollout_id}", *(f"{name} {score:.3f}" for name, score in scores(metrics).items())]
    )


def continue_line(args: Arguments, argv: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """Return the command that continues a run from its newest checkpoint; None if there is none.

    A launcher that started this process gives its own command in `CONTINUE_VARIABLE`.
    """
    if not args.save or not Path(args.save, LATEST).is_file():
        return None
    if given := environment.get(CONTINUE_VARIABLE):
        return given
    again = [] if "--resume" in argv else ["--resume"]
    return shlex.join([sys.executable, *without_secrets(argv), *again])
