"""The certificate of an update: proof that the trainer learned, and that the engines answer with what it learned.

Pure: `Facts` in, a `Certificate` out. `CHECKS` is the one table of its lines. A line is ``red`` (the update must not serve), ``green``,
or ``unknown`` where nothing could be measured. One red line makes the certificate red.
`openclaw.gate.proof` collects the facts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from openclaw.config.runtime_variables import GateVariables

Verdict = Literal["green", "red", "unknown"]
UNKNOWN: Verdict = "unknown"
OPTIONS = "options"
"""The line that a person may accept."""
EQUAL = 1e-7
"""Nats per token. An engine that gives the same tokens the same log probabilities has the same weights, up to this."""
MOVES = 1e-5
"""Nats per token by which the trainer's log probabilities have to move before an engine that did not move is stale."""
PART = 0.01
"""The share of the trainer's movement that an engine with the update shows at least."""
AS_USUAL = "every reward is as usual, so there is nothing to learn"
FEWEST_ANSWERS = 3
LOST = 0.5
"""The share of lost judge answers above which a batch is not trusted."""


@dataclass(frozen=True)
class EngineFacts:
    """What one engine answers; log probabilities of the same stored tokens throughout, in nats.

    Attributes:
        url: of the engine.
        before: as a conversation got them before the update.
        version: that the engine reported with them.
        named: with the update, asked by its name; empty if it was not asked, NaN where it did not answer.
        named_version: that the engine reported with these.
        digest: SHA-256 of the adapter that gave ``named``, in hexadecimal digits; None for whole weights.
        base: without an adapter; empty for whole weights.
    """

    url: str
    before: Sequence[float] = ()
    version: str = ""
    named: Sequence[float] = ()
    named_version: str = ""
    digest: str | None = None
    base: Sequence[float] = ()


@dataclass(frozen=True)
class Facts:
    """What is known of an update; None stands for what could not be measured.

    Attributes:
        loss_tokens: tokens with loss.
        signal_share: share of samples with an advantage that is not zero, or with a teacher.
        as_usual: whether each reward is what the same person's reactions always say, so that no advantage is left of it.
        gradients: norm of each step's gradient.
        update_rms: root mean square of what the steps changed each weight by.
        judge_asked: judge answers that were asked for since the last update.
        judge_lost: of them, those that failed or could not be read.
        unread: flags of the training that somebody set and no process has read so far.
        unused: those of them that no code of the run can read, and that no person has accepted.
        serving: version of the weights that serve.
        updated: version of the update.
        trainer_serving: the trainer's log probabilities of the stored tokens with these weights.
        trainer_updated: the same with the update.
        digest: SHA-256 of the adapter that the trainer sent.
        engines: what each engine answers.
    """

    loss_tokens: float | None = None
    signal_share: float | None = None
    as_usual: bool = False
    gradients: Sequence[float] = ()
    update_rms: float | None = None
    judge_asked: int = 0
    judge_lost: int = 0
    unread: Sequence[str] = ()
    unused: Sequence[str] = ()
    serving: str = ""
    updated: str = ""
    trainer_serving: Sequence[float] = ()
    trainer_updated: Sequence[float] = ()
    digest: str | None = None
    engines: Sequence[EngineFacts] = ()


class Line(NamedTuple):
    """A line of a certificate: its name in `CHECKS`, the verdict, and what was measured."""

    name: str
    verdict: Verdict
    words: str


Look = Callable[[Facts, GateVariables], tuple[Verdict, str]]


class Check(NamedTuple):
    """How a line is made, and what it is for.

    Attributes:
        name: of the line.
        look: returns the verdict and what was measured.
        red: when it is red, for the page.
        cause: what a red line means.
        remedy: what to do.
        threads: reports of the same failure elsewhere.
    """

    name: str
    look: Look
    red: str
    cause: str
    remedy: str
    threads: str


@dataclass(frozen=True)
class Certificate:
    """The lines of an update, in the order of `CHECKS`.

    Example:
        >>> from openclaw.config.runtime_variables import GateVariables
        >>> found = certify(Facts(loss_tokens=0.0, gradients=[0.5]), GateVariables())
        >>> found.is_red, found.causes
        (True, ['no token had a loss (tokens: 0 tokens with loss)'])
    """

    lines: Sequence[Line] = field(default_factory=list[Line])

    @property
    def is_red(self) -> bool:
        """Whether the update must not serve."""
        return bool(self.red)

    @property
    def red(self) -> list[str]:
        """The names of the red lines."""
        return [line.name for line in self.lines if line.verdict == "red"]

    @property
    def causes(self) -> list[str]:
        """What each red line means, and what was measured."""
        causes = {check.name: check.cause for check in CHECKS}
        return [f"{causes[line.name]} ({line.name}: {line.words})" for line in self.lines if line.verdict == "red"]

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of all lines that measured something."""
        if self.is_red:
            return "red"
        return "green" if any(line.verdict == "green" for line in self.lines) else UNKNOWN

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values: the verdict, the lines, and what to do about each red one."""
        causes = [f"{check.cause} ({check.name}): {check.remedy}" for check in CHECKS if check.name in self.red]
        return {"verdict": self.verdict, "lines": [line._asdict() for line in self.lines], "causes": causes}


