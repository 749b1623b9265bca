"""Interprets a person's feedback for the judge.

Guarantees: a stated opinion (thumbs or score) becomes the verdict's score without a judge. So does a message or a comment
that is only a thumb (`openclaw.messages.thumbs`). Words are a next state like any other. Of several statements on one reply,
the last opinion and all words count. The choices of one request together have the weight of one reply, however many of them a
person rates; a judge's or a rule's score counts in full. Pure functions.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass

from groundwork.chat_messages import Message
from openclaw.ledger.records import Feedback, Thumbs, Turn, Verdict
from openclaw.messages.thumbs import thumb_of, without_thumbs
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
    thumbs = feedback.thumbs or thumb_of(feedback.text or "")
    return THUMBS_SCORE[thumbs] if thumbs else None


def opinion(feedback: Sequence[Feedback], turn: Turn | None = None) -> Opinion:
    """Return the combined opinion of statements, given oldest first, and of the thumb that is ``turn``'s next state."""
    scores = [(item.created_at, score) for item in feedback if (score := stated_score(item)) is not None]
    if turn is not None and (thumb := _conversation(turn)[1]):
        scores.append((turn.next_state_at or 0.0, THUMBS_SCORE[thumb]))
    scores.sort(key=lambda each: each[0])
    texts = dict.fromkeys(item.text for item in feedback if item.text and not thumb_of(item.text))
    return Opinion(scores[-1][1] if scores else None, tuple(texts))


def as_next_state(feedback: Feedback) -> list[Message]:
    """Return one statement as the ledger's next state."""
    score = stated_score(feedback)
    return [{"role": "user", "content": feedback.text or f"(feedback: {score:+d})"}]


def judged_messages(turn: Turn, stated: Opinion) -> list[Message]:
    """Return the judges' messages: the next state from the conversation, then feedback in words.

    The result is empty if the only reaction was an opinion without words.
    """
    return _conversation(turn)[0] + [{"role": "user", "content": text} for text in stated.texts]


def _conversation(turn: Turn) -> tuple[list[Message], Thumbs | None]:
    """Return what followed a turn in the conversation: words and tool results, and a thumb."""
    if turn.signal == "feedback":
        return [], None
    return without_thumbs(turn.next_state or [], turn.response_message)


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
