"""Interprets a person's feedback for the judge.

Guarantees: a stated opinion (thumbs or score) becomes the verdict's score without a judge. Words are a next state like
any other. Of several statements on one reply, the last opinion and all words count. The choices of one request together
have the weight of one reply, however many of them a person rates; a judge's or a rule's score counts in full. Pure functions.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass

from openclaw.ledger.records import Feedback, Message, Thumbs, Turn, Verdict
from slime.utils.types import Sample

THUMBS_SCORE: dict[Thumbs, int] = {"up": 1, "down": -1}
HALF = 0.5
CHOICE = re.compile(r"(?P<request>.+)\.(?P<number>[0-9]{1,3})", re.DOTALL)
WEIGHT = "feedback_weight"
"""Key in the metadata of a sample that feedback scored: the factor in its reward."""


@dataclass(frozen=True)
class Opinion:
    """The sum of all feedback on one reply.

    Attributes:
        score: -1, 0 or 1; None if nobody stated one.
        texts: feedback in words, oldest first, without duplicates.
    """

    score: int | None = None
    texts: tuple[str, ...] = ()


def stated_score(feedback: Feedback) -> int | None:
    """Return a statement's score, rounded to -1, 0 or 1, with halves away from 0."""
    if feedback.score is not None:
        return 0 if abs(feedback.score) < HALF else 1 if feedback.score > 0 else -1
    return THUMBS_SCORE[feedback.thumbs] if feedback.thumbs else None


def opinion(feedback: Sequence[Feedback]) -> Opinion:
    """Return the combined opinion of statements, given oldest first."""
    scores = [score for item in feedback if (score := stated_score(item)) is not None]
    texts = dict.fromkeys(item.text for item in feedback if item.text)
    return Opinion(scores[-1] if scores else None, tuple(texts))


def as_next_state(feedback: Feedback) -> list[Message]:
    """Return one statement as the ledger's next state."""
    score = stated_score(feedback)
    return [{"role": "user", "content": feedback.text or f"(feedback: {score:+d})"}]


def judged_messages(turn: Turn, stated: Opinion) -> list[Message]:
    """Return the judges' messages: the next state from the conversation, then feedback in words.

    The result is empty if the only reaction was an opinion without words.
    """
    conversation = [] if turn.signal == "feedback" else list(turn.next_state or [])
    return conversation + [{"role": "user", "content": text} for text in stated.texts]


def choice_of(turn_id: str) -> tuple[str, int]:
    """Return the request that a turn answers, and the number of its choice: ``ID.k`` is choice k, ``ID`` choice 0."""
    found = CHOICE.fullmatch(turn_id)
    return (found["request"], int(found["number"])) if found else (turn_id, 0)


def weighted(samples: Sequence[Sample], verdict: Verdict, choices: int) -> list[Sample]:
    """Return the samples of a verdict; feedback on one of several choices counts as its share of one reply.

    Args:
        samples: of one turn.
        verdict: the turn's.
        choices: of the turn's request.
    """
    if verdict.score_source != "feedback":
        return list(samples)
    weight = 1 / choices
    result = [copy.copy(sample) for sample in samples]
    for sample in result:
        sample.reward *= weight
        sample.metadata = {**sample.metadata, WEIGHT: weight}
    return result
