r"""The simulated users: their opening messages, tastes and reactions.

* student: wants help without bold text, numbered lists and ``\boxed`` (the user of the demo)
* TA: grades homework and wants feedback of at least 100 tokens
* teacher: writes comments for students and wants praise in them: "well done", "excellent" or "great job"
* a person with a taste of `tiny_models.tastes`, whose rule and words are not in the tiny model's corpus

Guarantees: deterministic in the random generator; the rule is fixed and never told, only complained about.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass

from measure import Item
from tiny_models.feedback import approval, complaint
from tiny_models.problems import draw_short
from tiny_models.replies import follows_rule
from tiny_models.tastes import Taste

LEAST_TA_TOKENS = 100
PRAISE = ("well done", "excellent", "great job")


@dataclass(frozen=True)
class Persona:
    """One kind of user.

    Attributes:
        name: prefix of session ids.
        likes: whether a reply follows the rule.
        opening: first message about a problem.
        complain: reaction to a reply that breaks the rule.
        approve: reaction to one that follows it, with the next message if there is one.
        max_tokens: limit on the reply.
    """

    name: str
    likes: Callable[[str], bool]
    opening: Callable[[Item], str]
    complain: Callable[[random.Random], str]
    approve: Callable[[random.Random, str | None], str]
    max_tokens: int


def draw_item(rng: random.Random) -> Item:
    """Return a problem that the tiny model may be trained on."""
    problem = draw_short(rng, "train")
    return Item(problem.question, str(problem.answer))


def token_count(text: str) -> int:
    """Return the number of words and punctuation marks, roughly a tokenizer's count."""
    return len(re.findall(r"\w+|[^\w\s]", text))


def _one_of(*sentences: str) -> Callable[[random.Random], str]:
    return lambda rng: rng.choice(sentences)


def _thanks(*sentences: str) -> Callable[[random.Random, str | None], str]:
    return lambda rng, following: " ".join(filter(None, [rng.choice(sentences), following]))


STUDENT = Persona(
    name="student",
    likes=follows_rule,
    opening=lambda item: item.question,
    complain=lambda rng: complaint(rng, "held"),
    approve=lambda rng, following: approval(rng, "held", following),
    max_tokens=160,
)


def person(taste: Taste) -> Persona:
    """Return the user of a taste."""
    return Persona(
        name=taste.name,
        likes=taste.likes,
        opening=lambda item: item.question,
        complain=taste.complain,
        approve=taste.approve,
        max_tokens=160,
    )


TA = Persona(
    name="ta",
    likes=lambda reply: token_count(reply) >= LEAST_TA_TOKENS,
    opening=lambda item: (
        f"I am grading homework. The problem: {item.question} A student answered {item.answer}. "
        "Write the feedback for this student."
    ),
    complain=_one_of(
        "That is too short to be of use, say more about each step.",
        "My students need a longer explanation than that. Please write it out.",
        "Too brief. Go into detail, I want a full paragraph of feedback.",
    ),
    approve=_thanks("Thanks, that is thorough.", "Good, this is detailed enough.", "Perfect, I will hand that out."),
    max_tokens=512,
)

TEACHER = Persona(
    name="teacher",
    likes=lambda reply: any(phrase in reply.lower() for phrase in PRAISE),
    opening=lambda item: (
        f"Write a short comment under a student's homework. The problem: {item.question} The student wrote {item.answer}."
    ),
    complain=_one_of(
        "That sounds cold. Praise the student in the comment.",
        "Please be warmer, children need encouragement.",
        "No, there is no praise in it. Write it again with some.",
    ),
    approve=_thanks("Lovely, thank you.", "That is the tone I like.", "Thanks, the student will be happy."),
    max_tokens=256,
)
