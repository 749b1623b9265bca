"""Start a run, and restart it after a loss.

Guarantees: * Whatever starts is ended with the run, also when the start fails.
* A training rank or rollout manager that dies is restarted from the last checkpoint (`slime.ray.restarts`); after the loss
of a machine, on a replacement.
* No other run writes to the run's folders.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

from groundwork.exceptions import ConfigError
from groundwork.private_files import private_run_folder
from groundwork.process import Stopped
from slime.args import Arguments, required
from slime.arguments.at_start import missing_at_start
from slime.arguments.backend import backend_line
from slime.arguments.placement import describe_placement, start_lines, trainer_waits
from slime.exceptions import LostError, NodeLostError, RankLostError
from slime.observability.metric_utils import rollout_part
from slime.ray.cluster import ray_cluster
from slime.ray.placement import create_placement, release_placement, with_replacements
from slime.ray.report import Trained, say, times
from slime.ray.restarts import Restarts, raised_itself
from slime.ray.rollout import create_rollout_manager
from slime.ray.run_state import Phase
from slime.ray.run_weights import RunWeights
from slime.ray.save_lock import own_save_folders
from slime.ray.trainer import Trainer
from slime.rollout.data_source import Story
from slime.utils import logging_utils
from slime.utils.metric_names import PAUSED
from slime.utils.run_logs import begin_logs

logger = logging.getLogger(__name__)

CANARY_METHODS = ("push_candidate", "take_candidate_back")
"""During these calls the last engine, which has the candidate first, may hold a mix of old and new weights."""
PUSH_METHODS = ("connect_rollout_engines", "update_weights", *CANARY_METHODS)
"""During the others all engines may."""


class RunStart(RunWeights):
    """The processes of a run; see `slime.ray.run_core` for the layers."""

    def _start(self) -> None:
        self._life.to(Phase.STARTING)
        if missing := missing_at_start(args := self.args):
            raise ConfigError("; ".join(missing))
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
            processes.trainer = Trainer(args, reserved, self.stop)
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
        elif not processes.forget_dead_manager() and isinstance(lost, RankLostError) and lost.method in PUSH_METHODS:
            self._ask("hold_engines", lost.method in CANARY_METHODS)
        if processes.manager is None:
            self._restarts.batches_lost()
        self._bring_up(self._restarts.arguments(self.args))
        self._life.to(Phase.UP)
        if untold := self._progress.untold_before_start():
            self._tell(untold, time.monotonic(), live=untold.step.learned and self._serves_engines())
        say(f"continuing at rollout {self.start_rollout_id}")

    # Reports

    def _tell(self, trained: Trained, start: float, *, live: bool) -> None:
        """Report a rollout, published since ``start``; if its weights are ``live``, notify the data source."""
        if live:
            self._ask("on_weights_live", trained.rollout_id, self.weight_version)
        step, seconds = trained.step, self._progress.told() - start
        paused = {PAUSED: float(step.refused is not None)} if self.args.fuses else {}
        metrics = {**trained.metrics, **paused}
        self._report(trained.rollout_id, metrics, step.metrics, step.seconds + seconds, step.waited)

    def _report(
        self, rollout_id: int, rollout: dict[str, Any], train: dict[str, Any], seconds: float, waited: float = 0.0
    ) -> None:
        rollout = {**rollout, **rollout_part(train), **times(train, seconds, waited)}
        self._reports.step(rollout_id, rollout, train, self.weight_version)
