"""What a person's feedback means for the judge.

Guarantees: a stated opinion (thumbs or score) is the verdict's score and no judge is asked about it; words are a next
state like any other. Of several statements about one reply the last opinion counts, and all words do. Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from openclaw.ledger.records import Feedback, Message, Thumbs, Turn

THUMBS_SCORE: dict[Thumbs, int] = {"up": 1, "down": -1}
HALF = 0.5


@dataclass(frozen=True)
class Opinion:
    """What all feedback to one reply comes to.

    Attributes:
        score: -1, 0 or 1; None when nobody stated one.
        texts: what was said in words, oldest first, nothing twice.
    """

    score: int | None = None
    texts: tuple[str, ...] = ()


def stated_score(feedback: Feedback) -> int | None:
    """Return the score that one statement stands for; a number goes to the nearest of -1, 0, 1, a half away from 0."""
    if feedback.score is not None:
        return 0 if abs(feedback.score) < HALF else 1 if feedback.score > 0 else -1
    return THUMBS_SCORE[feedback.thumbs] if feedback.thumbs else None


def opinion(feedback: Sequence[Feedback]) -> Opinion:
    """Return what statements, oldest first, come to."""
    scores = [score for item in feedback if (score := stated_score(item)) is not None]
    texts = dict.fromkeys(item.text for item in feedback if item.text)
    return Opinion(scores[-1] if scores else None, tuple(texts))


def as_next_state(feedback: Feedback) -> list[Message]:
    """Return one statement as the message that the ledger keeps as next state."""
    score = stated_score(feedback)
    return [{"role": "user", "content": feedback.text or f"(feedback: {score:+d})"}]


def judged_messages(turn: Turn, stated: Opinion) -> list[Message]:
    """Return the messages that judges see: what followed the reply in the conversation, then the words of feedback.

    Nothing is left when the only reaction was an opinion without words.
    """
    conversation = [] if turn.signal == "feedback" else list(turn.next_state or [])
    return conversation + [{"role": "user", "content": text} for text in stated.texts]
