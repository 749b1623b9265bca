"""The updates of a run, one after another: steps, the gate, checkpoints, pushes, and going back on command.

Guarantees: steps that a fuse holds back or the gate undoes leave the weights that serve as they are, and the data source learns of
it before the next checkpoint. A checkpoint counts once both the trainer's and the data source's part are written. Where a
checkpoint is due, the synchronous loop writes it before the push. So does each loop with an adapter for each person, where each
update has a checkpoint: nothing that has served is lost with a process.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from groundwork.paused import Paused, pause, paused, paused_people, resume, shown
from groundwork.people import mark_of
from groundwork.process import Stopped
from groundwork.tracing import record as record_span
from slime.args import Arguments
from slime.exceptions import PluginError
from slime.observability.metric_utils import STEPS
from slime.rollout.metrics import staleness
from slime.updates.decisions import Decisions
from slime.updates.policy_engines import Engines, push_is_due
from slime.updates.rollback import OfPerson, due_rollback
from slime.updates.update import Progress, State, Update
from slime.utils.fuses import OF_THE_LOSS, Blown, blown, read_fuse
from slime.utils.metric_names import HELD, RECENT_ENTROPY, STEPS_OF_ENTROPY
from slime.utils.misc import should_run_periodic_action
from slime.utils.run_logs import say

if TYPE_CHECKING:
    from slime.ray.processes import Processes
    from slime.ray.reports import Reports
    from slime.ray.restarts import Restarts
    from slime.ray.rollout import RolloutBatch


logger = logging.getLogger(__name__)

ENTROPY = f"{OF_THE_LOSS}entropy_loss"
SKIPPED = f"{OF_THE_LOSS}skipped_steps"
HOW_TO_GO_ON = "the last good weights keep serving and samples are kept; to go on: openclaw-rl resume"


class Fuses:
    """The fuses of a run, and the pause that follows when one blows. Owned by the driver.

    The step that blew a fuse is not taken, so the trainer keeps the weights that serve, and an engine that restarts during the
    pause gets these. The pause is on disk before anything else happens, and outlives every process (`groundwork.paused`).
    Meanwhile the run serves and collects.
    """

    def __init__(self, args: Arguments) -> None:
        self._args = args
        self._unseen = {fuse.metric for fuse in map(read_fuse, args.fuses or ())} - {RECENT_ENTROPY}
        self._entropies: dict[str | None, deque[float]] = {}
        """Of the last steps of each policy: of a person's adapter by person, of the one that everybody shares under None."""

    def at_start(self) -> None:
        """Forget the pauses of an earlier run in the folder, or those that ``--resume-training`` ends; tell of any other."""
        run_dir = self._args.run_dir
        if not self._args.resume or self._args.resume_training:
            for person in (None, *paused_people(run_dir)):
                resume(run_dir, person)
        for note in filter(None, (self.paused(), *paused_people(run_dir).values())):
            say(f"{note}; {self._how()}")

    def recent(self, person: str | None = None) -> dict[str, float]:
        """Return `RECENT_ENTROPY` of a policy; empty until enough steps were taken since the start or its last pause.

        One batch says little: replies that only call a tool are certain in a healthy policy too. ``person``: whose batch it is.
        """
        entropies = self._entropies.get(self._policy_of(person), ())
        return {RECENT_ENTROPY: statistics.fmean(entropies)} if len(entropies) == STEPS_OF_ENTROPY else {}

    def _policy_of(self, person: str | None) -> str | None:
        return person if self._args.adapter_per_person else None

    def of_batch(self, metrics: Mapping[str, Any]) -> Blown | None:
        """Return what a batch's metrics blow, before the trainer gets it."""
        return blown(self._args.fuses, {name: value for name, value in metrics.items() if not _of_the_loss(name)})

    def of_steps(self, metrics: Mapping[str, Any], batch: Mapping[str, Any], person: str | None = None) -> Blown | None:
        """Return what held back the trainer's step on a batch of ``person``, or None if it was taken.

        Names fuses whose metric does not exist.
        """
        entropies = self._entropies.setdefault(self._policy_of(person), deque(maxlen=STEPS_OF_ENTROPY))
        entropies.extend(step[ENTROPY] for step in metrics.get(STEPS, []) if ENTROPY in step)
        for step in metrics.get(STEPS, []):
            if step.get(f"{OF_THE_LOSS}{HELD}"):
                return blown(self._args.fuses, step)
        results = {*metrics, *batch, *(name for step in metrics.get(STEPS, []) for name in step)}
        for name in sorted(self._unseen - results if metrics else ()):
            say(f"warning: --fuses looks at {name}, which neither the batch nor the loss reports")
        self._unseen = set()
        return None

    def pause(self, rollout_id: int, cause: str, person: str | None = None) -> None:
        """Pause training after ``rollout_id``, or with ``person`` the training of this person."""
        self._entropies.pop(person, None)
        note = pause(self._args.run_dir, rollout_id, cause, person)
        logger.error("%s; %s", note, self._how())
        say(f"{note}; {self._how()}")

    def paused(self) -> Paused | None:
        """Return why training is paused, or None."""
        return paused(self._args.run_dir) if self._args.run_dir else None

    def _how(self) -> str:
        return f"{HOW_TO_GO_ON} {self._args.run_dir}"


