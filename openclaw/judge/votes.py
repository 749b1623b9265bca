"""Parses the judges' answers and takes their majority.

Guarantees: only the answer after the judge's thinking counts. A tie, a majority below the threshold and no valid vote
all give 0. Pure functions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from openclaw.judge.prompts import parse_hint, parse_score
from openclaw.ledger.records import JudgeKind, Vote

THINKING_START, THINKING_END = "<think>", "</think>"


def after_thinking(answer: str) -> str:
    """Return the part of ``answer`` after its thinking; empty if the thinking never ends."""
    _, end, visible = answer.rpartition(THINKING_END)
    if end:
        return visible
    return "" if THINKING_START in answer else answer


def read_vote(judge: JudgeKind, answer: str, seconds: float) -> Vote:
    """Return the vote in a judge's answer."""
    visible = after_thinking(answer)
    if judge == "prm":
        return Vote(judge, answer, parse_score(visible), None, seconds)
    decision, hint = parse_hint(visible)
    return Vote(judge, answer, decision, hint, seconds)


def majority(values: Iterable[int | None], threshold: float) -> int:
    """Return the most frequent valid vote if its share reaches ``threshold``, otherwise 0.

    Args:
        values: the votes; None is an invalid vote and does not count.
        threshold: least share of the valid votes, in (0, 1].

    Returns:
        -1, 0 or 1; 0 for a tie, a smaller share or no valid vote.
    """
    counts = Counter(value for value in values if value is not None)
    if not counts:
        return 0
    ranked = counts.most_common(2)
    if len(ranked) == 2 and ranked[0][1] == ranked[1][1]:
        return 0
    value, count = ranked[0]
    return value if count / counts.total() >= threshold else 0


def agreement(values: Sequence[int | None]) -> float:
    """Return the share of the most frequent valid value among all votes; 0 without a valid vote."""
    counts = Counter(value for value in values if value is not None)
    return counts.most_common(1)[0][1] / len(values) if counts else 0.0


def longest_hint(votes: Iterable[Vote]) -> str | None:
    """Return the longest hint among the accepted votes (the first of equals), or None."""
    hints = [vote.hint for vote in votes if vote.hint is not None]
    return max(hints, key=len) if hints else None
