"""The bridge from the ledger to the trainer: a data source and a rollout function for any method folder.

Guarantees: a batch is ``--rollout-batch-size`` rollouts with gradient, leased to its rollout id in the ledger: samples
of turns, and whole episodes of agents with one or more samples each; further ones wait for the next batch. Nothing
leaves the ledger silently: a stale sample is dropped with that reason, or trained with an importance weight and
counted. The driver's bring-up starts the runtime process through `LedgerDataSource.before_rollouts`, and the data
source owns it. The ledger file holds all other state.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

from groundwork.exceptions import ConfigError
from groundwork.images import open_image, picture_tensors
from groundwork.paused import note_waiting, pause
from groundwork.processors import load_processor
from openclaw.config.runtime_variables import RuntimeVariables
from openclaw.engine.canary import close_share
from openclaw.ledger.decisions import FUSE
from openclaw.ledger.exceptions import LedgerUnavailableError
from openclaw.ledger.records import BASELINE, SCORED, STALE, WEIGHT, SeenPicture
from openclaw.ledger.samples import Quota, rollout_of
from openclaw.ledger.store import Ledger
from openclaw.ledger.turns import NO_PICTURE
from openclaw.ledger.views import counted
from openclaw.method import maker, trains_rewards
from openclaw.owners import owner_of, root
from openclaw.runtime.adapters import BASE_VERSION, accepted_versions, batch_of, forget_adapter, times_forgotten
from openclaw.runtime.process import RuntimeSupervisor
from openclaw.runtime.start import start_runtime
from openclaw.runtime.where import RUNTIME_LOG_NAME, chat_command, inspect_command, ledger_path, shown_path
from openclaw.training.live import LiveRollout
from openclaw.training.live_arguments import check_arguments
from openclaw.training.pace import Due, Pace, PaceSettings
from slime.args import Arguments
from slime.arguments.placement import is_rented
from slime.exceptions import DataUsedError
from slime.rollout.base_types import RolloutFnEvalOutput, RolloutFnTrainOutput
from slime.rollout.before_push import Decision
from slime.rollout.data_source import DataSource, Story
from slime.rollout.sglang_rollout import eval_rollout
from slime.rollout.staleness import mask_stale, version_number
from slime.utils.async_utils import run
from slime.utils.misc import load_function
from slime.utils.types import Sample

logger = logging.getLogger(__name__)

PROGRESS_SECONDS = 10.0
POLL_SECONDS = 0.2
LEDGER_PAUSE_SECONDS = 2.0
NO_DATUM = "no_datum"
T = TypeVar("T")


class LedgerDataSource(DataSource):
    """``--data-source-path openclaw.training.rollout.LedgerDataSource``: ties the ledger to checkpoints and live weights.

    Owns the runtime process: `before_rollouts` starts it, `dispose` ends it.

    Attributes:
        closed_seconds: how long ``OPENCLAW_TRAIN_WHEN`` kept the batch that is being collected from being trained.
    """

    checked_by = "python -m openclaw.method check FOLDER"

    def __init__(self, args: Arguments) -> None:
        self.args = args
        self.ledger = Ledger(ledger_path(args))
        self.quota = Quota.from_env()
        self.compares = compares_rewards()
        self.offline = is_offline()
        self.pictures = SamplePictures(self.ledger, args.hf_checkpoint)
        self.judge_errors = JudgeErrors(self.ledger, str(Path(args.run_dir) / RUNTIME_LOG_NAME))
        self.refusals = int(RuntimeVariables.declared("person_refusals").read(os.environ)[0] or 0)
        self.pace_settings = PaceSettings.from_env()
        self.per_person = args.adapter_per_person
        self.pace = Pace(
            self.ledger,
            args.run_dir,
            self.pace_settings,
            lambda: self.runtime.under_way(),
            per_person=self.per_person,
        )
        self._people: dict[int, tuple[str, int]] = {}
        """Whose the newest batches are, and how often this person had been forgotten when they were collected."""
        self.stopped = threading.Event()
        self.closed_seconds = 0.0
        self._closed_at: float | None = None
        note_waiting(args.run_dir, None)  # of a rollout manager that was killed
        self._runtime: RuntimeSupervisor | None = None
        self._runtime_lock = threading.Lock()

    def before_rollouts(self) -> None:
        """Start the runtime process with the method of the rollout function and return when it serves; no-op when it runs.

        A rollout function that is no `LiveRollout` reads the ledger without a runtime process.

        Raises:
            ValueError: when the arguments do not fit live training, with what to change.
            RuntimeFailedError: when the process does not stay up.
        """
        function = load_function(self.args.rollout_function_path)
        if not isinstance(function, LiveRollout):
            logger.info("%s names no method: no runtime process is started", self.args.rollout_function_path)
            return
        check_arguments(self.args, function.method_path)
        with self._runtime_lock:
            self.judge_for_own_method(function.method_path)
            if self._runtime is None:
                close_share(self.args.run_dir)  # of a rollout manager that was killed
                self._runtime = start_runtime(self.args, function.method_path)

    def judge_for_own_method(self, method_path: str) -> None:
        """Let turns be judged again whose samples, made by another method, no step has used; say how many."""
        if not (makers := self.ledger.judging.makers()):
            return
        own = maker(method_path, self.args.distill_topk)
        if makers == {own}:
            return
        again, dropped = self.ledger.judging.judge_for(own, trains_rewards=trains_rewards(method_path))
        logger.warning(
            "this run goes on with %s: %s of %s will be judged again, %s dropped (reason other_method)",
            *(own, counted(again, "turn"), ", ".join(sorted(makers - {own})), counted(dropped, "sample")),
        )

    def story(self) -> Story:
        """Return where the run serves, which command shows its turns, and where everything else is logged."""
        inspect = f"inspect  {inspect_command(self.args)}"
        if self._runtime is None:
            return Story((inspect,), (inspect,))
        per = f"a step per {self.args.rollout_batch_size} samples"
        if self.pace_settings.by_session:
            per += f", or when a session is over or quiet for {self.pace_settings.quiet_seconds:g} s"
        serves = f"serves   {self._runtime.api_url}; talk to it, and it learns: {per}"
        talk = f"talk     {chat_command(self._runtime.api_url)}, curl or any OpenAI client"
        watch = f"watch    {self._runtime.api_url.removesuffix('v1')} in a browser"
        logs = f"logs     {shown_path(self.args.run_dir)}"
        return Story((serves, talk, watch, inspect, logs), (inspect,))

    @property
    def runtime(self) -> RuntimeSupervisor:
        """The supervisor of the runtime process; RuntimeError when nobody has started one."""
        if self._runtime is None:
            raise RuntimeError(
                f"no runtime process was started for --rollout-function-path {self.args.rollout_function_path}; the driver "
                "starts it for a LiveRollout: write generate_rollout_mymethod = LiveRollout('mymethod_module.MyMethod')"
            )
        return self._runtime

    def may_train(self) -> bool:
        """Return whether a batch that is due may be trained now; while not, the run's folder says why."""
        why, now = self.pace.waits(), time.time()
        if why is not None and self._closed_at is None:
            logger.info("%s", why)
            note_waiting(self.args.run_dir, why, of_people=self.pace_settings.when.idle)
            self._closed_at = now
        elif why is None and self._closed_at is not None:
            logger.info("training goes on after %.0f s", now - self._closed_at)
            note_waiting(self.args.run_dir, None)
            self.closed_seconds += now - self._closed_at
            self._closed_at = None
        return why is None

    def get_samples(self, num_samples: int) -> list[list[Sample]]:
        """Raise: samples come from conversations, not from prompts."""
        raise RuntimeError(
            "the ledger holds judged turns, not prompts; use --rollout-function-path of a method folder, "
            "openclaw_*_rollout.generate_rollout_*"
        )

    def add_samples(self, samples: list[list[Sample]]) -> None:
        """Raise: a leased sample returns only when a checkpoint is restored."""
        raise RuntimeError("leased samples return to the ledger when a checkpoint is restored, not one by one")

    def save(self, rollout_id: int) -> None:
        """Mark the samples of ``rollout_id`` as trained, because a checkpoint with its step is on disk."""
        count = until_available(lambda: self.ledger.samples.mark_trained(rollout_id), self.stopped)
        logger.info("ledger: %d samples became trained, up to rollout %d", count, rollout_id)

    def load(self, rollout_id: int | None = None) -> None:
        """Align the ledger with a restored checkpoint up to ``rollout_id`` (None or -1: the initial weights).

        A person's version serves once a checkpoint has it. So if the run ended before it told of the last one, this one is
        recorded now.
        """
        last = -1 if rollout_id is None else rollout_id
        result = self.ledger.samples.reconcile(last)
        logger.info("ledger %s: rollout %s restored, %s", self.ledger.path, rollout_id, result)
        if self.per_person and self.ledger.samples.saved_not_live() and (person := self.person_of(last)) is not None:
            serving = accepted_versions(self.args.run_dir, person)
            self.weights_live(last, str(serving[0].number) if serving else BASE_VERSION)

    def mark(self, rollout_id: int) -> None:
        """No-op: the leases in the ledger name their rollout."""

    def collected(self, rollout_id: int, due: Due) -> None:
        """Note that the batch of ``rollout_id`` goes to the trainer."""
        self.pace.taken(due)
        if due.person is not None:
            earlier = [known for known in self._people if known != rollout_id][:8]
            now = (due.person, times_forgotten(self.args.run_dir, due.person))
            self._people = {rollout_id: now, **{known: self._people[known] for known in earlier}}

    def person_of(self, rollout_id: int) -> str | None:
        """Return whose adapter the step of ``rollout_id`` trained; None without an adapter per person."""
        if not self.per_person:
            return None
        known = self._people.get(rollout_id)
        return self.ledger.samples.person_of(rollout_id) if known is None else known[0]

    def live_version(self, person: str | None) -> str | None:
        """Return the version that answers a person, or everybody without an adapter per person; None before the first step."""
        if not self.per_person:
            return self.ledger.samples.live_weight_version()
        return self.ledger.samples.live_weight_version(person) or BASE_VERSION

    def weights_live(self, rollout_id: int, version: str, trained_at: float | None = None) -> None:
        """Record that the engines answer with the weights after the step of ``rollout_id``."""
        now = time.time()
        trained = now if trained_at is None else trained_at

        def record() -> None:
            with self.ledger.transaction():  # nobody forgets the person in between
                record_of(self.person_of(rollout_id))

        def record_of(person: str | None) -> None:
            if self.per_person and person is None:
                logger.warning("rollout %d: its samples were deleted meanwhile, so its step is nobody's", rollout_id)
                return
            known = self._people.get(rollout_id)
            if person is not None and known is not None and known[1] != times_forgotten(self.args.run_dir, person):
                logger.warning("rollout %d: its person was forgotten meanwhile, so the adapter goes, too", rollout_id)
                forget_adapter(self.args.run_dir, self.args.save, person)
                return
            self.ledger.samples.record_step(rollout_id, str(version), trained, now, person)

        until_available(record, self.stopped)

    def step_refused(self, rollout_id: int, why: str) -> None:
        """Drop the samples of a batch whose step a fuse held back; the reason is `FUSE`."""
        count = until_available(lambda: self.ledger.samples.drop_leased(rollout_id, FUSE), self.stopped)
        logger.error("rollout %d: %d samples are dropped, because its step was not taken: %s", rollout_id, count, why)

    def step_undone(self, rollout_id: int, why: str) -> None:
        """Quarantine the samples of a batch whose steps the gate undid; ``openclaw-rl accept`` may release them.

        ``OPENCLAW_PERSON_REFUSALS`` refusals of one person's own batches in a row pause this person's training.
        """
        count = until_available(lambda: self.ledger.decisions.quarantine(rollout_id), self.stopped)
        logger.warning("rollout %d: %d samples are in quarantine: %s", rollout_id, count, why)
        refused = until_available(lambda: self.ledger.decisions.refused_in_a_row(rollout_id), self.stopped)
        if refused is not None and refused[1] and refused[1] % self.refusals == 0:
            person, count = refused
            logger.error(
                "%s", pause(self.args.run_dir, rollout_id, f"the gate refused {count} batches in a row", person)
            )

    def gate_decided(self, rollout_id: int, decision: Decision) -> None:
        """Log the decision about a batch."""
        logger.log(logging.INFO if decision.accepted else logging.WARNING, "rollout %d: %s", rollout_id, decision.why)

    def weights_restored(self, rollout_id: int, from_rollout_id: int, version: str) -> None:
        """Record a rollback: the weights after ``rollout_id`` serve as ``version`` in place of those after ``from_rollout_id``."""
        count = until_available(
            lambda: self.ledger.decisions.record_rollback(rollout_id, from_rollout_id, str(version), time.time()),
            self.stopped,
        )
        logger.warning(
            "version %s serves: the weights after rollout %d; %d samples are unlearned", version, rollout_id, count
        )

    def person_restored(self, person: str, to_version: str, version: str) -> None:
        """Record a person's rollback: what was ``to_version`` serves this person as ``version``."""

        def record() -> int:
            decisions = self.ledger.decisions
            if not self.ledger.sessions.of_person(person) and not accepted_versions(self.args.run_dir, person):
                return 0  # forgotten meanwhile
            back, last = decisions.batch_of_version(person, str(to_version)), decisions.last_batch(person)
            if back is None:  # a run that stopped after the checkpoint did not tell that it serves
                back = batch_of(self.args.run_dir, person, str(to_version))
            if back is None:
                raise ValueError(f"the ledger knows no version {to_version} of the adapter that went back to it")
            return decisions.record_rollback(back, last, str(version), time.time(), person, str(to_version))

        count = until_available(record, self.stopped)
        logger.warning("version %s of a person serves: %d samples are unlearned", version, count)

    def check(self) -> None:
        """Log the judge side's last error; raise RuntimeFailedError if the runtime process has failed.

        The driver calls this from time to time.
        """
        self.judge_errors.look()
        if self._runtime is not None:
            self._runtime.check()

    def dispose(self) -> None:
        """End the runtime process and a waiting rollout function."""
        self.stopped.set()
        with self._runtime_lock:
            if self._runtime is not None:
                self._runtime.stop()
            self._runtime = None

    def __len__(self) -> int:
        return self.ledger.samples.ready_count()


