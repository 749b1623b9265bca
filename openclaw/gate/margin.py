"""How far an update moved towards what users liked and away from what they disliked, with its standard error.

Guarantees: pure functions in float64; the order of the changes does not matter beyond rounding.

For a reply i let d_i be the mean over its tokens of log p_candidate - log p_serving, in nats per token, w_i its weight, and
L and D the liked and the disliked replies. The paired margin is

    m = sum_L(w d) / sum_L(w) - sum_D(w d) / sum_D(w)

A policy that grows more certain moves both terms alike, so the margin sees only the opinions. Turns of one session share
their prompt and their user, so the standard error treats the parts of sessions as clusters (Liang and Zeger, Biometrika 73,
1986, with the usual factor G / (G - 1) for G clusters; the mean of each opinion is the linear model):

    z_g = sum_{i in g} a_i e_i,   SE^2 = G / (G - 1) * sum_g z_g^2

with a_i = w_i / sum_L(w) or -w_i / sum_D(w), and e_i the distance of d_i from the mean of its opinion.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


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
    """The margin and its standard error in nats per token, and the numbers of clusters of each opinion."""

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
    """Return the margin of an update; its error is infinite while one opinion has no reply or there is one cluster."""
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