def certify(facts: Facts, bounds: GateVariables) -> Certificate:
    """Return the certificate of an update."""
    return Certificate([Line(check.name, *check.look(facts, bounds)) for check in CHECKS])


def difference(some: Sequence[float], others: Sequence[float]) -> float | None:
    """Return the mean absolute difference, in nats per token; None if one side is missing."""
    if not some or len(some) != len(others):
        return None
    return math.fsum(abs(a - b) for a, b in zip(some, others, strict=True)) / len(some)


def _verdict(*, red: bool) -> Verdict:
    return "red" if red else "green"


def _content(facts: Facts) -> bool:
    """Return whether there is nothing to learn, because everybody reacts as always; that is no fault."""
    return facts.as_usual and facts.signal_share is not None and facts.signal_share <= 0


def _tokens(facts: Facts, bounds: GateVariables) -> tuple[Verdict, str]:
    if facts.loss_tokens is None:
        return UNKNOWN, "not measured"
    return _verdict(red=facts.loss_tokens <= 0), f"{facts.loss_tokens:.0f} tokens with loss"


def _advantages(facts: Facts, bounds: GateVariables) -> tuple[Verdict, str]:
    if facts.signal_share is None:
        return UNKNOWN, "the loss reads no advantages"
    if _content(facts):
        return UNKNOWN, AS_USUAL
    return _verdict(red=facts.signal_share <= 0), f"{facts.signal_share:.0%} of the samples have one"


def _gradient(facts: Facts, bounds: GateVariables) -> tuple[Verdict, str]:
    if not facts.gradients:
        return UNKNOWN, "no step was taken"
    if _content(facts) and not any(facts.gradients):
        return UNKNOWN, AS_USUAL
    worst = min(facts.gradients, key=lambda norm: (math.isfinite(norm), norm))
    red = not math.isfinite(worst) or max(facts.gradients) == 0
    return _verdict(red=red), f"norms of {len(facts.gradients)} steps, the smallest {worst:.3g}"


def _update(facts: Facts, bounds: GateVariables) -> tuple[Verdict, str]:
    moved = facts.update_rms
    if moved is None:
        return UNKNOWN, "not measured"
    if _content(facts) and moved == 0:
        return UNKNOWN, AS_USUAL
    return _verdict(red=not math.isfinite(moved) or moved == 0), f"weights moved by {moved:.3g} (root mean square)"


def _judge(facts: Facts, bounds: GateVariables) -> tuple[Verdict, str]:
    if facts.judge_asked < FEWEST_ANSWERS:
        return UNKNOWN, f"{facts.judge_asked} answers since the last update"
    share = facts.judge_lost / facts.judge_asked
    return _verdict(red=share > LOST), f"{facts.judge_lost} of {facts.judge_asked} answers lost ({share:.0%})"


def _options(facts: Facts, bounds: GateVariables) -> tuple[Verdict, str]:
    if facts.unused:
        return "red", f"no code reads {', '.join(facts.unused)}"
    if facts.unread:
        return UNKNOWN, f"not read so far: {', '.join(facts.unread)}"
    return "green", "every training flag was read"


def _digest(facts: Facts, bounds: GateVariables) -> tuple[Verdict, str]:
    found = [(engine.url, engine.digest) for engine in facts.engines if engine.named]
    if facts.digest is None or not found:
        return UNKNOWN, "whole weights, or no engine was asked" if facts.digest is None else "no engine was asked"
    if wrong := [f"{url} has {(digest or 'none')[:12]}" for url, digest in found if digest != facts.digest]:
        return "red", f"the trainer sent {facts.digest[:12]}, {'; '.join(wrong)}"
    return "green", f"SHA-256 {facts.digest[:12]} on {len(found)} engines"


class Answered(NamedTuple):
    """What an engine answered at one time: its URL, the version that it reported, and log probabilities."""

    url: str
    version: str
    log_probs: Sequence[float]


def _served(facts: Facts, bounds: GateVariables) -> tuple[Verdict, str]:
    answers = [Answered(engine.url, engine.version, engine.before) for engine in facts.engines if engine.before]
    return _agrees(answers, facts.serving, facts.trainer_serving, bounds)


def _named(facts: Facts, bounds: GateVariables) -> tuple[Verdict, str]:
    answers = [Answered(engine.url, engine.named_version, engine.named) for engine in facts.engines if engine.named]
    return _agrees(answers, facts.updated, facts.trainer_updated, bounds)


