"""All checks of a run, and the order of what they find.

They are of processes and disk (`scripts/setup.sh doctor` checks the machine itself); of samples and steps: pauses, the gate,
staleness, the mismatch of trainer and engines, slow batches; of judge and teacher; and of what reaches the judge: side turns,
missing next states, sampling parameters, secrets, other exclusions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import IntEnum
from itertools import takewhile
from pathlib import Path
from statistics import median
from typing import Any

from openclaw.doctor.look import Disk, Look, look, real_disk
from openclaw.runs.folder import RunFolder
from openclaw.runs.metrics_file import MISMATCH, MISMATCH_LIMIT
from openclaw.runs.reasons import explain


class Severity(IntEnum):
    """How serious a finding is; the most serious one first."""

    STOPS = 0
    """The run learns nothing, or not any more."""
    LOSES = 1
    """Much of what people say is lost, or learned wrongly."""
    WATCH = 2
    """It works, but slowly or at a risk."""


@dataclass(frozen=True)
class Finding:
    """What is wrong.

    Attributes:
        name: of the check's finding.
        severity: how serious it is.
        title: what is wrong, one line.
        evidence: the numbers.
        remedy: what to do, or to type.
    """

    name: str
    severity: Severity
    title: str
    evidence: str
    remedy: str

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return {**asdict(self), "severity": self.severity.name.lower()}


def part(count: int, total: int) -> str:
    """Return ``count of total (share)``."""
    return f"{count} of {total} ({100 * count / max(1, total):.0f} %)"


# Processes and disk

MIN_DISK = 2 * 2**30
MIN_SHARE = 0.02
MANY_RESTARTS = 3


def restarts(look: Look) -> Iterator[Finding]:
    """Find a runtime process that died or froze."""
    counted = list(look.series.get("openclaw/runtime_restarts", {}).values())
    frozen = list(look.series.get("openclaw/runtime_frozen", {}).values())
    count = max(look.restarts, int(counted[-1]) if counted else 0)
    if count:
        yield Finding(
            "restarts",
            Severity.LOSES if count >= MANY_RESTARTS else Severity.WATCH,
            "the runtime process had to be restarted",
            f"{count} restarts by the newest driver, {int(frozen[-1]) if frozen else 0} of them of a frozen process",
            "logs/processes.log and runtime.log name the reason and the requests that were under way",
        )


def disk(look: Look) -> Iterator[Finding]:
    """Find a disk that is nearly full."""
    free, total = look.disk.free, look.disk.total
    if free < MIN_DISK or free < MIN_SHARE * total:
        yield Finding(
            "disk",
            Severity.LOSES,
            "the disk is nearly full; without space nothing can be recorded or saved",
            f"{free / 2**30:.1f} of {total / 2**30:.0f} GiB are free where the ledger is",
            "delete old checkpoints, set OPENCLAW_RETENTION_DAYS, or move the run to a larger disk",
        )


# Samples and steps

FEW = 10
SOME = 0.2
STALE = 0.1
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


def people_paused(look: Look) -> Iterator[Finding]:
    """Find people whose training is paused, while that of the others goes on."""
    for note in look.people_paused.values():
        yield Finding(
            "person_paused",
            Severity.LOSES,
            f"the training of {note.shown} is paused, and that of the others goes on",
            str(note),
            f"openclaw-rl resume {look.run.shown} --person {note.shown}, once you know why",
        )


def certificate(look: Look) -> Iterator[Finding]:
    """Find an update that was not learned, or that the engines do not answer with."""
    if causes := _causes(look):
        last = look.certified
        assert last is not None
        yield Finding(
            "certificate",
            Severity.STOPS,
            "the certificate of the newest update is red, so the weights stay as they are",
            f"batch {last.rollout_id}: {last.why}",
            f"{'; '.join(causes)}; see instructions/certificate.md",
        )


def _causes(look: Look) -> list[str]:
    """Return what the newest certificate says against its update, with what to do."""
    last = look.certified
    return [] if last is None or last.certificate is None else list(last.certificate["causes"])


def gate_refuses(look: Look) -> Iterator[Finding]:
    """Find a gate that refuses one update after the other, with green certificates."""
    if _causes(look):
        return
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
    if dropped >= FEW / 2 and dropped >= STALE * (dropped + used):
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


# The judge and the teacher

ABSTAINS = 0.3
NEUTRAL = 0.8
SPLIT = 0.5
ONE_WAY = 0.98
MIN_ONE_WAY = 50
NO_HINTS = 20
BACKLOG_SECONDS = 600.0
GRAMMAR = "set OPENCLAW_JUDGE_GRAMMAR=1 (an SGLang judge then ends every answer in a box), or use a larger judge"
AGAINST_CUTS = {"cut_off": "raise PRM_MAX_NEW_TOKENS", "endless_thought": "raise PRM_MAX_NEW_TOKENS"}


def unreachable(look: Look) -> Iterator[Finding]:
    """Find a judge that fails, refuses or is away."""
    error = look.judge_error
    given_up = look.reasons["judge_gave_up"] + look.reasons["judge_refused"]
    if error is not None:
        yield Finding(
            "judge_fails",
            Severity.STOPS,
            "the judge fails, and turns wait for it",
            str(error),
            "read the end of runtime.log and logs/engine-prm-0.log; for a judge elsewhere check OPENCLAW_JUDGE_BASE_URL "
            "and OPENCLAW_JUDGE_API_KEY. The turns are judged as soon as it answers",
        )
    elif given_up >= FEW / 2 and given_up >= SOME * len(look.mains):
        yield Finding(
            "judge_gives_up",
            Severity.LOSES,
            "turns are given up, because the judge refuses them or fails on them",
            f"{part(given_up, len(look.mains))} of the newest turns: judge_gave_up {look.reasons['judge_gave_up']}, "
            f"judge_refused {look.reasons['judge_refused']}",
            "read runtime.log about one of them; conversations longer than the judge's context need a larger one",
        )


def backlog(look: Look) -> Iterator[Finding]:
    """Find a judge that is slower than the conversations."""
    if look.judge_error is not None:
        return
    late = [
        turn
        for turn in look.mains
        if turn.state == "pending" and look.last_at - (turn.next_state_at or look.last_at) > BACKLOG_SECONDS
    ]
    if len(late) >= FEW:
        yield Finding(
            "judge_slow",
            Severity.LOSES,
            "the judge is slower than the conversations",
            f"{len(late)} turns have waited for it for more than {BACKLOG_SECONDS / 60:.0f} minutes",
            "lower PRM_M or PRM_MAX_NEW_TOKENS, raise OPENCLAW_JUDGE_CONCURRENCY, or give the judge more GPUs (PRM_GPUS)",
        )


def abstains(look: Look) -> Iterator[Finding]:
    """Find a judge whose answers are not votes."""
    count = look.reasons["no_quorum"]
    if count < FEW / 2 or count < ABSTAINS * len(look.judged):
        return
    invalid = Counter(vote.invalid for turn in look.judged for vote in turn.votes if vote.invalid)
    kinds = ", ".join(f"{name} {number}" for name, number in invalid.most_common()) or "none recorded"
    worst = invalid.most_common(1)[0][0] if invalid else ""
    yield Finding(
        "judge_abstains",
        Severity.STOPS if count >= NEUTRAL * len(look.judged) else Severity.LOSES,
        "the judge abstains: its answers are not votes",
        f"{part(count, len(look.judged))} of the newest judged turns had too few votes; answers that are none: {kinds}",
        AGAINST_CUTS.get(worst, GRAMMAR),
    )


def neutral(look: Look) -> Iterator[Finding]:
    """Find a judge that says 0 to nearly everything."""
    scored = [turn for turn in look.judged if turn.score is not None]
    zeros = sum(turn.score == 0 for turn in scored)
    if len(scored) >= 2 * FEW and zeros >= NEUTRAL * len(scored):
        yield Finding(
            "judge_neutral",
            Severity.LOSES,
            "the judge sees neither progress nor complaints",
            f"{part(zeros, len(scored))} of the newest verdicts are 0, which teaches nothing",
            "read some votes: openclaw-rl inspect RUN --session ID; a larger judge, or PRM_M=3, tells more apart",
        )


def disagree(look: Look) -> Iterator[Finding]:
    """Find votes on the same turn that contradict each other."""
    asked = [
        values
        for turn in look.judged
        if len(values := [vote.value for vote in turn.votes if vote.judge == "prm" and vote.value is not None]) > 1
    ]
    split = sum(len(set(values)) > 1 for values in asked)
    if len(asked) >= FEW and split >= SPLIT * len(asked):
        yield Finding(
            "votes_disagree",
            Severity.WATCH,
            "the judge's votes on a turn disagree",
            f"{part(split, len(asked))} of the newest turns with several votes have no common answer",
            "lower PRM_TEMPERATURE, use a larger judge, or more votes (PRM_M=5)",
        )


def one_way(look: Look) -> Iterator[Finding]:
    """Find verdicts that are all alike: rewards equal to their baseline teach nothing."""
    signs = Counter(turn.score for turn in look.judged if turn.score)
    if signs.total() < MIN_ONE_WAY:
        return
    sign, count = signs.most_common(1)[0]
    if count >= ONE_WAY * signs.total():
        yield Finding(
            "one_way_verdicts",
            Severity.WATCH,
            f"nearly all verdicts are {sign:+d}, so rewards equal their baseline and teach nothing",
            f"{part(count, signs.total())} of the newest verdicts other than 0",
            "read some: openclaw-rl inspect RUN --turns. If people really are that content, all is learned; otherwise "
            "the judge says the same to everything: use a larger one",
        )


def no_hints(look: Look) -> Iterator[Finding]:
    """Find a hint judge that never gives a hint."""
    asked = [turn for turn in look.judged if any(vote.judge == "hint" for vote in turn.votes)]
    hinted = sum(turn.hinted for turn in asked)
    complaints = sum((turn.score or 0) < 0 for turn in asked)
    if len(asked) >= NO_HINTS and not hinted and complaints != 0:
        yield Finding(
            "no_hints",
            Severity.LOSES,
            "the judge never gives a hint, so the teacher has nothing to read",
            f"0 of the newest {len(asked)} turns that were asked for one; {complaints} of them are complaints",
            "use a larger judge, or a method without hints (--method rl)",
        )


def no_teacher(look: Look) -> Iterator[Finding]:
    """Find hints whose turns have no teacher's numbers."""
    count = look.reasons["no_teacher_log_probs"] + look.reasons["no_teacher_topk"]
    hinted = sum(turn.hinted for turn in look.judged)
    if count >= FEW / 2 and count >= SOME * max(hinted, count):
        yield Finding(
            "no_teacher",
            Severity.LOSES,
            "the teacher gives no log-probabilities for hinted replies",
            f"{part(count, max(hinted, count))} of the newest hinted turns",
            "read runtime.log about the teacher; --dry-run says how OPENCLAW_TEACHER_URL or OPENCLAW_OPD_TEACHER=prm scores",
        )


