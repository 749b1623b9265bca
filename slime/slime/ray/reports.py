"""What trackers and the terminal get about each step."""

from __future__ import annotations

from typing import Any

from slime.args import Arguments
from slime.observability.metric_utils import TrainSteps, compute_rollout_step
from slime.ray.mismatch_alarm import MismatchAlarm
from slime.ray.report import say, step_line
from slime.utils import logging_utils


class Reports:
    """The reports of a run, in order. Owned by the driver."""

    def __init__(self, args: Arguments) -> None:
        self._args = args
        self._train_steps = TrainSteps(args)
        self._mismatch = MismatchAlarm()

    def step(self, rollout_id: int, rollout: dict[str, Any], train: dict[str, Any], weight_version: str) -> None:
        """Report a rollout with its metrics, those of its steps, and the version that serves."""
        rollout["rollout/step"] = compute_rollout_step(self._args, rollout_id)
        if weight_version.isdigit():
            rollout["rollout/weight_version"] = int(weight_version)
        logging_utils.log(self._args, rollout, step_key="rollout/step")
        for record in self._train_steps.records(rollout_id, train):
            logging_utils.log(self._args, record, step_key="train/step")
        say(step_line(rollout_id, {**rollout, **train}, weight_version))
        if warning := self._mismatch.line(rollout_id, {**rollout, **train}):
            say(warning)
