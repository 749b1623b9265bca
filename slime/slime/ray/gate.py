"""The driver's gate: whether the steps of a rollout may serve, asked of ``--before-push-path`` before anything leaves the trainer.

Guarantees: a checkpoint and a push hold only weights that were accepted. A refusal brings weights, moments, schedule and random
state back bit for bit, and training goes on with the next batch. While the plugin decides, and between its questions, the driver answers
signals and restarts engines, which get the weights that serve; signals also while the training ranks answer. A run that stops meanwhile undoes the steps, so it saves none that nobody decided.

The plugin runs in the rollout manager, which owns the data source; the driver brings it the trainer's answers, because calls of
two processes could reach the training ranks in different orders.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import ray

from groundwork.process import Stopped
from slime.args import Arguments
from slime.ray.canary import CanaryPush
from slime.ray.report import say
from slime.ray.run_processes import RunProcesses
from slime.rollout.before_push import Decision
from slime.rollout.questions import Question

POLL_SECONDS = 2.0
ACCEPTED = "gate/accepted"


class Gate:
    """Does nothing without the flag. Owned by the driver."""

    def __init__(
        self,
        args: Arguments,
        processes: RunProcesses,
        look_after: Callable[[], None],
        value: Callable[[Any], Any],
    ) -> None:
        """Create the gate.

        Args:
            args: of the run.
            processes: of the run.
            look_after: called every few seconds; restarts engines, and raises on a signal or a loss.
            value: returns the value of a reference; raises on a signal or a loss.
        """
        self._is_on = bool(args.before_push_path)
        self._processes = processes
        self._look_after = look_after
        self._value = value
        self._canary = CanaryPush(processes, look_after)
        self._seconds: dict[str, float] = {}

    def before_steps(self) -> None:
        """Take the snapshot to which a refusal goes back."""
        if self._is_on:
            self._seconds = {}
            self._timed("snapshot", self._trainer().take_snapshot)

    def after_steps(self, rollout_id: int, metrics: dict[str, Any], *, held: bool) -> str | None:
        """Ask for a decision if the steps changed the weights; return why they were undone, or None.

        ``metrics`` get the decision, the plugin's metrics and the seconds. ``held``: a fuse held back the step.
        """
        if not self._is_on:
            return None
        trainer = self._trainer()
        serving, candidate = trainer.versions()
        if held or serving == candidate:
            trainer.keep_steps()
            return None
        try:
            decision: Decision = self._timed("probe", lambda: self._decided(rollout_id, serving, candidate))
        except Stopped:
            trainer.undo_steps()
            raise
        if decision.accepted:
            trainer.keep_steps()
            self._canary.accepted()
        else:
            self._timed("restore", trainer.undo_steps)
            self._canary.refused()
            say(f"step {rollout_id} is undone: {decision.why}; weights {serving} keep serving, training goes on")
        metrics.update(decision.metrics | {ACCEPTED: float(decision.accepted)} | self._seconds)
        return None if decision.accepted else decision.why

    def _decided(self, rollout_id: int, serving: str, candidate: str) -> Decision:
        """Bring the plugin answers until it has decided."""
        manager = self._processes.manager
        self._value(manager.open_questions.remote())
        deciding = manager.decide.remote(rollout_id, serving, candidate)
        question = manager.next_question.remote()
        looked = time.monotonic()
        try:
            while True:
                done, _ = ray.wait([question, deciding], timeout=POLL_SECONDS)
                if time.monotonic() - looked >= POLL_SECONDS:  # a plugin may have its next question ready at once
                    self._look_after()
                    looked = time.monotonic()
                if question in done and (asked := self._value(question)) is not None:
                    self._answer(asked)
                    question = manager.next_question.remote()
                elif deciding in done or question in done:  # the last question is None once there is a decision
                    return self._value(deciding)
        except BaseException:
            manager.end_questions.remote("the trainer died, or the run ends")
            raise

    def _answer(self, asked: Question) -> None:
        if asked.probes:
            answers = self._trainer().ask(asked.served, asked.probes)
            self._value(self._processes.manager.answer_question.remote(answers))
        else:
            self._timed("canary_push", self._canary.begin)

    def _trainer(self) -> Any:
        assert self._processes.trainer is not None
        return self._processes.trainer

    def _timed(self, name: str, work: Callable[[], Any]) -> Any:
        start = time.monotonic()
        try:
            return work()
        finally:
            self._seconds[f"perf/{name}_time"] = time.monotonic() - start
