"""Interprets a person's feedback for the judge.

Guarantees: a stated opinion (thumbs or score) becomes the verdict's score without a judge. Words are a next state like
any other. Of several statements on one reply, the last opinion and all words count. Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from openclaw.ledger.records import Feedback, Message, Thumbs, Turn

THUMBS_SCORE: dict[Thumbs, int] = {"up": 1, "down": -1}
HALF = 0.5


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