def uses_ledger(args: Arguments) -> bool:
    """Return whether the run's data source is the ledger's."""
    source = load_function(args.data_source_path)
    return isinstance(source, type) and issubclass(source, LedgerDataSource)


def live_rollout(
    args: Arguments, rollout_id: int, data_source: Any, evaluation: bool = False
) -> RolloutFnTrainOutput | RolloutFnEvalOutput:
    """Do the work of a `LiveRollout`."""
    if evaluation:
        output, _ = run(eval_rollout(args, rollout_id))
        return output
    if not isinstance(data_source, LedgerDataSource):
        raise ValueError(
            "live training reads the ledger; add --data-source-path openclaw.training.rollout.LedgerDataSource"
        )
    supervisor = data_source.runtime
    started, data_source.closed_seconds = time.monotonic(), 0.0
    samples, dropped, due = collect(args, rollout_id, data_source, supervisor)
    metrics = batch_metrics(
        data_source.ledger, samples, args.max_weight_staleness if args.stale_samples == "correct" else None, due.person
    )
    metrics |= {
        "openclaw/wait_seconds": time.monotonic() - started,
        "openclaw/train_when_seconds": data_source.closed_seconds,
        "openclaw/passes": float(due.passes or 1),
        "openclaw/of_one_person": float(due.person is not None),
        "openclaw/dropped_stale": float(dropped),
        "openclaw/runtime_restarts": float(supervisor.restarts),
        "openclaw/runtime_frozen": float(supervisor.frozen),
    }
    return RolloutFnTrainOutput([[sample] for sample in samples], metrics, person=due.person, passes=due.passes)


