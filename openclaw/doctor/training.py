"""Checks of samples and steps: pauses, the gate, staleness, the mismatch of trainer and engines, and slow batches."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from statistics import median

from openclaw.doctor.finding import Finding, Severity, part
from openclaw.doctor.look import Look
from openclaw.runs.metrics_file import MISMATCH, MISMATCH_LIMIT

FEW = 10
SOME = 0.1
REFUSALS = 3
STEPS = 20
MIN_STEPS = 3
SILENT_TURNS = 20
SILENT_SECONDS = 600.0
MIN_SECONDS = 1800.0
SLOW_SECONDS = 3600.0


def paused(look: Look) -> Iterator[Finding]:
    """Find a training that a fuse has paused."""
    if look.paused is not None:
        yield Finding(
            "paused",
            Severity.STOPS,
            "a fuse has paused the training; the last good weights serve",
            str(look.paused),
            f"openclaw-rl resume {look.run.shown}, once you know why; openclaw-rl report shows the curves",
        )


def gate_refuses(look: Look) -> Iterator[Finding]:
    """Find a gate that refuses one update after the other."""
    refused = [*takewhile(lambda each: each.kind == "refused", reversed(look.decisions))]
    if len(refused) >= REFUSALS:
        if all(item.by_margin for item in refused[:REFUSALS]):
            remedy = f"if the change is wanted: openclaw-rl accept {look.run.shown}"
        else:
            remedy = (
                "if the updates go too far, lower LEARNING_RATE; if a reason names a bound that is too strict, raise it"
            )
        yield Finding(
            "gate_refuses",
            Severity.STOPS,
            "the gate refuses one update after the other, so the weights stay as they are",
            f"the last {len(refused)} decisions; the newest: {refused[0].why}",
            f"openclaw-rl versions {look.run.shown} lists them; {remedy}",
        )


def stale(look: Look) -> Iterator[Finding]:
    """Find samples that are too old when their batch is made."""
    dropped = sum(sample.reason == "stale" for sample in look.samples)
    used = sum(sample.state in ("leased", "trained") for sample in look.samples)
    if dropped >= FEW / 2 and dropped >= SOME * (dropped + used):
        bound = look.settings.get("max_weight_staleness")
        yield Finding(
            "stale",
            Severity.STOPS if not used else Severity.LOSES,
            "samples are dropped as stale",
            f"{part(dropped, dropped + used)} of the newest samples that a batch took; MAX_WEIGHT_STALENESS is {bound}",
            "raise MAX_WEIGHT_STALENESS, train them with --stale-samples correct, or take fewer steps with a larger BATCH_SIZE",
        )


def mismatch(look: Look) -> Iterator[Finding]:
    """Find engines whose log-probabilities are not the trainer's."""
    values = list(look.series.get(MISMATCH, {}).values())[-STEPS:]
    if len(values) >= MIN_STEPS and (middle := median(values)) > MISMATCH_LIMIT:
        yield Finding(
            "mismatch",
            Severity.LOSES,
            "trainer and engines disagree about the probabilities of the sampled tokens",
            f"{MISMATCH} has a median of {middle:.3g} nats per token over the last {len(values)} steps; "
            f"above {MISMATCH_LIMIT} is too much",
            "if the samples are stale, lower MAX_WEIGHT_STALENESS; otherwise make the engine exact: no quantised cache, "
            "the trainer's precision",
        )


def no_samples(look: Look) -> Iterator[Finding]:
    """Find conversations that have stopped giving samples."""
    last = max((sample.created_at for sample in look.samples), default=0.0)
    settled = [turn for turn in look.mains if turn.state not in ("waiting", "pending")]
    since = [turn for turn in settled if turn.finished_at > last]
    if len(since) < SILENT_TURNS or look.last_at - max(last, since[0].created_at) < SILENT_SECONDS:
        return
    why = ", ".join(f"{name} {count}" for name, count in look.reasons.most_common(3)) or "they are not judged yet"
    yield Finding(
        "no_samples",
        Severity.STOPS,
        "the conversations give no samples any more",
        f"{len(since)} turns in the last {(look.last_at - max(last, since[0].created_at)) / 60:.0f} minutes gave none; reasons: {why}",
        f"openclaw-rl report {look.run.shown} says what each reason means",
    )


def slow_batches(look: Look) -> Iterator[Finding]:
    """Find a batch that the traffic takes hours to fill."""
    size = look.settings.get("rollout_batch_size")
    rollouts = [sample for sample in look.samples if not sample.of_episode]
    if not isinstance(size, int) or not rollouts:
        return
    span = look.last_at - min(turn.created_at for turn in look.turns)
    needed = span / len(rollouts) * size
    if span >= MIN_SECONDS and needed > SLOW_SECONDS:
        yield Finding(
            "slow_batches",
            Severity.WATCH,
            "a batch is larger than the traffic fills in an hour, so updates are rare",
            f"{len(rollouts)} samples in {span / 3600:.1f} hours; a batch of {size} takes {needed / 3600:.1f} hours",
            "start the run with a smaller BATCH_SIZE, such as 8",
        )