# What reaches the judge

MAX_SIDE = 0.9
MAX_LOST = 0.5
"""Share of the main turns above which one reason is a finding of its own."""
SAMPLING = ("temperature", "sampling_parameters")
UNUSUAL = (*SAMPLING, "grammar", "min_tokens", "ignore_eos", "stop_token_ids", "stop")
HANDLED = frozenset(
    {*UNUSUAL, "evaluation", "no_next_state", "redacted", "no_quorum", "judge_gave_up", "judge_refused"}
)
"""Reasons with a check of their own."""
EXPECTED = frozenset(
    {"probe", "score_zero", "score_zero_no_hint", "no_hint", "no_teacher_log_probs", "no_teacher_topk"}
)
"""Reasons that mean no harm, or that a check of the judge looks at."""


def no_turns(look: Look) -> Iterator[Finding]:
    """Find a run that nobody talks to."""
    if not look.turns:
        yield Finding(
            "no_turns",
            Severity.STOPS,
            "nobody has talked to the run",
            "the ledger holds no turn",
            "openclaw-rl chat asks it something; point your client at the address in the run's first lines",
        )


def side_turns(look: Look) -> Iterator[Finding]:
    """Find a run whose turns are nearly all side turns, and the likely cause."""
    sides = sum(turn.kind == "side" for turn in look.turns)
    if sides < FEW or sides < MAX_SIDE * len(look.turns):
        return
    cause, count = look.sides.most_common(1)[0]
    if cause == "stated":
        likely = (
            "Likely cause: the client marks them itself. Remove the header X-Turn-Type: side, or turn_type in the body"
        )
    else:
        likely = (
            f"Likely cause: their texts are those of a client's own call ({cause}). If they are a person's, send "
            "X-Turn-Type: main with them"
        )
    yield Finding(
        "all_side",
        Severity.STOPS,
        "nearly all turns are side turns, which are never trained",
        f"{part(sides, len(look.turns))} of the newest turns are side turns; {count} of the last {look.sides.total()} look alike: {cause}",
        likely,
    )