def collect(
    args: Arguments, rollout_id: int, source: LedgerDataSource, supervisor: RuntimeSupervisor
) -> tuple[list[Sample], int, Due]:
    """Lease the batch that is due (`openclaw.training.pace`); return it, the number of samples dropped as stale, and what it is.

    An episode is stale as a whole.

    With ``--stale-samples mask`` stale tokens get loss mask 0, and only a rollout of which nothing is left is dropped. With
    ``correct`` none is dropped: the loss weighs tokens by their likelihood under the trainer's weights.
    """
    ledger = source.ledger
    dropped = 0
    while True:
        due = wait_for_samples(source, rollout_id, supervisor)
        of = (due.person, due.origin, source.pace.paused())
        claim = partial(ledger.samples.claim, rollout_id, due.count, source.quota, *of)
        samples = until_available(claim, source.stopped)
        version = source.live_version(due.person)
        bound = args.max_weight_staleness
        rollouts, rescored = fresh_scores(source, by_rollout(samples), version, bound)
        old = [pieces for pieces in rollouts if too_old(pieces, version, bound, args.stale_samples)]
        for pieces in old:
            sample_id = pieces[0].metadata["ledger_id"]
            until_available(partial(ledger.samples.drop, sample_id, STALE, rollout_id), source.stopped)
        stale = sum(map(len, old))
        dropped += stale
        blind = (
            0 if stale else drop_blind(source, rollouts, rollout_id) or drop_unfit(args, source, rollouts, rollout_id)
        )
        if rescored:
            logger.info("rollout %d: the scores of %d samples of logs are renewed", rollout_id, rescored)
        if not stale and not blind and len(rollouts) == due.count:  # fewer if a session was deleted meanwhile
            source.collected(rollout_id, due)
            prepared = [prepare(item, version, source.compares, pieces[0]) for pieces in rollouts for item in pieces]
            return prepared, dropped, due
        if stale:
            logger.warning("rollout %d: dropped %d stale samples, more than %s updates old", rollout_id, stale, bound)


