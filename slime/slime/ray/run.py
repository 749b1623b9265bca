"""One run, as the control loops see it: cluster, placement, rollout manager and trainer, and what both loops share.

Guarantees: * Leaving the ``with`` block ends everything that the run started. * An engine restarted after a crash gets
the trainer's weights before anything else happens with it. An engine that fails
  during a push is restarted and gets the weights again.
* A training rank or rollout manager that dies is restarted from the last checkpoint (`slime.ray.restarts`); after the
loss
  of a machine, on a replacement.
* No other run writes to the run's folders.
* SIGTERM and SIGINT are noticed within two seconds, except that a training step or a checkpoint is finished first.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray

from slime.args import Arguments, required
from slime.arguments.at_start import missing_at_start
from slime.arguments.backend import backend_line
from slime.arguments.placement import describe_placement, start_lines, trainer_waits
from slime.exceptions import ConfigurationError, DataUsedError, LostError, NodeLostError, RankLostError
from slime.observability.metric_utils import compute_rollout_step, rollout_part
from slime.ray.cluster import ray_cluster
from slime.ray.fuses import Fuses
from slime.ray.gate import Gate
from slime.ray.gpu_alternation import GpuAlternation, push_is_due
from slime.ray.nodes import check_nodes
from slime.ray.placement import create_placement, release_placement, with_replacements
from slime.ray.pushes import send_weights
from slime.ray.report import Step, Trained, evaluation_line, say, times
from slime.ray.reports import Reports
from slime.ray.restarts import Restarts, raised_itself
from slime.ray.rollbacks import Rollbacks
from slime.ray.rollout import RolloutBatch, create_rollout_manager
from slime.ray.run_processes import RunProcesses
from slime.ray.run_state import Phase, Progress, RunLife
from slime.ray.save_lock import own_save_folders
from slime.ray.trainer import Trainer
from slime.rollout.data_source import Story
from slime.rollout.metrics import staleness
from slime.utils import logging_utils
from slime.utils.metric_names import PAUSED
from slime.utils.misc import should_run_periodic_action
from slime.utils.private_files import private_run_folder
from slime.utils.process import Stopped, StopRequested
from slime.utils.run_logs import begin_logs

logger = logging.getLogger(__name__)

_POLL_SECONDS = 2.0
_PROGRESS_SECONDS = 0.5
# During these calls the engines may hold a mix of old and new weights.
WEIGHT_METHODS = ("connect_rollout_engines", "update_weights")


class Run:
    """Entering the context starts everything; the loops call its methods. Owned by the driver's main thread."""

    def __init__(self, args: Arguments, *, collects: bool = True) -> None:
        """Start nothing yet.

        Args:
            args: of the command line.
            collects: whether the loop asks for rollouts; a mere evaluation does not.
        """
        self.args = args
        self._collects = collects
        self.stop = StopRequested()
        self.weight_version = ""
        self.story = Story()
        self._life = RunLife()
        self._progress = Progress()
        self._processes = RunProcesses()
        self._resources = contextlib.ExitStack()
        self._restarts = Restarts(None, 0, trains=False)
        self._reports = Reports(args)
        self._alternation = GpuAlternation(args, self._ask)
        self._fuses = Fuses(args)
        self._gate = Gate(args, self._processes, self._look_after)
        self._rollbacks = Rollbacks(args)

    @property
    def start_rollout_id(self) -> int:
        """First rollout of the loop."""
        return self._progress.start

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

    def _start(self) -> None:
        self._life.to(Phase.STARTING)
        if missing := missing_at_start(args := self.args):
            raise ConfigurationError("; ".join(missing))
        placement = describe_placement(args)
        for line in placement.lines():
            say(line)
        say(f"starts   {', then '.join(start_lines(placement))}")
        if placement.actor:
            say(backend_line(args))
        num_gpus = args.num_gpus or placement.total
        self._resources.enter_context(ray_cluster(args, num_gpus=num_gpus, stop=self.stop))
        self.stop.install()  # again, because Ray replaced the handlers
        self._processes.reserved = reserved = create_placement(args, self.stop)
        self._resources.callback(release_placement, reserved)
        if placement.actor:
            self._resources.enter_context(own_save_folders(args))
            self._restarts = Restarts(args.save, args.max_trainer_restarts)
        if warning := private_run_folder(Path(args.run_dir)):
            say(f"warning: {warning}")
        begin_logs(Path(args.run_dir), resumes=args.resume)  # not before the folders are known to be this run's
        self._fuses.at_start()
        self._rollbacks.at_start()
        logging_utils.init_tracking(args)
        self._resources.callback(logging_utils.finish_tracking, args)
        self._resources.callback(self._processes.dispose_manager)
        self._resources.callback(self._processes.end_trainer)
        try:
            self._bring_up(args)
        except LostError as error:
            if raised_itself(error):
                raise
            self._life.lose(error)  # `repeat` restarts
        else:
            self._life.to(Phase.UP)

    def _bring_up(self, args: Arguments) -> None:
        """Create the trainer and, if missing, the rollout manager; restore both to one rollout and push the weights."""
        processes, reserved = self._processes, self._processes.reserved
        assert reserved is not None
        if processes.manager is None:
            processes.manager = create_rollout_manager(args, reserved)
            processes.loaded = False
        if args.num_rollout is None:
            per_epoch: int = self.wait(processes.manager.rollouts_per_epoch.remote())
            self._progress.per_epoch = per_epoch
            self.args.num_rollout = args.num_rollout = required("--num-epoch", args.num_epoch) * per_epoch
        if reserved.placement.actor:
            if trainer_waits(reserved.placement):
                self.wait(processes.manager.addresses.remote())  # returns once its engines are up
            self._alternation.before_a_trainer()
            processes.trainer = Trainer(args, reserved)
            self._progress.start = processes.trainer.init()
            if args.resume and self._life.phase is Phase.STARTING:
                say(f"resumes  {args.save}: {self._progress.start} steps are done")
            if self.start_rollout_id - 1 > self._progress.saved:
                self._note_saved(self.start_rollout_id - 1)
        if not processes.loaded:
            for role, url in self.wait(processes.manager.addresses.remote()).items():
                say(f"{'judge' if role == 'prm' else role} engine: {url}")
            self.wait(processes.manager.load.remote(self.start_rollout_id - 1))
            processes.loaded = True
        if self._serves_engines():
            self._hand_over(connect=True)
        if self._rollouts_follow():
            self._show(self.wait(processes.manager.before_rollouts.remote()) or Story())
        self._progress.free_since = time.monotonic()

    def _show(self, story: Story) -> None:
        """Print what the data source tells the user, unless a restart has nothing new to tell."""
        if story != self.story:
            for line in story.start:
                say(line)
        self.story = story

    def _rollouts_follow(self) -> bool:
        """Whether the data source has to be ready: rollouts are left to collect, or the run serves without any."""
        args = self.args
        if not self._collects or args.load_debug_rollout_data:
            return False
        return self.start_rollout_id < required("--num-rollout", args.num_rollout) or args.serve_when_done

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

    def wait(self, reference: Any) -> Any:
        """Return the value of a reference, and meanwhile recover engines and go back to older weights if asked.

        Raises:
            Stopped: a signal arrived.
        """
        while True:
            if self.stop:  # checked first, so that a loop whose batches are always ready ends too
                raise Stopped
            done, _ = ray.wait([reference], timeout=_POLL_SECONDS)
            if done:
                return self._value(reference)
            self._look_after()
            if not self._alternation.alternates:
                self._roll_back()

    def _look_after(self) -> None:
        """Restart engines; raise :class:`Stopped` on a signal, and a LostError after a loss."""
        if self.stop:
            raise Stopped
        check_nodes(self._processes.nodes())
        if self.weight_version:
            self.recover()

    def _ask(self, method: str, *arguments: Any) -> Any:
        """Call the rollout manager; raise ManagerLostError if it has died, Stopped on a signal."""
        return self._value(getattr(self._processes.manager, method).remote(*arguments))

    def _value(self, reference: Any) -> Any:
        """Return the value of a reference; react to a signal unless the run is already ending."""
        return self._processes.value(reference, None if self._life.phase is Phase.ENDING else self.stop)

    # After a loss

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

    def _restart(self, lost: LostError) -> None:
        """Restart the trainer, and a dead rollout manager, from the last checkpoint; replace a lost machine."""
        processes = self._processes
        if self.stop:
            self._progress.went_back()
            raise Stopped
        line = self._restarts.spend(lost)
        self._life.to(Phase.STARTING)
        assert processes.reserved is not None
        logger.exception("a process of the run is gone", exc_info=lost)
        say(line)
        if processes.trainer is not None:
            processes.trainer.kill()
        self.weight_version = ""
        self._progress.went_back()
        if isinstance(lost, NodeLostError):
            processes.kill_manager()
            processes.reserved = with_replacements(processes.reserved, str(lost), self.args.node_timeout, self.stop)
        elif not processes.forget_dead_manager() and isinstance(lost, RankLostError) and lost.method in WEIGHT_METHODS:
            self._ask("hold_engines")
        if processes.manager is None:
            self._restarts.batches_lost()
        self._bring_up(self._restarts.arguments(self.args))
        self._life.to(Phase.UP)
        if untold := self._progress.untold_before_start():
            self._tell(untold, time.monotonic(), live=untold.step.learned and self._serves_engines())
        say(f"continuing at rollout {self.start_rollout_id}")

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
        self._progress.stepped(Trained(rollout_id, batch["metrics"], step))
        if refused is not None:
            self._fuses.pause(rollout_id, refused)
        if not step.learned:
            self._without(rollout_id, step)
        return step

    def _without(self, rollout_id: int, step: Step) -> None:
        """Tell the data source that the batch is not trained, and save, so that a restart agrees."""
        told = ("on_step_undone", step.undone) if step.refused is None else ("on_step_refused", str(step.refused))
        # Ignore signals: the checkpoint of a stopped run says that the samples of its last rollout are trained.
        self._processes.value(getattr(self._processes.manager, told[0]).remote(rollout_id, told[1]), None)
        if self.args.save:
            self.save(rollout_id)

    def _wait_while_paused(self) -> None:
        """Serve until training is not paused; raise :class:`Stopped` on a signal."""
        if self._fuses.paused() is None:
            return
        while self._fuses.paused() is not None:
            if self.stop.wait(_POLL_SECONDS):
                raise Stopped
            self.recover()
            self._roll_back()
        say("training goes on")

    def publish(self, rollout_id: int, batch: RolloutBatch, step: Step) -> None:
        """Push the weights if a push is due, then report. Also used by a restart that resumes past this rollout."""
        start, due = time.monotonic(), step.learned and push_is_due(self.args, rollout_id)
        if self._serves_engines():
            # Engines that slept need weights: without the step the trainer has the last good ones.
            self._hand_over(push=due or (not step.learned and self._alternation.engines_sleep))
        self._tell(Trained(rollout_id, batch["metrics"], step), start, live=due and self._serves_engines())

    def _tell(self, trained: Trained, start: float, *, live: bool) -> None:
        """Report a rollout, published since ``start``; if its weights are ``live``, notify the data source."""
        if live:
            self._ask("on_weights_live", trained.rollout_id, self.weight_version)
        step, seconds = trained.step, self._progress.told() - start
        paused = {PAUSED: float(step.refused is not None)} if self.args.fuses else {}
        metrics = {**trained.metrics, **paused}
        self._report(trained.rollout_id, metrics, step.metrics, step.seconds + seconds, step.waited)

    def recover(self) -> None:
        """Push the trainer's weights to restarted engines; raise NodeLostError if a machine is lost."""
        check_nodes(self._processes.nodes())
        revived = self._ask("recover_engines")
        if revived and self._serves_engines():
            say(f"{revived} engine(s) restarted, sending the weights")
            self._send_weights(connect=True)

    def _serves_engines(self) -> bool:
        return self._processes.trainer is not None and not self.args.debug_train_only

    def _hand_over(self, *, connect: bool = False, push: bool = True) -> None:
        """Let the engines work again, by default after a push; ``connect`` reconnects even if none restarted."""
        assert self._processes.trainer is not None

        def send() -> None:
            if push:
                self._send_weights(connect=connect or self._ask("recover_engines") > 0)

        self._alternation.for_engines(self._processes.trainer, send)

    def _send_weights(self, *, connect: bool) -> None:
        """Push the trainer's weights to all engines."""
        assert self._processes.trainer is not None
        self.weight_version = send_weights(self._processes.trainer, self._ask, connect=connect)

    def data_used(self, end: DataUsedError) -> None:
        """Print what the rollout function says about the end of its data, and save the last step."""
        say(str(getattr(end, "cause", None) or end))  # Ray's copy of an error has the traceback in its text
        if self._unsaved():
            self.save(self._progress.trained)
            if self.args.serve_when_done:
                self._let_engines_serve()

    # Checkpoints and reports

    def save_if_due(self, rollout_id: int) -> None:
        """Write a checkpoint at the interval, at the end of an epoch (``--num-epoch``) and at the last rollout."""
        args = self.args
        due = should_run_periodic_action(rollout_id, args.save_interval, self._progress.per_epoch, args.num_rollout)
        if args.save and due and self._progress.saved != rollout_id:
            self.save(rollout_id)

    def _unsaved(self) -> bool:
        return bool(self.args.save) and self._progress.unsaved

    def save(self, rollout_id: int | None) -> None:
        """Write a checkpoint of weights and data source after ``rollout_id``; it counts once both are written."""
        trainer, manager = self._processes.trainer, self._processes.manager
        if trainer is None or manager is None or rollout_id is None:
            return
        self._alternation.for_trainer(trainer)
        folder = trainer.save(rollout_id)
        if rollout_id != self._progress.saved:  # else its position is saved, and the data source has moved on
            # Ignore signals: an interrupted checkpoint would have to start over.
            self._processes.value(manager.save.remote(rollout_id), None)
        trainer.publish(rollout_id)
        self._note_saved(rollout_id)
        say(f"saved {folder}")

    def _note_saved(self, rollout_id: int) -> None:
        self._progress.saved = rollout_id
        self._restarts.saved(rollout_id)

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
        while on_progress is not None and not ray.wait([reference], timeout=_PROGRESS_SECONDS)[0] and not self.stop:
            on_progress(*self._ask("evaluation_progress"))
        metrics = {**self.wait(reference), "eval/step": compute_rollout_step(self.args, rollout_id)}
        logging_utils.log(self.args, metrics, step_key="eval/step")
        say(evaluation_line(rollout_id, metrics))
        return metrics

    def serve_until_stopped(self) -> None:
        """Keep engines and rollout plugin up until a signal arrives."""
        say("training is done; serving until SIGINT or SIGTERM")
        while not self.stop.wait(_POLL_SECONDS):
            self.recover()
            self._roll_back()

    def _let_engines_serve(self) -> None:
        """Wake the engines that had to sleep for a checkpoint, when no :meth:`publish` follows."""
        if self._serves_engines() and self._alternation.alternates:
            self._hand_over(push=self._alternation.engines_sleep)

    def _roll_back(self) -> None:
        """Go back to the checkpoint that someone asked for, if any, and push its weights under a new version."""
        trainer, last = self._processes.trainer, self._progress.last
        if trainer is None or not self._serves_engines() or self._life.phase is not Phase.UP:
            return
        with self._rollbacks.due(self.weight_version) as saved:
            if saved is None:
                return
            self._alternation.for_trainer(trainer)
            trainer.restore(saved.iteration)
            self._hand_over(push=True)
            self._ask("on_weights_restored", saved.rollout_id, last, self.weight_version)
            self.save(last)
            self._let_engines_serve()
            say(f"weights {saved.weight_version} serve again, as version {self.weight_version}")

    def _report(
        self, rollout_id: int, rollout: dict[str, Any], train: dict[str, Any], seconds: float, waited: float = 0.0
    ) -> None:
        rollout = {**rollout, **rollout_part(train), **times(train, seconds, waited)}
        self._reports.step(rollout_id, rollout, train, self.weight_version)