def evaluation(look: Look) -> Iterator[Finding]:
    """Find a run that only evaluates."""
    count = look.reasons["evaluation"]
    if count >= FEW and count >= MAX_LOST * len(look.mains):
        yield Finding(
            "evaluation",
            Severity.STOPS,
            "the run evaluates and trains nothing",
            f"{part(count, len(look.mains))} of the newest turns have the reason evaluation",
            "unset OPENCLAW_EVAL_MODE and start the run again",
        )


def no_next_state(look: Look) -> Iterator[Finding]:
    """Find conversations whose replies nothing follows."""
    silent = [turn for turn in look.mains if turn.state in ("waiting", "ended")]
    turns_of = Counter(turn.session_id for turn in look.mains)
    single = sum(count == 1 for count in turns_of.values())
    if len(silent) < FEW or len(silent) < 0.8 * len(look.mains):
        return
    yield Finding(
        "no_next_state",
        Severity.STOPS,
        "nothing follows the replies, so the judge has nothing to read",
        f"{part(len(silent), len(look.mains))} of the newest turns have no next state; "
        f"{part(single, len(turns_of))} of their sessions have one turn",
        "keep one session id for a conversation (header X-Session-Id) or send its earlier messages with each request; "
        "POST /v1/feedback takes thumbs and words afterwards",
    )


