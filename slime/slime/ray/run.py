"""One run, as the control loops see it: rollouts, steps, pushes, evaluations and pauses.

Guarantees: leaving the ``with`` block saves a stopped run's progress and ends everything that the run started. A step that a
fuse holds back or the gate refuses leaves the weights that serve as they are, and the data source learns of it before the next
checkpoint. The modules of the layers below (`slime.ray.run_core`) have theirs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import ray

from groundwork.process import Stopped
from slime.args import Arguments
from slime.exceptions import DataUsedError, LostError
from slime.observability.metric_utils import compute_rollout_step
from slime.ray.gate import Gate
from slime.ray.gpu_alternation import push_is_due
from slime.ray.report import Step, Trained, evaluation_line, say
from slime.ray.rollout import RolloutBatch
from slime.ray.run_start import RunStart
from slime.ray.run_state import Phase
from slime.rollout.metrics import staleness
from slime.utils import logging_utils
from slime.utils.misc import should_run_periodic_action

PROGRESS_SECONDS = 0.5


class Run(RunStart):
    """Entering the context starts everything; the loops call its methods. Owned by the driver's main thread."""

    def __init__(self, args: Arguments, *, collects: bool = True) -> None:
        """Start nothing yet.

        Args:
            args: of the command line.
            collects: whether the loop asks for rollouts; a mere evaluation does not.
        """
        super().__init__(args, collects=collects)
        self._gate = Gate(args, self._processes, self._look_after, self._value)

    # Start and end

    def __enter__(self) -> Run:
        """Start the cluster, the engines and the trainer, and push the trainer's weights to the engines."""
        self.stop.install()
        try:
            self._start()
        except BaseException:
            self._life.to(Phase.ENDING)
            self._resources.close()
            raise
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> bool:
        """Save a stopped run's progress, then end everything."""
        self._life.to(Phase.ENDING)
        self._alternation.run_ends = True
        try:
            if self._unsaved() and (kind is None or kind is Stopped):
                self.save(self._progress.trained)
        finally:
            self._resources.close()
        return False

    def repeat(self, loop: Callable[[Run], None]) -> None:
        """Run ``loop``, and repeat it after a loss as often as `Restarts` allows, from ``start_rollout_id``.

        A loss during the start counts too; the loop begins once everything is up.
        """
        while True:
            try:
                if self._life.lost is not None:
                    self._restart(self._life.lost)
                return loop(self)
            except LostError as error:
                self._life.lose(error)

    # Rollouts and steps

    def generate(self, rollout_id: int) -> Any:
        """Start collecting a batch, unless it was kept across a restart, and return its reference."""
        manager = self._processes.manager
        assert manager is not None
        return self._restarts.batch(rollout_id, lambda: manager.generate.remote(rollout_id))

    def train(self, rollout_id: int, batch: RolloutBatch) -> None:
        """Take the steps of one batch, push the new weights, and report."""
        self.publish(rollout_id, batch, self.step(rollout_id, batch))

    def step(self, rollout_id: int, batch: RolloutBatch) -> Step:
        """Take the steps of one batch without a push; a no-op without a trainer.

        Waits while training is paused. A step that blows a fuse is not taken, and pauses training. Steps that the gate
        refuses are undone.
        """
        trainer = self._processes.trainer
        if trainer is None:
            return Step({}, 0.0, 0.0)
        self._wait_while_paused()
        self._roll_back()
        if (known := self._restarts.outcome(rollout_id)) is not None:
            return self._once_more_without(known)
        start = time.monotonic()
        batch["metrics"].update(staleness(batch["metrics"], self.weight_version) | self._fuses.recent())
        self._alternation.for_trainer(trainer)
        metrics: dict[str, Any] = {}
        undone, refused = None, self._fuses.of_batch(batch["metrics"])
        if refused is None:
            self._gate.before_steps()
            metrics = trainer.train(rollout_id, batch["shards"], batch["critic_shards"])
            refused = self._fuses.of_steps(metrics, batch["metrics"])
            undone = self._gate.after_steps(rollout_id, batch["metrics"], held=refused is not None)
        step = Step(metrics, time.monotonic() - start, start - self._progress.free_since, refused, undone)
        trained = Trained(rollout_id, batch["metrics"], step)
        self._progress.stepped(trained)
        if refused is not None:
            self._fuses.pause(rollout_id, refused)
        if not step.learned:
            self._without(trained)
        return step

    def _without(self, outcome: Trained) -> None:
        """Tell the data source that the batch is not trained, and save, so that a restart agrees."""
        rollout_id, step = outcome.rollout_id, outcome.step
        told = ("on_step_undone", step.undone) if step.refused is None else ("on_step_refused", str(step.refused))
        # Ignore signals: the checkpoint of a stopped run says that the samples of its last rollout are trained.
        self._processes.value(getattr(self._processes.manager, told[0]).remote(rollout_id, told[1]), None)
        self._restarts.not_trained(outcome)
        if self.args.save:
            self.save(rollout_id)

    def _once_more_without(self, known: Trained) -> Step:
        """Save the checkpoint that a loss prevented, of a batch that is not trained."""
        self._progress.stepped(known)
        self.save(known.rollout_id)
        return known.step

    def _wait_while_paused(self) -> None:
        """Serve until training is not paused; raise :class:`Stopped` on a signal."""
        if self._fuses.paused() is None:
            return
        while self._fuses.paused() is not None:
            if not self._served_a_moment():
                raise Stopped
        say("training goes on")

    def publish(self, rollout_id: int, batch: RolloutBatch, step: Step) -> None:
        """Push the weights if a push is due, then report. Also used by a restart that resumes past this rollout."""
        start, due = time.monotonic(), step.learned and push_is_due(self.args, rollout_id)
        if self._serves_engines():
            # Engines that slept need weights: without the step the trainer has the last good ones.
            self._hand_over(push=due or (not step.learned and self._alternation.engines_sleep))
        self._tell(Trained(rollout_id, batch["metrics"], step), start, live=due and self._serves_engines())

    def data_used(self, end: DataUsedError) -> None:
        """Print what the rollout function says about the end of its data, and save the last step."""
        say(str(getattr(end, "cause", None) or end))  # Ray's copy of an error has the traceback in its text
        if self._unsaved():
            self.save(self._progress.trained)
            if self.args.serve_when_done:
                self._let_engines_serve()

    # Evaluation and serving

    def evaluate_start(self) -> None:
        """Evaluate the start weights of a fresh run, unless ``--skip-eval-before-train``."""
        if self.args.eval_interval and not self.args.skip_eval_before_train and self.start_rollout_id == 0:
            self.evaluate(0)

    def evaluate_if_due(self, rollout_id: int) -> None:
        """Run the evaluation function at its interval and at the end of an epoch (``--num-epoch``)."""
        if should_run_periodic_action(rollout_id, self.args.eval_interval, self._progress.per_epoch, None):
            self.evaluate(rollout_id)

    def evaluate(self, rollout_id: int, on_progress: Callable[[int, int], None] | None = None) -> dict[str, Any]:
        """Run the evaluation function, report and return its metrics.

        ``on_progress`` gets the finished and the requested answers every few seconds.
        """
        assert self._processes.manager is not None
        reference = self._processes.manager.eval.remote(rollout_id)
        while on_progress is not None and not ray.wait([reference], timeout=PROGRESS_SECONDS)[0] and not self.stop:
            on_progress(*self._ask("evaluation_progress"))
        metrics = {**self.wait(reference), "eval/step": compute_rollout_step(self.args, rollout_id)}
        logging_utils.log(self.args, metrics, step_key="eval/step")
        say(evaluation_line(rollout_id, metrics))
        return metrics

    def serve_until_stopped(self) -> None:
        """Keep engines and rollout plugin up until a signal arrives."""
        say("training is done; serving until SIGINT or SIGTERM")
        while self._served_a_moment():
            continue