def drop_blind(source: LedgerDataSource, rollouts: list[list[Sample]], rollout_id: int) -> int:
    """Give samples the pictures that their turns saw; drop the rollouts that lack one, and return their number."""
    shown = [[source.pictures.show(sample) for sample in pieces] for pieces in rollouts]
    blind = [pieces[0] for pieces, seen in zip(rollouts, shown, strict=True) if not all(seen)]
    for first in blind:
        drop = partial(source.ledger.samples.drop, first.metadata["ledger_id"], NO_PICTURE, rollout_id)
        until_available(drop, source.stopped)
    return len(blind)


def why_no_datum(sample: Sample, context: int | None) -> str | None:
    """Return why a service can train no datum of a sample, or None; ``context``: most tokens that the service trains on."""
    log_probs = sample.rollout_log_probs
    if sample.multimodal_train_inputs:
        return "it has pictures, of which the interface gets the tokens only"
    if log_probs is None or len(log_probs) != sample.response_length:
        return (
            f"it has {0 if log_probs is None else len(log_probs)} log probabilities for {sample.response_length} tokens"
        )
    if not all(map(math.isfinite, log_probs)):
        return "a log probability is not a finite number"
    if sample.response_length >= len(sample.tokens):
        return "it has no token before the reply"
    if context is not None and len(sample.tokens) - 1 > context:
        return f"it has {len(sample.tokens)} tokens, and the service trains on {context}"
    return None