def _of_the_loss(name: str) -> bool:
    return name.startswith(OF_THE_LOSS)


class Updates:
    """Owned by the driver's main thread; in a run without a trainer nothing happens.

    Attributes:
        progress: over rollouts.
        fuses: of the run, and its pause.
    """

    def __init__(
        self, args: Arguments, processes: Processes, engines: Engines, restarts: Restarts, reports: Reports
    ) -> None:
        """Take the parts of a run that an update needs.

        Args:
            args: of the run.
            processes: of the run.
            engines: that get the weights.
            restarts: keeps what a restart from a checkpoint needs.
            reports: get each update once it is published.
        """
        self.progress = Progress()
        self.fuses = Fuses(args)
        self._args = args
        self._processes = processes
        self._engines = engines
        self._restarts = restarts
        self._reports = reports
        self._decisions = Decisions(args, processes, engines)

    # Steps

    def step(self, rollout_id: int, batch: RolloutBatch) -> Update:
        """Take the steps of one batch and ask the gate; push nothing.

        A step that blows a fuse is not taken, and pauses training: of one person if the batch is this person's, and also if its
        gradient is not finite. Steps that the gate refuses are undone.
        """
        if (known := self._restarts.outcome(rollout_id)) is not None:
            return self._once_more_without(known)
        start, metrics = time.monotonic(), batch["metrics"]
        person, passes = batch.get("person"), batch.get("passes", 1)
        self._engines.leave_gpus()
        if self._args.adapter_per_person:
            self._engines.let_in(self._person_of(rollout_id, person))
        metrics.update(staleness(metrics, self._engines.version) | self.fuses.recent(person))
        own = bool(self._args.adapter_per_person)
        update = Update(rollout_id, metrics, {}, waited=start - self.progress.free_since, person=person, own=own)
        update.held = self.fuses.of_batch(metrics)
        if update.held is None:
            self._decisions.before_steps(passes)
            trainer = self._processes.trainer
            update.steps = trainer.train(rollout_id, batch["shards"], batch["critic_shards"], passes)
            update.held = self.fuses.of_steps(update.steps, metrics, person)
            update.state = State.TRAINED if update.held is None else State.HELD
            self._decisions.after_steps(update)
        else:
            update.state = State.HELD
        update.seconds = time.monotonic() - start
        record_span(
            "step", time.time() - update.seconds, update.seconds, step=rollout_id, state=update.state.name.lower()
        )
        self.progress.stepped(update)
        if update.held is not None:
            self.fuses.pause(rollout_id, str(update.held), None if update.pauses else person)
        elif person is not None and any(step.get(SKIPPED) for step in update.steps.get(STEPS, [])):
            self.fuses.pause(rollout_id, "the gradient of a batch is not finite", person)
        if not update.learned:
            self._without(update)
        return update

    def _person_of(self, rollout_id: int, person: str | None) -> str:
        if person is None:
            raise PluginError(
                f"rollout {rollout_id} is of several people, but each has an adapter; set person in what "
                f"{self._args.rollout_function_path} returns, or remove --adapter-per-person"
            )
        return person

    def _without(self, update: Update) -> None:
        """Tell the data source that the batch is not trained, and save, so that a restart agrees."""
        manager, rollout_id = self._processes.manager, update.rollout_id
        if update.held is not None:
            notified = manager.on_step_refused(rollout_id, str(update.held))
        else:
            notified = manager.on_step_undone(rollout_id, update.undone or "")
        # Ignore signals: the checkpoint of a stopped run says that the samples of its last rollout are trained.
        self._processes.value(notified, heed_signals=False)
        self._restarts.not_trained(update)
        if self._args.save:
            self.save(rollout_id)

    def _once_more_without(self, known: Update) -> Update:
        """Save the checkpoint that a loss prevented, of a batch that is not trained."""
        self.progress.stepped(known)
        self.save(known.rollout_id)
        return known

    # Publication

    def publish(self, update: Update) -> None:
        """Push the weights if a push is due, then report."""
        if self._args.adapter_per_person:
            self.save_if_due(update.rollout_id)
        start, engines = time.monotonic(), self._engines
        due = update.learned and push_is_due(self._args, update.rollout_id) and engines.get_weights
        if due and self._args.adapter_per_person and update.person is not None:
            engines.let_in(update.person)  # another one's adapter may have gone back meanwhile
        if engines.get_weights:
            # Engines that slept need weights: without the step the trainer has the last good ones.
            engines.take_gpus(push=due or (not update.learned and engines.sleep))
        self._tell(update, start, pushed=due and not self._args.debug_train_only)

    def publish_untold(self) -> None:
        """Report the update that the restored checkpoint agrees with but that a loss kept from being reported.

        The engines have got the trainer's weights since.
        """
        if untold := self.progress.untold_before_start():
            if self._args.adapter_per_person and untold.person is not None:
                self._engines.leave_gpus()
                self._engines.let_in(untold.person)
                self._engines.serve_again()
            self._tell(untold, time.monotonic(), pushed=untold.learned and self._engines.get_weights)

    def _tell(self, update: Update, start: float, *, pushed: bool) -> None:
        """Report an update whose publication began at ``start``; notify the data source if the engines have its weights."""
        if pushed:
            update.to(State.PUSHED)
            manager = self._processes.manager
            self._processes.value(manager.on_weights_live(update.rollout_id, self._engines.version))
            update.to(State.LIVE)
        seconds = self.progress.told() - start
        self._reports.update(update, update.seconds + seconds, self._engines.version)

    # Checkpoints

    def save_if_due(self, rollout_id: int) -> None:
        """Write a checkpoint at the interval, at the end of an epoch (``--num-epoch``) and at the last rollout."""
        args, progress = self._args, self.progress
        due = should_run_periodic_action(rollout_id, args.save_interval, progress.per_epoch, args.num_rollout)
        if args.save and due and progress.saved != rollout_id:
            self.save(rollout_id)

    @property
    def unsaved(self) -> bool:
        """Whether a checkpoint would keep steps that none contains."""
        return bool(self._args.save) and self.progress.unsaved

    def save(self, rollout_id: int | None) -> None:
        """Write a checkpoint of weights and data source after ``rollout_id``; it counts once both are written."""
        processes, progress = self._processes, self.progress
        if not processes.has_trainer or not processes.has_manager or rollout_id is None:
            return
        self._engines.leave_gpus()
        folder = processes.trainer.save(rollout_id)
        if rollout_id != progress.saved:  # else its position is saved, and the data source has moved on
            # Ignore signals: an interrupted checkpoint would have to start over.
            processes.value(processes.manager.save(rollout_id), heed_signals=False)
        processes.trainer.publish(rollout_id)
        if progress.current is not None:
            progress.current.saved()
        self.note_saved(rollout_id)
        kept = f"; the newest {self._args.save_keep} are kept" if self._args.save_keep else ""
        say(f"saved {folder}{kept}")

    def note_saved(self, rollout_id: int) -> None:
        """Record that a checkpoint contains the updates up to ``rollout_id``."""
        self.progress.saved = rollout_id
        self._restarts.saved(rollout_id)

    # Going back, and pauses

    def roll_back(self) -> None:
        """Go back to the checkpoint that someone asked for, if any, and push its weights under a new version."""
        processes, engines, progress = self._processes, self._engines, self.progress
        if not engines.get_weights:
            return
        with due_rollback(self._args, engines.version) as saved:
            if saved is None:
                return
            last = progress.last
            engines.leave_gpus()
            progress.current = back = Update(last, {}, {}, state=State.RESTORED)
            if isinstance(saved, OfPerson):
                processes.trainer.restore_person(mark_of(saved.person), saved.name)
                engines.take_gpus(push=True)
                told = processes.manager.on_person_restored(saved.person, saved.weight_version, engines.version)
            else:
                processes.trainer.restore(saved.iteration)
                engines.take_gpus(push=True)
                told = processes.manager.on_weights_restored(saved.rollout_id, last, engines.version)
            processes.value(told)
            back.to(State.LIVE)
            self.save(last)
        engines.serve_again()
        whom = f" {shown(saved.person)}" if isinstance(saved, OfPerson) else ""
        say(f"weights {saved.weight_version} serve{whom} again, as version {engines.version}")

    def wait_while_paused(self, served_a_moment: Callable[[], bool]) -> None:
        """Serve until training is not paused; raise :class:`Stopped` if ``served_a_moment`` returns False, on a signal."""
        if self.fuses.paused() is None:
            return
        while self.fuses.paused() is not None:
            if not served_a_moment():
                raise Stopped
        say("training goes on")
