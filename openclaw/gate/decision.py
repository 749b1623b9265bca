"""Decide whether an update may serve, from the answers of both versions.

Guarantees: a pure function of its inputs, in float64. It refuses for a named reason with its numbers, and never because
there is too little to compare. Every comparison is paired: both versions answered the same questions.

* **Opinions.** The paired margin (`paired_margin`) against the serving version, and against each of the last accepted
  versions, so that many small falls do not add up to a large one. The same for each of several owners alone, by a stricter
  test, so that no owner pays for another. Feedback weighs more than verdicts of the same owner, never than another's.
* **Degenerate replies.** Greedy replies to the same prompts; the share that is cut off, repeats or breaks its tool calls.
* **Drift.** How far the scores of all stored replies moved, and the largest fall of a liked one.
* **Tasks.** Greedy replies whose answers can be verified.
* **One engine first.** What a candidate's first engine does with it (``--canary-engine``). Questions are paired: engine and trainer
  had the same weights. Live replies are not, because every conversation has one engine; they are compared by shares, with Fisher's
  exact test (Fisher, Statistical Methods for Research Workers, 1934, section 21.02).
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from openclaw.config.runtime_variables import GateVariables


@dataclass(frozen=True)
class Change:
    """How an update changed the score of one stored reply.

    Attributes:
        cluster: the part of a session that the reply belongs to.
        liked: the opinion on it.
        weight: above 0.
        change: nats per token.
    """

    cluster: str
    liked: bool
    weight: float
    change: float


@dataclass(frozen=True)
class Margin:
    """The margin and its standard error in nats per token, and the numbers of clusters of each opinion.

    Example:
        >>> rows = [("monday", True, 0.5), ("tuesday", True, 0.25), ("monday", False, -0.25), ("tuesday", False, -0.5)]
        >>> margin = paired_margin([Change(cluster, liked, 1.0, change) for cluster, liked, change in rows])
        >>> margin.value, margin.enough(2), margin.fell(errors=2.0, least=0.01)
        (0.75, True, False)
    """

    value: float
    error: float
    liked: int
    disliked: int

    def enough(self, fewest: int) -> bool:
        """Return whether each opinion has at least ``fewest`` clusters."""
        return min(self.liked, self.disliked) >= fewest

    def fell_by_chance(self) -> float:
        """Return the probability of a margin as low as this if the update changed nothing (Student's t).

        The degrees of freedom are those of the opinion with more clusters, a cautious choice.
        """
        if self.error == 0.0:
            return 0.0 if self.value < 0 else 1.0
        return student_chance(self.value / self.error, max(self.liked, self.disliked) - 1)

    def fell(self, errors: float, least: float) -> bool:
        """Return whether the margin is below zero by more than ``errors`` standard errors and by more than ``least``."""
        return self.value < -least and self.value < -errors * self.error


def weighted_mean(changes: Iterable[Change]) -> float:
    """Return the weighted mean change; 0 without any."""
    result = list(changes)
    total = math.fsum(item.weight for item in result)
    return math.fsum(item.weight * item.change for item in result) / total if result else 0.0


def paired_margin(changes: Sequence[Change]) -> Margin:
    """Return how far an update moved towards what users liked and away from what they disliked, with its standard error.

    For a reply i let d_i be the mean over its tokens of log p_candidate - log p_serving, in nats per token, w_i its weight,
    and L and D the liked and the disliked replies. The paired margin is

        m = sum_L(w d) / sum_L(w) - sum_D(w d) / sum_D(w)

    A policy that grows more certain moves both terms alike, so the margin sees only the opinions. Turns of one session share
    their prompt and their user, so the standard error treats the parts of sessions as clusters (Liang and Zeger, Biometrika
    73, 1986, with the usual factor G / (G - 1) for G clusters; the mean of each opinion is the linear model):

        z_g = sum_{i in g} a_i e_i,   SE^2 = G / (G - 1) * sum_g z_g^2

    with a_i = w_i / sum_L(w) or -w_i / sum_D(w), and e_i the distance of d_i from the mean of its opinion. The error is
    infinite while one opinion has no reply or there is one cluster.
    """
    by_opinion = {opinion: [change for change in changes if change.liked == opinion] for opinion in (True, False)}
    means = {opinion: weighted_mean(result) for opinion, result in by_opinion.items()}
    clusters = {opinion: len({item.cluster for item in result}) for opinion, result in by_opinion.items()}
    influence: dict[str, list[float]] = defaultdict(list)
    for opinion, result in by_opinion.items():
        total = math.fsum(item.weight for item in result)
        for item in result:
            sign = 1.0 if opinion else -1.0
            influence[item.cluster].append(sign * item.weight / total * (item.change - means[opinion]))
    count = len(influence)
    if count < 2 or not all(clusters.values()):
        return Margin(means[True] - means[False], math.inf, clusters[True], clusters[False])
    squares = math.fsum(math.fsum(parts) ** 2 for parts in influence.values())
    error = math.sqrt(count / (count - 1) * squares)
    return Margin(means[True] - means[False], error, clusters[True], clusters[False])


def student_chance(value: float, freedom: int) -> float:
    """Return the probability that Student's t with ``freedom`` >= 1 degrees of freedom is at most ``value``.

    Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4: exact finite sums.
    """
    angle = math.atan2(value, math.sqrt(freedom))
    power = freedom % 2
    term, terms = math.cos(angle) ** power, 0.0
    while power <= freedom - 2:
        terms += term
        term *= math.cos(angle) ** 2 * (power + 1) / (power + 2)
        power += 2
    inside = math.sin(angle) * terms
    if freedom % 2:
        inside = 2 / math.pi * (angle + inside)
    return (1 + inside) / 2


def chance_of_signs(differences: Sequence[float]) -> float:
    """Return the probability that differences with these sizes and random signs sum up to at most their sum.

    The paired sign-flip test (Fisher, The Design of Experiments, 1935, section 21), one-sided for a fall, exact: by
    enumeration of the reachable sums. Differences of 0 do not count; without others the result is 1.
    """
    changed = [difference for difference in differences if difference]
    total = math.fsum(changed)
    sums: dict[float, float] = {0.0: 1.0}
    for item in changed:
        grown: dict[float, float] = defaultdict(float)
        for value, chance in sums.items():
            for signed in (value + abs(item), value - abs(item)):
                grown[round(signed, 9)] += chance / 2
        sums = grown
    return math.fsum(chance for value, chance in sums.items() if value <= total + 1e-6) if changed else 1.0


STATED_WEIGHT = 2.0
"""Weight of a person's feedback; a judge's verdict has 1."""
OWNER_UNLIKELY = 0.01
"""Chance of a fall of any owner at random below which it counts; shared by the owners that are compared."""
UNLIKELY = 0.05
"""Chance of a fall at random below which it counts: of five tasks or replies that all got worse it is 0.03."""
BY_MARGIN, TOO_FEW = "gate/refused_by_margin", "gate/too_few_probes"
OWNERS, WORST_OWNER = "gate/owners_compared", "gate/margin_of_worst_owner"


MIN_TIMED = 8
"""Replies of each version from which their speeds are compared."""


@dataclass(frozen=True)
class Scored:
    """A stored reply under both versions.

    Attributes:
        turn_id: the turn.
        part: of its session.
        liked: the opinion on it; None for a turn that is not a probe.
        stated: whether a person's feedback is the opinion.
        serving: mean log-probability per token under the serving version.
        candidate: the same under the candidate.
        owner: whose the turn is, see `openclaw.owners`.
    """

    turn_id: str
    part: str
    liked: bool | None
    stated: bool
    serving: float
    candidate: float
    owner: str = ""


@dataclass(frozen=True)
class Paired:
    """One greedy reply under both versions; ``weight``: of a task. True is good: right, or not degenerate."""

    serving: bool
    candidate: bool
    weight: int = 1


@dataclass(frozen=True)
class Evidence:
    """What both versions answered.

    Attributes:
        scored: stored replies, probes and others.
        replies: greedy replies to users' prompts.
        tasks: verified tasks.
        earlier: scores of the last accepted versions, by version and turn.
    """

    scored: Sequence[Scored] = ()
    replies: Sequence[Paired] = ()
    tasks: Sequence[Paired] = ()
    earlier: Mapping[str, Mapping[str, float]] = field(default_factory=dict[str, Mapping[str, float]])


@dataclass(frozen=True)
class Finding:
    """The decision.

    Attributes:
        refusals: what speaks against the update, one clause each; empty: it may serve.
        by_margin: whether only the users' opinions speak against it.
        note: what was compared, or why too little was.
        too_few: whether there were too few probes to compare opinions.
        metrics: numbers for the trackers.
    """

    refusals: tuple[str, ...]
    by_margin: bool
    note: str
    too_few: bool
    metrics: dict[str, float]

    @property
    def accepted(self) -> bool:
        """Whether the update may serve."""
        return not self.refusals


def decide_on(evidence: Evidence, bounds: GateVariables) -> Finding:
    """Return whether an update may serve."""
    now = paired_margin(_changes(evidence.scored, {item.turn_id: item.serving for item in evidence.scored}))
    metrics = {"gate/probes_liked": float(now.liked), "gate/probes_disliked": float(now.disliked)}
    opinions, margins = _opinions(evidence, now, bounds)
    fallen, of_owners = _owners(evidence, bounds)
    opinions, margins = opinions or fallen, margins | of_owners
    others, measured = _others(evidence, bounds)
    metrics |= margins | measured
    by_margin = bool(opinions) and not others
    too_few = not now.enough(bounds.gate_fewest)
    metrics |= {BY_MARGIN: float(by_margin), TOO_FEW: float(too_few)}
    if not too_few:
        note = f"margin {_signed(now)} nats/token, {now.liked} liked and {now.disliked} disliked parts of sessions"
    else:
        note = (
            f"too few probes to compare opinions: {now.liked} liked and {now.disliked} disliked parts of sessions, "
            f"{bounds.gate_fewest} of each are needed"
        )
    return Finding((*opinions, *others), by_margin, note, too_few, metrics)


def _changes(scored: Sequence[Scored], before: Mapping[str, float]) -> list[Change]:
    """Return the changes of the probes' scores since the scores ``before``, of those that have one.

    The mean weight of an owner's opinions of one kind is 1.
    """
    weights: dict[tuple[str, bool | None], list[float]] = {}
    for item in scored:
        weights.setdefault((item.owner, item.liked), []).append(_weight(item))
    means = {kind: math.fsum(weight) / len(weight) for kind, weight in weights.items()}
    return [
        Change(
            item.part,
            item.liked,
            _weight(item) / means[item.owner, item.liked],
            item.candidate - before[item.turn_id],
        )
        for item in scored
        if item.liked is not None and item.turn_id in before
    ]


def _weight(scored: Scored) -> float:
    return STATED_WEIGHT if scored.stated else 1.0


def _signed(margin: Margin) -> str:
    return f"{margin.value:+.3f} ± {margin.error:.3f}"


def _opinions(evidence: Evidence, now: Margin, bounds: GateVariables) -> tuple[list[str], dict[str, float]]:
    """Return what the users' opinions say against the update, and the margins."""
    if not now.enough(bounds.gate_fewest):
        return [], {}
    metrics = {"gate/margin": now.value, "gate/margin_error": now.error}
    if now.fell(bounds.gate_errors, bounds.gate_margin):
        return [f"it moves towards what users disliked: margin {_signed(now)} nats/token"], metrics
    compared = {
        version: margin
        for version, scores in evidence.earlier.items()
        if (margin := paired_margin(_changes(evidence.scored, scores))).enough(bounds.gate_fewest)
    }
    if not compared:
        return [], metrics
    best = min(compared, key=lambda version: compared[version].value)
    metrics["gate/margin_to_best"] = compared[best].value
    fallen = {item: result for item, result in compared.items() if result.fell(bounds.gate_errors, bounds.gate_margin)}
    if not fallen:
        return [], metrics
    far = min(fallen, key=lambda version: fallen[version].value)
    return [f"small steps away from version {far} add up: margin {_signed(fallen[far])} nats/token"], metrics


def _owners(evidence: Evidence, bounds: GateVariables) -> tuple[list[str], dict[str, float]]:
    """Return what the opinions of a single one of several owners say against the update, and their numbers.

    An owner with too few opinions of its own counts in the margin of all.
    """
    owners = sorted({item.owner for item in evidence.scored if item.liked is not None})
    if len(owners) < 2:
        return [], {}
    versions = {"": {item.turn_id: item.serving for item in evidence.scored}, **evidence.earlier}
    results = [
        (margin, owner, version)
        for owner in owners
        for version, scores in versions.items()
        if (
            margin := paired_margin(_changes([item for item in evidence.scored if item.owner == owner], scores))
        ).enough(bounds.gate_fewest)
    ]
    compared = {owner for _, owner, _ in results}
    metrics = {OWNERS: float(len(compared))}
    if not results:
        return [], metrics
    metrics[WORST_OWNER] = min(margin.value for margin, _, _ in results)
    fallen = [
        (margin.value, margin, version)
        for margin, _, version in results
        if margin.value < -bounds.gate_owner_margin and margin.fell_by_chance() * len(compared) <= OWNER_UNLIKELY
    ]
    if not fallen:
        return [], metrics
    _, margin, version = min(fallen, key=lambda each: each[0])
    against = f"version {version}" if version else "the serving version"
    line = (  # without a name, because others read it, and it stays when the owner is forgotten
        f"it moves away from what one of {len(compared)} owners liked: margin {_signed(margin)} nats/token, "
        f"compared with {against}"
    )
    return [line], metrics


def _others(evidence: Evidence, bounds: GateVariables) -> tuple[list[str], dict[str, float]]:
    """Return what replies, drift and tasks say against the update, and their numbers."""
    refusals: list[str] = []
    metrics: dict[str, float] = {}
    if evidence.replies:
        before, after = _share(evidence.replies, serving=True), _share(evidence.replies, serving=False)
        metrics |= {"gate/degenerate_serving": 1 - before, "gate/degenerate_candidate": 1 - after}
        if before - after > bounds.gate_degenerate and _is_unlikely(evidence.replies):
            refusals.append(
                f"{1 - after:.0%} of its greedy replies are degenerate, of the serving version {1 - before:.0%}"
            )
    if evidence.scored:
        changes = [item.candidate - item.serving for item in evidence.scored]
        drift = math.fsum(map(abs, changes)) / len(changes)
        jump = max((item.serving - item.candidate for item in evidence.scored if item.liked), default=0.0)
        metrics |= {"gate/drift": drift, "gate/jump": jump}
        if not drift <= bounds.gate_drift:
            refusals.append(
                f"scores moved by {drift:.2f} nats/token, more than OPENCLAW_GATE_DRIFT={bounds.gate_drift:g}"
            )
        if jump > bounds.gate_jump:
            refusals.append(
                f"a liked reply fell by {jump:.2f} nats/token, more than OPENCLAW_GATE_JUMP={bounds.gate_jump:g}"
            )
    if evidence.tasks:
        before, after = _share(evidence.tasks, serving=True), _share(evidence.tasks, serving=False)
        metrics |= {"gate/tasks_serving": before, "gate/tasks_candidate": after}
        if after < before and _is_unlikely(evidence.tasks):
            refusals.append(f"it solves {after:.0%} of the verified tasks, the serving version {before:.0%}")
    return refusals, metrics


def _share(pairs: Sequence[Paired], *, serving: bool) -> float:
    """Return the weighted share of good replies of one version."""
    good = sum(pair.weight for pair in pairs if (pair.serving if serving else pair.candidate))
    return good / sum(pair.weight for pair in pairs)


def _is_unlikely(pairs: Sequence[Paired]) -> bool:
    """Return whether a fall like this would be a rare accident if no version were better."""
    return chance_of_signs([pair.weight * (pair.candidate - pair.serving) for pair in pairs]) <= UNLIKELY


@dataclass(frozen=True)
class Agreement:
    """What engine and trainer say with the same weights.

    Attributes:
        difference: mean absolute difference of the log probabilities of stored replies, in nats per token; None without any.
        replies: greedy replies to the same prompts, of the trainer (``serving``) and of the engine (``candidate``).
    """

    difference: float | None
    replies: Sequence[Paired] = ()


@dataclass(frozen=True)
class Live:
    """A reply that a client got.

    Attributes:
        good: whether it is not degenerate.
        liked: the verdict; None without one, or without an opinion.
        pace: seconds per token.
    """

    good: bool
    liked: bool | None
    pace: float


def disagrees(agreement: Agreement, bounds: GateVariables) -> tuple[list[str], dict[str, float]]:
    """Return what the gate's own questions say against the candidate on its engine, and their numbers."""
    refusals: list[str] = []
    metrics: dict[str, float] = {}
    if (difference := agreement.difference) is not None:
        if math.isfinite(difference):
            metrics["gate/canary_difference"] = difference
        if not difference <= bounds.canary_difference:
            refusals.append(
                f"its engine gives stored replies other log probabilities than the trainer, by {difference:.3f} nats/token, more "
                f"than OPENCLAW_CANARY_DIFFERENCE={bounds.canary_difference:g}"
            )
    if replies := agreement.replies:
        trainer, engine = _rate([reply.serving for reply in replies]), _rate([reply.candidate for reply in replies])
        metrics["gate/canary_degenerate"] = 1 - engine
        signs = [float(reply.candidate - reply.serving) for reply in replies]
        if trainer - engine > bounds.gate_degenerate and chance_of_signs(signs) <= UNLIKELY:
            refusals.append(
                f"{1 - engine:.0%} of its engine's greedy replies are degenerate, of the trainer's {1 - trainer:.0%}"
            )
    return refusals, metrics


def does_worse(
    candidate: Sequence[Live], serving: Sequence[Live], bounds: GateVariables
) -> tuple[list[str], dict[str, float]]:
    """Return what live replies say against the candidate, and their numbers."""
    refusals: list[str] = []
    metrics = {"gate/canary_turns": float(len(candidate))}
    if not candidate or not serving:
        return refusals, metrics
    good, usual = [item.good for item in candidate], [item.good for item in serving]
    metrics["gate/canary_live_degenerate"] = 1 - _rate(good)
    if _rate(usual) - _rate(good) > bounds.gate_degenerate and chance_of_shares(good, usual) <= UNLIKELY:
        refusals.append(
            f"{1 - _rate(good):.0%} of {len(good)} live replies are degenerate, of the serving version {1 - _rate(usual):.0%}"
        )
    liked, before = ([item.liked for item in result if item.liked is not None] for result in (candidate, serving))
    if min(len(liked), len(before)) >= bounds.gate_fewest:
        metrics["gate/canary_liked"] = _rate(liked)
        if _rate(liked) < _rate(before) and chance_of_shares(liked, before) <= UNLIKELY:
            refusals.append(
                f"{_rate(liked):.0%} of {len(liked)} judged live replies are liked, of the serving version {_rate(before):.0%}"
            )
    if min(len(candidate), len(serving)) >= MIN_TIMED:
        slower = statistics.median(item.pace for item in candidate) / statistics.median(item.pace for item in serving)
        metrics["gate/canary_slowdown"] = slower
        if slower > bounds.canary_slowdown:
            refusals.append(
                f"its live replies take {slower:.1f} times as long per token, more than "
                f"OPENCLAW_CANARY_SLOWDOWN={bounds.canary_slowdown:g}"
            )
    return refusals, metrics


def chance_of_shares(some: Sequence[bool], others: Sequence[bool]) -> float:
    """Return the probability that so few of ``some`` are good if good ones fell on both alike (hypergeometric, one-sided)."""
    total, good = len(some) + len(others), sum(some) + sum(others)
    ways = math.comb(total, good)
    least = max(0, good - len(others))
    return sum(math.comb(len(some), n) * math.comb(len(others), good - n) for n in range(least, sum(some) + 1)) / ways


def _rate(values: Sequence[bool]) -> float:
    return sum(values) / len(values)