def _agrees(
    answers: Sequence[Answered], version: str, trainer: Sequence[float], bounds: GateVariables
) -> tuple[Verdict, str]:
    """Compare engines' answers with the version and the log probabilities of the trainer."""
    limit = bounds.canary_difference
    if wrong := [f"{each.url} reports version {each.version or 'none'}" for each in answers if each.version != version]:
        return "red", f"{'; '.join(wrong)} instead of {version}"
    found = [(value, each.url) for each in answers if (value := difference(trainer, each.log_probs)) is not None]
    if not found:
        return UNKNOWN, "no engine was asked"
    worst, url = max(found, key=lambda each: (not math.isfinite(each[0]), each[0]))
    words = f"{worst:.2g} nats/token at most on {len(trainer)} tokens, allowed {limit:g}"
    return (_verdict(red=True), f"{words}, {url}") if not worst <= limit else ("green", words)


def _stale(facts: Facts, bounds: GateVariables) -> tuple[Verdict, str]:
    return _stands_still(facts, "before")


def _base(facts: Facts, bounds: GateVariables) -> tuple[Verdict, str]:
    return _stands_still(facts, "base")


def _stands_still(facts: Facts, which: Literal["before", "base"]) -> tuple[Verdict, str]:
    """Find an engine that answers by the update's name as it does without it, although the trainer's answers moved."""
    moved = difference(facts.trainer_serving, facts.trainer_updated)
    found = [
        (value, engine.url)
        for engine in facts.engines
        if (value := difference(engine.named, engine.before if which == "before" else engine.base)) is not None
    ]
    if moved is None or not found:
        return UNKNOWN, "no engine was asked"
    if not moved >= MOVES:
        return UNKNOWN, f"the trainer's log probabilities moved by {moved:.2g} nats/token only"
    least, url = min(found)
    words = f"the trainer moved by {moved:.2g} nats/token, an engine by {least:.2g} at least"
    return (
        ("red", f"{words}, {url}")
        if least <= max(EQUAL, PART * moved if which == "before" else 0.0)
        else (
            "green",
            words,
        )
    )


CHECKS: tuple[Check, ...] = (
    Check(
        "tokens",
        _tokens,
        "no token has a loss",
        "no token had a loss",
        "look at the loss masks of the method, and at `openclaw-rl inspect`",
        "TinkerCloud PR #6",
    ),
    Check(
        "advantages",
        _advantages,
        "all advantages are zero although a reward is not as usual, and no sample has a teacher",
        "nothing of the batch says what was good or bad",
        "look at the judge's scores: all alike scores teach nothing",
        "MetaClaw PR #47",
    ),
    Check(
        "gradient",
        _gradient,
        "a gradient's norm is not finite, or all are zero",
        "the gradient is zero or not a number",
        "lower `LEARNING_RATE`; look for a loss of zero",
        "upstream #68",
    ),
    Check(
        "update",
        _update,
        "the weights did not move, or not to numbers",
        "the step did not change the weights, or broke them",
        "look at the learning rate's schedule and the trained parameters",
        "Reef (`kl_coef` 0)",
    ),
    Check(
        "judge",
        _judge,
        f"more than half of the judge's answers since the last update are lost, of at least {FEWEST_ANSWERS}",
        "the judge does not answer, or not readably",
        "`openclaw-rl doctor` names the judge's last error",
        "MetaClaw PR #47",
    ),
    Check(
        OPTIONS,
        _options,
        "a training flag was set, and no code of this run can read it",
        "a setting has no effect on this run",
        "remove the flag, use a method that reads it, or type `openclaw-rl accept RUN`",
        "SkyRL #1632, Reef (`kl_coef` 0)",
    ),
    Check(
        "served",
        _served,
        "what serves differs from the trainer's by more than `OPENCLAW_CANARY_DIFFERENCE`, or has another version",
        "an engine served other weights than it should",
        "the engines get the serving weights again; if it recurs, look into the engine's log",
        "ART #661",
    ),
    Check(
        "digest",
        _digest,
        "the adapter's SHA-256 differs from the trainer's",
        "an engine has another adapter than the trainer sent",
        "look for two runs that use one engine",
        "vllm #47724",
    ),
    Check(
        "named",
        _named,
        "stored replies differ from the trainer's by more than `OPENCLAW_CANARY_DIFFERENCE`",
        "an engine computes other probabilities than the trainer with the update",
        "use the same precision in engine and trainer; try `--check-weight-update-equal`; "
        "raise the limit if they only round differently, as `instructions/parity.md` tells",
        "miles PR #2385",
    ),
    Check(
        "stale",
        _stale,
        "the engine answers as before the update, although the trainer does not",
        "an engine answers with the weights from before the update",
        "look into the engine's log for the load of the update",
        "ART #661",
    ),
    Check(
        "base",
        _base,
        "the engine answers by the adapter's name as the base does, although the trainer does not",
        "an engine answers with the base model instead of the adapter",
        "check `--lora-target-modules`, and that the engine was started with LoRA",
        "miles PR #2075",
    ),
)
"""The lines, in their order: first the trainer's, which need no engine."""
