"""The bridge from the ledger to the trainer: a data source and a rollout function that any method folder can use.

Guarantees: a batch is ``--rollout-batch-size`` samples that all carry gradient, leased to its rollout id in the ledger;
what exceeds it waits for the next batch. Nothing leaves the ledger silently: a sample that is too stale is dropped with
that reason, or trained with an importance weight and counted. The driver's bring-up starts the runtime process through
`LedgerDataSource.before_rollouts`, and it belongs to the data source. The ledger file holds all other state.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from openclaw.ledger.exceptions import LedgerUnavailableError
from openclaw.ledger.store import Ledger
from openclaw.runtime.process import RuntimeSupervisor
from openclaw.runtime.start import ledger_path, start_runtime
from openclaw.training.live_arguments import check_arguments
from slime.args import Arguments
from slime.rollout.base_types import RolloutFnEvalOutput, RolloutFnTrainOutput
from slime.rollout.data_source import DataSource
from slime.rollout.sglang_rollout import eval_rollout
from slime.utils.async_utils import run
from slime.utils.misc import load_function
from slime.utils.types import Sample

logger = logging.getLogger(__name__)

PROGRESS_SECONDS = 10.0
POLL_SECONDS = 0.2
LEDGER_PAUSE_SECONDS = 2.0
STALE = "stale"
T = TypeVar("T")


class LedgerDataSource(DataSource):
    """``--data-source-path openclaw.training.rollout.LedgerDataSource``: ties the ledger to checkpoints and live weights.

    Owns the runtime process: `before_rollouts` starts it, `dispose` ends it.
    """

    def __init__(self, args: Arguments) -> None:
        self.args = args
        self.ledger = Ledger(ledger_path(args))
        self.stopped = threading.Event()
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
            if self._runtime is None:
                self._runtime = start_runtime(self.args, function.method_path)

    @property
    def runtime(self) -> RuntimeSupervisor:
        """The supervisor of the runtime process; RuntimeError when nobody has started one."""
        if self._runtime is None:
            raise RuntimeError(
                f"no runtime process was started for --rollout-function-path {self.args.rollout_function_path}; the driver "
                "starts it for a LiveRollout: write generate_rollout_mymethod = LiveRollout('mymethod_module.MyMethod')"
            )
        return self._runtime

    def get_samples(self, num_samples: int) -> list[list[Sample]]:
        """Refuse: samples come from conversations, not from prompts."""
        raise RuntimeError(
            "the ledger holds judged turns, not prompts; use --rollout-function-path of a method folder, "
            "openclaw_*_rollout.generate_rollout_*"
        )

    def add_samples(self, samples: list[list[Sample]]) -> None:
        """Refuse: a leased sample comes back by restoring a checkpoint."""
        raise RuntimeError("leased samples return to the ledger when a checkpoint is restored, not one by one")

    def save(self, rollout_id: int) -> None:
        """A checkpoint that contains the step of ``rollout_id`` is on disk: its samples are trained."""
        count = until_available(lambda: self.ledger.mark_trained(rollout_id), self.stopped)
        logger.info("ledger: %d samples are trained up to rollout %d", count, rollout_id)

    def load(self, rollout_id: int | None = None) -> None:
        """A checkpoint up to ``rollout_id`` was restored (None or -1: the initial weights)."""
        result = self.ledger.reconcile(-1 if rollout_id is None else rollout_id)
        logger.info("ledger %s: rollout %s restored, %s", self.ledger.path, rollout_id, result)

    def mark(self, rollout_id: int) -> None:
        """Nothing to note: the leases in the ledger name their rollout."""

    def weights_live(self, rollout_id: int, version: str, trained_at: float | None = None) -> None:
        """The engines answer with the weights that the step of ``rollout_id`` made."""
        now = time.time()
        trained = now if trained_at is None else trained_at
        until_available(lambda: self.ledger.record_step(rollout_id, str(version), trained, now), self.stopped)

    def check(self) -> None:
        """Raise RuntimeFailedError when nobody can talk to the policy any more; the driver asks now and then."""
        if self._runtime is not None:
            self._runtime.check()

    def dispose(self) -> None:
        """End the runtime process, and a rollout function that waits."""
        self.stopped.set()
        with self._runtime_lock:
            if self._runtime is not None:
                self._runtime.stop()
            self._runtime = None

    def __len__(self) -> int:
        return self.ledger.ready_count()


class LiveRollout:
    """The rollout function of a method that learns from conversations.

    Attributes:
        method_path: ``module.attribute`` of the method that the runtime process runs.
    """

    def __init__(self, method_path: str) -> None:
        self.method_path = method_path

    def __call__(
        self, args: Arguments, rollout_id: int, data_source: Any, evaluation: bool = False
    ) -> RolloutFnTrainOutput | RolloutFnEvalOutput:
        """Return the batch of ``rollout_id``, waiting until the conversations gave enough samples.

        Args:
            args: of the run.
            rollout_id: the samples are leased to it.
            data_source: a `LedgerDataSource` whose runtime process is started.
            evaluation: evaluate on ``--eval-prompt-data`` instead.

        Raises:
            ValueError: when the data source is another one.
            RuntimeFailedError: when the runtime process does not stay up.
            InterruptedError: when the data source was disposed of meanwhile.
        """
        if evaluation:
            output, _ = run(eval_rollout(args, rollout_id))
            return output
        if not isinstance(data_source, LedgerDataSource):
            raise ValueError(
                "live training reads the ledger; add --data-source-path openclaw.training.rollout.LedgerDataSource"
            )
        supervisor = data_source.runtime
        started = time.monotonic()
        samples, dropped = collect(args, rollout_id, data_source, supervisor)
        metrics = batch_metrics(data_source.ledger, samples, args.max_weight_staleness)
        metrics |= {
            "openclaw/wait_seconds": time.monotonic() - started,
            "openclaw/dropped_stale": float(dropped),
            "openclaw/runtime_restarts": float(supervisor.restarts),
        }
        return RolloutFnTrainOutput(samples=[[sample] for sample in samples], metrics=metrics)


def collect(
    args: Arguments, rollout_id: int, source: LedgerDataSource, supervisor: RuntimeSupervisor
) -> tuple[list[Sample], int]:
    """Lease a full batch; return it and how many samples were dropped as stale.

    With ``--stale-samples correct`` none is: the loss weighs its tokens by how likely the trainer's weights find them.
    """
    ledger, wanted = source.ledger, args.rollout_batch_size
    dropped = 0
    while True:
        held = ledger.leased_count(rollout_id)
        wait_for_samples(ledger, rollout_id, wanted - held, source.stopped, supervisor)
        samples = until_available(lambda: ledger.claim_samples(rollout_id, wanted), source.stopped)
        version = ledger.live_weight_version()
        bound = args.max_weight_staleness if args.stale_samples == "drop" else None
        stale = [sample for sample in samples if is_stale(sample, version, bound)]
        for sample in stale:
            sample_id = sample.metadata["ledger_id"]
            until_available(partial(ledger.drop_sample, sample_id, STALE, rollout_id), source.stopped)
        dropped += len(stale)
        if not stale and len(samples) == wanted:  # fewer when a session was forgotten meanwhile
            return [prepare(sample, version) for sample in samples], dropped
        if stale:
            logger.warning(
                "rollout %d: dropped %d samples of weights more than %s updates away", rollout_id, len(stale), bound
            )


def wait_for_samples(
    ledger: Ledger, rollout_id: int, count: int, stopped: threading.Event, supervisor: RuntimeSupervisor
) -> None:
    """Return when ``count`` samples are ready; say every ten seconds how far it is."""
    next_word = time.monotonic() + PROGRESS_SECONDS
    while (ready := ledger.ready_count()) < count:
        supervisor.check()
        if stopped.wait(POLL_SECONDS):
            raise InterruptedError(f"rollout {rollout_id} was given up with {ready} of {count} samples ready")
        if time.monotonic() >= next_word:
            next_word += PROGRESS_SECONDS
            counts = ledger.counts()
            logger.info(
                "rollout %d: %d of %d samples ready; turns %s, without a sample %s",
                rollout_id,
                ready,
                count,
                counts["turns"],
                counts["turn_reasons"],
            )


def version_number(version: str) -> int:
    """Return a weight version as a number; the name an engine starts with (``default``) is 0."""
    return 0 if version == "default" else int(version)


def staleness(sample: Sample, live_version: str | None) -> int:
    """Return how many updates lie between the oldest weights that sampled the reply and those that are live.

    Samples of weights that were undone by restoring a checkpoint are as far away on the other side.
    """
    if live_version is None or not sample.weight_versions:
        return 0
    live = version_number(live_version)
    return max(abs(live - version_number(version)) for version in sample.weight_versions)


def is_stale(sample: Sample, live_version: str | None, bound: int | None) -> bool:
    """Return whether a sample is more than ``bound`` updates away from the live weights; never without a bound."""
    return bound is not None and staleness(sample, live_version) > bound


def prepare(sample: Sample, live_version: str | None) -> Sample:
    """Give a leased sample the indices that the trainer's side groups by; every turn is a group of its own."""
    sample.index = sample.group_index = sample.metadata["ledger_id"]
    sample.metadata["staleness"] = staleness(sample, live_version)
    return sample


