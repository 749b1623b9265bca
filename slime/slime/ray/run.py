"""One run as the control loops see it: its start, rollouts, updates, evaluations, restarts and end.

Guarantees: whatever starts is ended with the run, also when the start fails; a stopped run saves its progress first. A training
rank or rollout manager that dies is restarted from the last checkpoint; after the loss of a machine, on a replacement. SIGTERM and
SIGINT are noticed within two seconds, except that a training step or a checkpoint is finished first. No other run writes to the
run's folders.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import ray
from ray import ObjectRef
from ray.exceptions import RayTaskError

from groundwork import tracing
from groundwork.exceptions import ConfigError
from groundwork.garbage import collect_rarely
from groundwork.private_files import private_run_folder
from groundwork.process import Stopped, StopRequested
from groundwork.start_timeline import DRIVER, VARIABLE, Beginning, StartWatch, Step, mark
from slime.args import Arguments, required
from slime.arguments.backend import backend_line
from slime.arguments.dry_run import missing_at_start
from slime.arguments.fireworks import NAME as FIREWORKS
from slime.arguments.placement import Placement, describe_placement, is_rented, start_lines, trainer_waits
from slime.exceptions import DataUsedError, LostError, NodeLostError, RankLostError, SlimeError
from slime.observability.metric_utils import compute_rollout_step
from slime.ray.cluster import ray_cluster
from slime.ray.placement import create_placement, release_placement, with_replacements
from slime.ray.processes import Processes, create_rollout_manager
from slime.ray.reports import Reports, continue_line
from slime.ray.restarts import Restarts, first_line, raised_itself
from slime.ray.rollout import RolloutBatch
from slime.ray.save_lock import own_save_folders
from slime.ray.trainer import Trainer
from slime.rollout.data_source import Story
from slime.updates.policy_engines import Engines
from slime.updates.rollback import forget_rollbacks
from slime.updates.update import Update
from slime.updates.updates import Updates
from slime.utils import logging_utils
from slime.utils.alerts import alerting, tell
from slime.utils.misc import should_run_periodic_action
from slime.utils.run_logs import begin_logs, begin_training_log, ended_training_log, say

if TYPE_CHECKING:
    from slime.backends.tinker_utils.trainer import Rented

logger = logging.getLogger(__name__)

POLL_SECONDS = 2.0
PROGRESS_SECONDS = 0.5
CANARY_METHODS = ("push_candidate",)
"""During this call the last engine, which has the candidate first, may hold a mix of old and new weights."""
PUSH_METHODS = (
    *("connect_rollout_engines", "update_weights", "offer_candidate", "take_candidate_back"),
    *CANARY_METHODS,
)
"""During the others all engines may."""
T = TypeVar("T")


class Phase(Enum):
    """Phase of a run."""

    NEW = "nothing has started"
    STARTING = "processes start and agree on a rollout"
    UP = "the loop runs"
    LOST = "a process or a machine is gone, and the run restarts"
    ENDING = "the last checkpoint is written, then everything ends"


TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    Phase.NEW: frozenset({Phase.STARTING, Phase.ENDING}),
    Phase.STARTING: frozenset({Phase.UP, Phase.LOST, Phase.ENDING}),
    Phase.UP: frozenset({Phase.LOST, Phase.ENDING}),
    Phase.LOST: frozenset({Phase.STARTING, Phase.ENDING}),
    Phase.ENDING: frozenset(),
}


class RunLife:
    """The phase of a run; in `Phase.LOST`, ``lost`` is the error, else None."""

    def __init__(self, phase: Phase = Phase.NEW) -> None:
        self.phase = phase
        self.lost: LostError | None = None

    def to(self, phase: Phase) -> None:
        """Change to another phase.

        Raises:
            RuntimeError: `TRANSITIONS` does not allow the change.
        """
        if phase not in TRANSITIONS[self.phase]:
            raise RuntimeError(f"a run cannot change from {self.phase.name} to {phase.name}")
        self.phase, self.lost = phase, None

    def lose(self, lost: LostError) -> None:
        """Change to `Phase.LOST`."""
        self.to(Phase.LOST)
        self.lost = lost


class Run:
    """Entering the context starts everything; the loops call its methods. Owned by the driver's main thread.

    Attributes:
        args: of the command line.
        stop: whether a signal asks the run to stop.
        story: what the data source tells the user.
        life: its phase.
        processes: that it owns.
        engines: of the policy, and which weights they serve.
        restarts: what they need and how many are left.
        reports: to trackers and the terminal.
        updates: one after another, with their checkpoints.
        rented: the service that trains and samples; None in a run on GPUs of its own.

    Example:
        >>> with Run(args) as run:  # doctest: +SKIP
        ...     for rollout_id in range(run.start_rollout_id, args.num_rollout):
        ...         run.train(rollout_id, run.wait(run.generate(rollout_id)))
        ...         run.save_if_due(rollout_id)
    """

    def __init__(self, args: Arguments, *, collects: bool = True) -> None:
        """Start nothing yet.

        Args:
            args: of the command line.
            collects: whether the loop asks for rollouts; a mere evaluation does not.
        """
        self.args = args
        self.stop = StopRequested()
        self.story = Story()
        self.life = RunLife()
        self.processes = Processes(self.stop)
        self.engines = Engines(args, self.processes)
        self.restarts = Restarts()
        self.reports = Reports(args)
        self.updates = Updates(args, self.processes, self.engines, self.restarts, self.reports)
        self.rented: Rented | None = None
        self._collects = collects
        self._resources = contextlib.ExitStack()

    @property
    def start_rollout_id(self) -> int:
        """First rollout of the loop."""
        return self.updates.progress.start

    # Start

    def __enter__(self) -> Run:
        """Start the cluster, the engines and the trainer, and push the trainer's weights to the engines."""
        self.stop.install()
        try:
            self._start()
        except BaseException:
            self._end()
            self._resources.close()
            raise
        return self

    def _start(self) -> None:
        self.life.to(Phase.STARTING)
        args, beginning = self.args, Beginning.read()
        beginning.mark(DRIVER, Step.LOADED)
        if missing := missing_at_start(args):
            raise ConfigError("; ".join(missing))
        tracing.start("trainer")
        self._resources.callback(tracing.stop)
        folders = [Path(args.save)] if args.save else []
        self._resources.enter_context(alerting(Path(args.run_dir), folders))
        os.environ.pop(VARIABLE, None)
        placement = describe_placement(args)
        for line in placement.lines():
            say(line)
        if stages := start_lines(placement):
            say(f"starts   {', then '.join(stages)}")
        if trains(args, placement):
            say(backend_line(args))
        if is_rented(args):
            self.rented = self._resources.enter_context(rent(args, self.stop))
            self.args = args = self.rented.arguments(args)
        num_gpus = args.num_gpus or placement.total
        self._resources.enter_context(ray_cluster(args, num_gpus=num_gpus, stop=self.stop))
        self.stop.install()  # again, because Ray replaced the handlers
        watch = StartWatch(Path(args.run_dir), say, beginning)
        beginning.mark(DRIVER, Step.RAY)
        watch.tell()
        self.processes.reserved = reserved = create_placement(args, self.stop)
        self._resources.callback(release_placement, reserved)
        if trains(args, placement):
            self._resources.enter_context(own_save_folders(args))
            self.restarts.allow(args.save, args.max_trainer_restarts)
        if warning := private_run_folder(Path(args.run_dir)):
            say(f"warning: {warning}")
        begin_logs(Path(args.run_dir), resumes=args.resume)  # not before the folders are known to be this run's
        begin_training_log(Path(args.run_dir))
        beginning.write(Path(args.run_dir))
        watch.start()
        self._resources.callback(watch.close)
        self.updates.fuses.at_start()
        if not args.resume:
            forget_rollbacks(args.run_dir)
        logging_utils.init_tracking(args)
        self._resources.callback(logging_utils.finish_tracking, args)
        self._resources.callback(self.processes.dispose_manager)
        self._resources.callback(self.processes.end_trainer)
        try:
            self._bring_up(args)
        except LostError as error:
            if raised_itself(error):
                raise
            self.life.lose(error)  # `repeat` restarts
        else:
            self.life.to(Phase.UP)

    def _bring_up(self, args: Arguments) -> None:
        """Create the trainer and, if missing, the rollout manager; restore both to one rollout and push the weights."""
        processes, progress = self.processes, self.updates.progress
        reserved = processes.reserved
        assert reserved is not None
        if not processes.has_manager:
            processes.manager = create_rollout_manager(args, reserved)
            processes.loaded = False
        manager = processes.manager
        if args.num_rollout is None:
            progress.per_epoch = per_epoch = self.wait(manager.rollouts_per_epoch())
            self.args.num_rollout = args.num_rollout = required("--num-epoch", args.num_epoch) * per_epoch
        if trains(args, reserved.placement):
            if trainer_waits(reserved.placement):
                self.wait(manager.addresses())  # returns once its engines are up
            self.engines.before_a_trainer()
            if self.rented is None:
                processes.trainer = Trainer(args, reserved, self.stop)
            else:
                processes.trainer = self.rented.trainer(args, self.stop)
            progress.start = processes.trainer.init()
            if args.resume and self.life.phase is Phase.STARTING:
                say(f"resumes  {args.save}: {progress.start} steps are done")
            if progress.start - 1 > progress.saved:
                self.updates.note_saved(progress.start - 1)
        if not processes.loaded:
            for role, url in self.wait(manager.addresses()).items():
                say(f"{'judge' if role == 'prm' else role} engine: {url}")
            self.wait(manager.load(progress.start - 1))
            processes.loaded = True
        if self.engines.get_weights:
            self.engines.take_gpus(connect=True)
            mark(args.run_dir, DRIVER, Step.PUSHED)
        if self._rollouts_follow():
            self._show(self.wait(manager.before_rollouts()) or Story())
            mark(args.run_dir, DRIVER, Step.READY_TO_STEP)
        progress.free_since = time.monotonic()

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

    # Restart and end

    def repeat(self, loop: Callable[[Run], None]) -> None:
        """Run ``loop``, and repeat it after a loss as often as `Restarts` allows, from ``start_rollout_id``.

        A loss during the start counts too; the loop begins once everything is up.
        """
        while True:
            try:
                if self.life.lost is not None:
                    self._restart(self.life.lost)
                return loop(self)
            except LostError as error:
                self.life.lose(error)

    def _restart(self, lost: LostError) -> None:
        """Restart the trainer, and a dead rollout manager, from the last checkpoint; replace a lost machine."""
        processes, progress = self.processes, self.updates.progress
        if self.stop:
            progress.went_back()
            raise Stopped
        line = self.restarts.spend(lost)
        self.life.to(Phase.STARTING)
        assert processes.reserved is not None
        logger.exception("a process of the run is gone", exc_info=lost)
        tell("engine", f"a process of the run is gone ({type(lost).__name__}); it restarts from its newest checkpoint")
        say(line)
        if processes.has_trainer:
            processes.trainer.kill()
        self.engines.version = ""
        progress.went_back()
        if isinstance(lost, NodeLostError):
            processes.kill_manager()
            processes.reserved = with_replacements(processes.reserved, str(lost), self.args.node_timeout, self.stop)
        elif not processes.forget_dead_manager() and isinstance(lost, RankLostError) and self._broke_a_push(lost):
            processes.value(processes.manager.hold_engines(lost.method in CANARY_METHODS))
        if not processes.has_manager:
            self.restarts.batches_lost()
        self._bring_up(self.restarts.arguments(self.args))
        self.life.to(Phase.UP)
        self.updates.publish_untold()
        say(f"continuing at rollout {self.start_rollout_id}")

    def _broke_a_push(self, lost: RankLostError) -> bool:
        """Whether engines may have a mix of weights; an adapter of a person is read from its folder instead."""
        return lost.method in PUSH_METHODS and not self.args.adapter_per_person

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> bool:
        """Save a stopped run's progress, then end everything."""
        if kind is not None and kind is not Stopped:
            tell("ended", f"the run ended with {kind.__name__}; driver.log has the reason")
        self._end()
        try:
            if self.updates.unsaved and (kind is None or kind is Stopped):
                self.updates.save(self.updates.progress.trained)
        finally:
            self._resources.close()
        return False

    def _end(self) -> None:
        self.life.to(Phase.ENDING)
        self.processes.ending = True

    # Waiting

    def wait(self, reference: ObjectRef[T]) -> T:
        """Return the value of a reference, and meanwhile recover engines and go back to older weights if asked.

        Raises:
            Stopped: a signal arrived.
        """
        while True:
            if self.stop:  # checked first, so that a loop whose batches are always ready ends too
                raise Stopped
            done, _ = ray.wait([reference], timeout=POLL_SECONDS)
            if done:
                return self.processes.value(reference)
            self.engines.look_after()
            if not self.engines.alternate:
                self._roll_back()

    def _served_a_moment(self) -> bool:
        """Look after engines, and go back if asked, in `POLL_SECONDS` from now; return False once a signal arrives."""
        if self.stop.wait(POLL_SECONDS):
            return False
        self.engines.recover()
        self._roll_back()
        return True

    def _roll_back(self) -> None:
        if self.life.phase is Phase.UP:
            self.updates.roll_back()

    # Rollouts and updates

    def generate(self, rollout_id: int) -> ObjectRef[RolloutBatch]:
        """Start collecting a batch, unless it was kept across a restart, and return its reference."""
        manager = self.processes.manager
        return self.restarts.batch(rollout_id, lambda: manager.generate(rollout_id))

    def train(self, rollout_id: int, batch: RolloutBatch) -> None:
        """Take the steps of one batch, push the new weights, and report."""
        self.publish(self.step(rollout_id, batch))

    def step(self, rollout_id: int, batch: RolloutBatch) -> Update:
        """Take the steps of one batch without a push; see `Updates.step`. Waits while training is paused."""
        if not self.processes.has_trainer:
            return Update(rollout_id, batch["metrics"], {})
        self.updates.wait_while_paused(self._served_a_moment)
        self._roll_back()
        return self.updates.step(rollout_id, batch)

    def publish(self, update: Update) -> None:
        """Push the weights if a push is due, then report."""
        self.updates.publish(update)

    def save_if_due(self, rollout_id: int) -> None:
        """Write a checkpoint at the interval, at the end of an epoch (``--num-epoch``) and at the last rollout."""
        self.updates.save_if_due(rollout_id)

    def data_used(self, end: DataUsedError) -> None:
        """Print what the rollout function says about the end of its data, and save the last step."""
        say(str(getattr(end, "cause", None) or end))  # Ray's copy of an error has the traceback in its text
        if self.updates.unsaved:
            self.updates.save(self.updates.progress.trained)
            if self.args.serve_when_done:
                self.engines.serve_again()

    # Evaluation and serving

    def evaluate_start(self) -> None:
        """Evaluate the start weights of a fresh run, unless ``--skip-eval-before-train``."""
        if self.args.eval_interval and not self.args.skip_eval_before_train and self.start_rollout_id == 0:
            self.evaluate(0)

    def evaluate_if_due(self, rollout_id: int) -> None:
        """Run the evaluation function at its interval and at the end of an epoch (``--num-epoch``)."""
        if should_run_periodic_action(rollout_id, self.args.eval_interval, self.updates.progress.per_epoch, None):
            self.evaluate(rollout_id)

    def evaluate(self, rollout_id: int, on_progress: Callable[[int, int], None] | None = None) -> dict[str, Any]:
        """Run the evaluation function, report and return its metrics.

        ``on_progress`` gets the finished and the requested answers every few seconds.
        """
        manager = self.processes.manager
        reference = manager.eval(rollout_id)
        while on_progress is not None and not ray.wait([reference], timeout=PROGRESS_SECONDS)[0] and not self.stop:
            on_progress(*self.processes.value(manager.evaluation_progress()))
        metrics = {**self.wait(reference), "eval/step": compute_rollout_step(self.args, rollout_id)}
        self.reports.evaluation(rollout_id, metrics)
        return metrics

    def serve_until_stopped(self) -> None:
        """Keep engines and rollout plugin up until a signal arrives."""
        say("training is done; serving until SIGINT or SIGTERM")
        while self._served_a_moment():
            continue