def sampling(look: Look) -> Iterator[Finding]:
    """Find clients whose sampling parameters exclude their turns."""
    count = sum(look.reasons[reason] for reason in UNUSUAL)
    if count < FEW / 2 or count < SOME * len(look.mains):
        return
    odd = [turn for turn in look.mains if turn.reason in UNUSUAL]
    temperature, top_p = Counter((turn.temperature, turn.top_p) for turn in odd).most_common(1)[0][0]
    name, _ = Counter(turn.reason or "" for turn in odd).most_common(1)[0]
    yield Finding(
        "sampling",
        Severity.STOPS if count >= MAX_LOST * len(look.mains) else Severity.LOSES,
        "the client's sampling parameters keep its turns from being trained",
        f"{part(count, len(look.mains))} of the newest turns, most for {name}; usual values: temperature {temperature:g}, top_p {top_p:g}",
        explain(name).remedy,
    )


def redacted(look: Look) -> Iterator[Finding]:
    """Find conversations in which redaction dropped the token ids."""
    count = look.reasons["redacted"]
    if count >= FEW / 2 and count >= SOME * len(look.mains):
        yield Finding(
            "redacted",
            Severity.STOPS if count >= MAX_LOST * len(look.mains) else Severity.LOSES,
            "secrets in the conversations keep their turns from being trained",
            f"{part(count, len(look.mains))} of the newest turns held one",
            "keep secrets out of system prompts and messages; openclaw_redactions_total in GET /metrics names their kinds",
        )


def other_reasons(look: Look) -> Iterator[Finding]:
    """Find any other single reason that excludes most turns."""
    for name, count in look.reasons.most_common(1):
        if name not in HANDLED | EXPECTED and count >= FEW and count >= MAX_LOST * len(look.mains):
            reason = explain(name)
            yield Finding(
                f"most_{name}",
                Severity.STOPS,
                f"most turns are not trained, with the reason {name}",
                f"{part(count, len(look.mains))} of the newest turns. {reason.sentence}",
                reason.remedy or "read some of them: openclaw-rl inspect RUN --turns",
            )


CHECKS: tuple[Callable[[Look], Iterator[Finding]], ...] = (
    paused,
    people_paused,
    certificate,
    gate_refuses,
    unreachable,
    no_turns,
    side_turns,
    evaluation,
    no_next_state,
    sampling,
    redacted,
    abstains,
    other_reasons,
    stale,
    mismatch,
    disk,
    restarts,
    backlog,
    no_teacher,
    no_hints,
    neutral,
    one_way,
    disagree,
    slow_batches,
    no_samples,
)
"""Among findings of equal severity the order here decides."""
CONSEQUENCE = "no_samples"
"""A finding that another one explains, if that stops the run."""


def diagnose(run: RunFolder, disk: Callable[[Path], Disk] = real_disk) -> list[Finding]:
    """Return what is wrong with a run, the most serious first; nothing if it is healthy.

    Raises:
        LedgerError: the ledger cannot be read.
    """
    seen = look(run, disk)
    findings = [finding for check in CHECKS for finding in check(seen)]
    if any(item.severity is Severity.STOPS and item.name != CONSEQUENCE for item in findings):
        findings = [item for item in findings if item.name != CONSEQUENCE]
    return sorted(findings, key=lambda finding: finding.severity)
