"""The driver's output: one line per step and evaluation."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from slime.args import Arguments
from slime.arguments.checkpoint import CONTINUE_VARIABLE, LATEST
from slime.rollout.metrics import scores
from slime.tracking.redact import without_secrets
from slime.utils.fuses import Blown


class Step(NamedTuple):
    """One rollout's steps.

    Attributes:
        metrics: of the steps.
        seconds: that they took.
        waited: seconds that the trainer waited for the batch.
        refused: the fuse that held them back, or None.
        undone: why they were taken back before a push, or None.
    """

    metrics: dict[str, Any]
    seconds: float
    waited: float
    refused: Blown | None = None
    undone: str | None = None

    @property
    def learned(self) -> bool:
        """Whether the trainer's weights are those after the steps."""
        return self.refused is None and self.undone is None


class Trained(NamedTuple):
    """A trained rollout that is not reported yet: its number, its metrics and its step."""

    rollout_id: int
    metrics: dict[str, Any]
    step: Step


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


def times(train: dict[str, Any], seconds: float, waited: float) -> dict[str, float]:
    """Return metrics of a step's seconds and, if there was a step, of the trainer's wait for its batch."""
    if not train:
        return {"perf/step_time": seconds}
    ratio = waited / max(waited + seconds, 1e-9)
    return {"perf/step_time": seconds, "perf/train_wait_time": waited, "perf/wait_time_ratio": ratio}


def step_line(rollout_id: int, metrics: dict[str, Any], weight_version: str) -> str:
    """Return one line about a step, without unknown values."""
    cells = [f"{name} {form.format(metrics[key])}" for name, key, form in _COLUMNS if metrics.get(key) is not None]
    return "  ".join([f"step {rollout_id}", *cells, f"weights {weight_version or '-'}"])


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


def say(text: str) -> None:
    """Print a line and flush it."""
    print(text, flush=True)