def drop_unfit(args: Arguments, source: LedgerDataSource, rollouts: list[list[Sample]], rollout_id: int) -> int:
    """Drop the rollouts of which a service of ``--train-backend tinker`` cannot train a sample, and return their number."""
    if not is_rented(args):
        return 0
    reasons = [
        next(filter(None, (why_no_datum(sample, args.rollout_max_context_len) for sample in pieces)), None)
        for pieces in rollouts
    ]
    unfit = [(pieces[0], why) for pieces, why in zip(rollouts, reasons, strict=True) if why is not None]
    for first, why in unfit:
        logger.warning("rollout %d: a sample is not trained: %s", rollout_id, why)
        drop = partial(source.ledger.samples.drop, first.metadata["ledger_id"], NO_DATUM, rollout_id)
        until_available(drop, source.stopped)
    return len(unfit)


def fresh_scores(
    source: LedgerDataSource, rollouts: list[list[Sample]], version: str | None, bound: int | None
) -> tuple[list[list[Sample]], int]:
    """Return the rollouts without those of logs whose scores are too old, and the number of these; they are scored again."""
    if not source.offline:
        return rollouts, 0
    old = [
        pieces
        for pieces in rollouts
        if pieces[0].metadata.get(SCORED)
        and is_stale(pieces[0], version, bound)
        and until_available(partial(source.ledger.logs.score_again, pieces[0].metadata["ledger_id"]), source.stopped)
    ]
    return [pieces for pieces in rollouts if pieces not in old], len(old)