def trains(args: Arguments, placement: Placement) -> bool:
    """Return whether the run has a trainer: ranks of its own, or a service's."""
    return bool(placement.actor) or (is_rented(args) and not args.debug_rollout_only)


def rent(args: Arguments, stop: StopRequested) -> Rented:
    """Return the service that trains and samples; the packages for it are imported now, not for other runs."""
    from slime.backends.tinker_utils.trainer import Rented

    if args.train_backend == FIREWORKS:
        from slime.backends.fireworks_utils.service import FireworksService

        return Rented(args, FireworksService(args, stop))
    from slime.backends.tinker_utils.service import Service

    return Rented(args, Service(args))


@ended_training_log()
def execute(args: Arguments, loop: Callable[[Run], None], *, collects: bool = True) -> int:
    """Run a control loop until it returns or a signal stops it, and return the exit code.

    On a failure the last line of output names the trainer, engine, machine or plugin that failed. The traceback
    precedes it, unless the arguments are at fault. Before that come the lines to look into the run and to continue it.
    ``collects``: whether the loop asks for rollouts.
    """
    collect_rarely()
    run = Run(args, collects=collects)
    try:
        with run:
            run.repeat(loop)
    except Stopped:
        say("stopped")
        _say_the_end(run, unfinished=True)
    except (SlimeError, ConfigError, RayTaskError) as error:
        if not isinstance(error, ConfigError):
            logger.exception("the run failed")
        _say_the_end(run, unfinished=True)
        cause = getattr(error, "cause", None) or error
        say(f"the run failed: {first_line(cause)}")
        return 1
    else:
        _say_the_end(run, unfinished=False)
    return run.stop.exit_code


def _say_the_end(run: Run, *, unfinished: bool) -> None:
    """Print the data source's last lines and, if a run can go on, the line that continues it."""
    for line in run.story.end:
        say(line)
    if unfinished and (line := continue_line(run.args, sys.argv, os.environ)):
        say(f"continue {line}")