def batch_metrics(ledger: Ledger, samples: list[Sample], bound: int | None) -> dict[str, float]:
    """Return what the tracker shows of a batch: staleness, terms, and the ledger's counts by state and reason.

    ``bound`` is ``--max-weight-staleness``; what lies beyond it and is in the batch is trained with correction.
    """
    counts = ledger.counts()
    stale = [sample.metadata["staleness"] for sample in samples]
    hinted = [sample for sample in samples if sample.teacher_log_probs is not None]
    metrics = {
        "openclaw/staleness_min": float(min(stale)),
        "openclaw/staleness_mean": sum(stale) / len(stale),
        "openclaw/staleness_max": float(max(stale)),
        "openclaw/corrected_stale": 0.0 if bound is None else float(sum(age > bound for age in stale)),
        "openclaw/hinted_share": len(hinted) / len(samples),
        "openclaw/queue_depth": float(counts["samples"].get("ready", 0)),
    }
    for group in ("turns", "samples", "turn_reasons", "sample_reasons"):
        metrics |= {f"openclaw/{group}/{name}": float(count) for name, count in counts[group].items()}
    return metrics


def until_available(call: Callable[[], T], stopped: threading.Event) -> T:
    """Return ``call()``, made again every `LEDGER_PAUSE_SECONDS` while the ledger is full, locked or not writable.

    Raises:
        InterruptedError: when ``stopped`` is set meanwhile.
    """
    while True:
        try:
            return call()
        except LedgerUnavailableError as error:
            logger.error("waiting for the ledger: %s", error)
            if stopped.wait(LEDGER_PAUSE_SECONDS):
                raise InterruptedError(f"given up while waiting for the ledger: {error}") from error