def by_rollout(samples: list[Sample]) -> list[list[Sample]]:
    """Return the samples of each rollout: one sample of a turn, or all of an episode."""
    rollouts: dict[str | int, list[Sample]] = {}
    for sample in samples:
        rollouts.setdefault(rollout_of(sample), []).append(sample)
    return list(rollouts.values())


def is_offline(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the run trains from logs and ends when they are used, as ``OPENCLAW_OFFLINE`` says."""
    return bool(RuntimeVariables.declared("offline").read(environment)[0])


def compares_rewards(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether rewards are compared with earlier ones, as ``OPENCLAW_BASELINE`` says."""
    return bool(RuntimeVariables.declared("baseline").read(environment)[0])


def wait_for_samples(source: LedgerDataSource, rollout_id: int, supervisor: RuntimeSupervisor) -> Due:
    """Wait until a batch is due and may be trained, and return it; log judge errors at once and the progress every ten seconds.

    While ``OPENCLAW_TRAIN_WHEN`` forbids a step, the reason is in ``waiting.json`` of the run's folder (`groundwork.paused`).

    Raises:
        DataUsedError: the run trains from logs, and fewer are left.
        InterruptedError: the data source was disposed of meanwhile.
    """
    ledger, wanted = source.ledger, source.args.rollout_batch_size
    next_word = time.monotonic() + PROGRESS_SECONDS
    while True:
        used = source.offline and ledger.logs.nothing_to_come()  # before the count, so that no last sample is missed
        due = source.pace.due(rollout_id, wanted)
        if due is not None and source.may_train():
            return due
        if used and due is None:
            raise DataUsedError(
                used_text(ledger, source.args.rollout_batch_size, ledger.samples.leased_count(rollout_id))
            )
        supervisor.check()
        source.judge_errors.look()
        if source.stopped.wait(POLL_SECONDS):
            ready = ledger.samples.ready_count()
            raise InterruptedError(f"rollout {rollout_id} was cancelled with {ready} of {wanted} samples ready")
        if time.monotonic() >= next_word:
            next_word += PROGRESS_SECONDS
            counts = ledger.views.counts()
            logger.info(
                "rollout %d: %d of %d samples ready; turns %s, without a sample %s",
                rollout_id,
                ledger.samples.ready_count(),
                wanted - ledger.samples.leased_count(rollout_id),
                counts["turns"],
                counts["turn_reasons"],
            )


def used_text(ledger: Ledger, batch_size: int, held: int) -> str:
    """Return what the run did with its logs, by reason; ``held`` samples wait in a batch that does not become full."""
    counts = ledger.views.counts()
    samples = counts["samples"]
    used, left = samples.get("leased", 0) + samples.get("trained", 0) - held, samples.get("ready", 0) + held
    steps = ledger.logs.batches_taken() - bool(held)
    reasons = [
        f"{name} {count}" for group in ("turn_reasons", "sample_reasons") for name, count in counts[group].items()
    ]
    rest = f", {left} left, too few for a batch of {batch_size}" if left else ""
    scored = f" ({counts['scored']} turns scored from text)" if counts["scored"] else ""
    return (
        f"data     all used: {counted(used, 'sample')} in {counted(steps, 'step')}{rest}{scored}; "
        f"not trained: {', '.join(reasons) or 'nothing'}"
    )


def staleness(sample: Sample, live_version: str | None) -> int:
    """Return the number of updates between the oldest weights that sampled the reply and the live weights.

    It is an absolute value: weights undone by restoring a checkpoint are ahead of the live ones.
    """
    if live_version is None or not sample.weight_versions:
        return 0
    live = version_number(live_version)
    return max(abs(live - version_number(version)) for version in sample.weight_versions)


def too_old(rollout: Sequence[Sample], live_version: str | None, bound: int | None, mode: str) -> bool:
    """Return whether no token of a rollout may be trained; with the mode ``mask``, zero the masks of those that may not.

    Args:
        rollout: its samples.
        live_version: the weights that serve.
        bound: ``--max-weight-staleness``.
        mode: ``--stale-samples``.
    """
    if mode == "correct" or bound is None or not any(is_stale(sample, live_version, bound) for sample in rollout):
        return False
    if mode == "mask":
        live = version_number(live_version or "")
        for sample in rollout:
            sample.metadata[MASKED] = mask_stale(sample, live, bound)
        return not any(any(sample.loss_mask or []) for sample in rollout)
    return True


def is_stale(sample: Sample, live_version: str | None, bound: int | None) -> bool:
    """Return whether a sample's staleness exceeds ``bound``; False without a bound."""
    return bound is not None and staleness(sample, live_version) > bound


def prepare(sample: Sample, live_version: str | None, compares: bool, first: Sample | None = None) -> Sample:
    """Return a leased sample as the trainer reads it; every sample is its own advantage group.

    The rewards of an episode were compared within its group already (`openclaw.credit.episodes`). Its samples are one
    rollout, so that all of its tokens share a denominator.

    Args:
        sample: as `openclaw.ledger.samples.Samples.claim` returned it; changed in place.
        live_version: the weights that serve.
        compares: subtract the baseline of earlier rewards (`openclaw.credit.baseline`) from its reward.
        first: the first sample of its rollout; default: itself.
    """
    if compares:
        sample.reward -= sample.metadata.get(BASELINE, 0.0)
    sample.index = sample.group_index = sample.metadata["ledger_id"]
    if "episode" in sample.metadata:
        sample.rollout_id = (first or sample).metadata["ledger_id"]
    sample.metadata["staleness"] = staleness(sample, live_version)
    return sample


def until_available(call: Callable[[], T], stopped: threading.Event) -> T:
    """Return ``call()``; retry every `LEDGER_PAUSE_SECONDS` while the ledger is unavailable.

    Raises:
        InterruptedError: if ``stopped`` is set meanwhile.
    """
    while True:
        try:
            return call()
        except LedgerUnavailableError as error:
            logger.error("waiting for the ledger: %s", error)
            if stopped.wait(LEDGER_PAUSE_SECONDS):
                raise InterruptedError(f"cancelled while waiting for the ledger: {error}") from error


LOOK_SECONDS = 1.0
REPEAT_SECONDS = 60.0


class JudgeErrors:
    """Tells the driver's terminal why turns stay unjudged: the judge side's last error in the ledger.

    A new error is logged at the next look, one a second at most. The same error is repeated once a minute while turns stay
    pending for it. A ledger that cannot be read is left to those who need it.
    """

    def __init__(self, ledger: Ledger, log: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Create it; ``log`` is the file with the traceback."""
        self._ledger = ledger
        self._log = log
        self._clock = clock
        self._next_look = 0.0
        self._said = ""
        self._said_at = 0.0

    def look(self) -> None:
        """Log the last error if it is new, or was last logged a minute ago."""
        now = self._clock()
        if now < self._next_look:
            return
        self._next_look = now + LOOK_SECONDS
        try:
            judge_error = self._ledger.views.judge_error()
        except LedgerUnavailableError:
            return
        if judge_error is None:
            self._said = ""
        elif judge_error.error != self._said or now >= self._said_at + REPEAT_SECONDS:
            self._said, self._said_at = judge_error.error, now
            logger.warning("judge: %s; the traceback is in %s", judge_error, self._log)


MASKED = "masked_stale"
"""Entry of a sample's metadata: how many of its tokens are not trained because their weights are too old."""
DEGENERATE = ("truncated", "repetition")
"""Reasons of `openclaw.judge.hygiene` that show a policy falling apart; such replies are in no batch."""


def batch_metrics(
    ledger: Ledger, samples: list[Sample], bound: int | None, person: str | None = None
) -> dict[str, float]:
    """Return a batch's metrics: staleness, terms, owners, and the ledger's counts by state and reason.

    ``bound`` is ``--max-weight-staleness`` if samples beyond it are trained with correction, otherwise None; ``person``:
    whose replies count as degenerate or not, None: everybody's.
    """
    counts = ledger.views.counts()
    stale = [sample.metadata["staleness"] for sample in samples]
    hinted = [s for s in samples if s.teacher_log_probs is not None or s.teacher_topk_indices is not None]
    owners = Counter(root(owner_of(sample.session_id or "")) for sample in samples)
    of_episodes = [sample for sample in samples if "episode" in sample.metadata]
    metrics = {
        "openclaw/staleness_min": float(min(stale)),
        "openclaw/staleness_mean": sum(stale) / len(stale),
        "openclaw/staleness_max": float(max(stale)),
        "openclaw/corrected_stale": 0.0 if bound is None else float(sum(age > bound for age in stale)),
        "openclaw/masked_stale_tokens": float(sum(sample.metadata.get(MASKED, 0) for sample in samples)),
        "openclaw/hinted_share": len(hinted) / len(samples),
        "openclaw/scored_share": sum(SCORED in sample.metadata for sample in samples) / len(samples),
        "openclaw/feedback_scored_share": sum(WEIGHT in sample.metadata for sample in samples) / len(samples),
        "openclaw/baseline": sum(sample.metadata.get(BASELINE, 0.0) for sample in samples) / len(samples),
        "openclaw/degenerate_share": ledger.views.degenerate_share(DEGENERATE, person),
        "openclaw/owners": float(len(owners)),
        "openclaw/largest_owner_share": max(owners.values()) / len(samples),
        "openclaw/episodes": float(len({sample.metadata["episode"] for sample in of_episodes})),
        "openclaw/episode_segments": float(len(of_episodes)),
        "openclaw/episode_turns": float(sum(len(sample.metadata["turns"]) for sample in of_episodes)),
        "openclaw/queue_depth": float(counts["samples"].get("ready", 0)),
    }
    for group in ("turns", "samples", "turn_reasons", "sample_reasons"):
        metrics |= {f"openclaw/{group}/{name}": float(count) for name, count in counts[group].items()}
    return metrics


class SamplePictures:
    """Gives leased samples whose turns saw pictures the pixel values that the trainer reads.

    These are the processor's of the stored files, which are at the model's size: the same computation as for agents' screens
    (`agentrl.rollout.episode`). A sample whose tokens do not have its pictures where the ledger says is not trained. Owns the
    processor, which the first picture loads.
    """

    def __init__(self, ledger: Ledger, checkpoint: str) -> None:
        """Prepare for the samples of ``ledger`` and the model of ``checkpoint``."""
        self._ledger = ledger
        self._checkpoint = checkpoint

    @cached_property
    def _processor(self) -> Any:
        processor = load_processor(self._checkpoint)
        if processor is None:
            raise ConfigError(
                f"the ledger has turns with pictures, but {self._checkpoint} sees none; give the Qwen3-VL checkpoint that "
                "answered them to --hf-checkpoint"
            )
        return processor

    def show(self, sample: Sample) -> bool:
        """Set a sample's pixel values; return False if its tokens are not those of the turn that saw the pictures.

        A sample of several turns has the pictures of its last one, whose prompt extends the others.
        """
        turn = (sample.metadata.get("turns") or [sample.metadata["turn_id"]])[-1]
        pictures = self._ledger.pictures.of(turn)
        if not pictures:
            return True
        if not _has(sample, pictures, self._processor.image_token_id):
            name = sample.metadata["ledger_id"]
            logger.error("sample %s is not trained: its tokens lack the pictures of turn %s", name, turn)
            return False
        images = [open_image(picture.png) for picture in pictures]
        sample.multimodal_train_inputs = picture_tensors(self._processor, images)
        return True


def _has(sample: Sample, pictures: list[SeenPicture], placeholder: int) -> bool:
    return all(
        sample.tokens[picture.start : picture.start + picture.tokens] == [placeholder] * picture.tokens
        for picture in pictures
    )
