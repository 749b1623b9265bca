"""What practice does next: which lessons the teacher reads, how many replies a round draws, how far the weights are, when it ends.

The teacher is the base model that reads the lessons, and means them a little more than it does (`emphasised`); the student is
the present weights without them. How far the student is from
it is the reverse KL at the tokens of the student's own replies, ``sum_v p(v) (log p(v) - log q(v))`` with the student's ``p`` and
the teacher's ``q``. Each engine reports its likeliest tokens only, so ``v`` runs over those that both report and one bucket for
all others. Merging tokens never raises a KL, so it is a lower bound; with 50 tokens it is close.

Pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Literal

from openclaw.judge.group import TIE
from openclaw.ledger.practice import Round
from openclaw.ledger.records import TopK, Turn
from openclaw.lessons.lesson import MAX_SERVED, Lesson, chosen

Wanted = Literal["off", "liked", "trial"]
"""Which lessons are practised: none, those with a like, or also those on trial that nobody has judged yet."""

PROMPTS = 4
"""Prompts of a round."""
REPLIES = 4
"""Replies drawn to each prompt of a round without the lessons."""
LESSONED_REPLIES = 2
"""Replies drawn to each prompt of a round with the lessons in it, so that weights which learn them still read them well."""
HELDOUT_REPLIES = 2
"""Replies drawn to each held-out prompt before a round."""
REPLY_TOKENS = 1024
"""Longest practised reply."""
NEAR = 0.005
"""Nats per token from the teacher at which the weights do without the lessons what it does with them.

Most tokens of a reply do not depend on a wish, so the mean is small: 0.011 is three quarters of the way, log/practice.md.
"""
PATIENCE = 2
"""Rounds without a fall of that distance after which practice ends."""
DAY = 86400.0
MIN_TAIL = 1e-6


def qualifies(lesson: Lesson, wanted: Wanted) -> bool:
    """Return whether a lesson may be practised: nobody's replies under it were disliked more often than liked."""
    if not lesson.is_served or lesson.liked < lesson.disliked:
        return False
    return lesson.liked > 0 or wanted == "trial"


def taught(
    lessons: Sequence[Lesson], wanted: Wanted, tokens: Callable[[str], int], context: int, most: int = MAX_SERVED
) -> list[Lesson]:
    """Return the lessons that the teacher reads together, in the order of the prompt; none if no lesson is to be practised.

    Those that rest because the weights have learned them are among them, or practising another would unlearn them. Where not
    all have room, those to be practised come first.

    Args:
        lessons: of one person with their evidence, the latest changed last.
        wanted: which are practised.
        tokens: counts the tokens of a text.
        context: tokens of prompt plus reply.
        most: lessons that a prompt has.
    """
    if not any(qualifies(each, wanted) for each in lessons):
        return []
    read = [replace(each, state="active") for each in lessons if each.is_learned or qualifies(each, wanted)]
    due = {each.id for each in lessons if qualifies(each, wanted)}
    kept = {each.id for each in chosen(sorted(read, key=lambda each: each.id in due), tokens, context, most)}
    return [each for each in read if each.id in kept]


def series_of(lessons: Sequence[Lesson]) -> str:
    """Return the digest of what a teacher reads; it changes with a lesson's words, and when its complaint is repeated."""
    names = "\n".join(f"{each.id} {each.changed_at!r}" for each in lessons)
    return blake2b(names.encode(), digest_size=8).hexdigest()


def person_name(person: str) -> str:
    """Return a person's name in logs."""
    return blake2b(person.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


def is_over(rounds: Sequence[Round], now: float) -> bool:
    """Return whether a series has ended: its lessons are in the weights, or practice does not bring them there.

    After a day it is measured again, because other steps may have moved the weights.
    """
    return any(each.at > now - DAY and each.outcome in ("reached", "stuck") for each in rounds)


def may_begin(rounds: Sequence[Round], now: float, most: int) -> bool:
    """Return whether another round may begin, of which a day has ``most``."""
    return sum(each.at > now - DAY and each.outcome in ("drawn", "failed") for each in rounds) < most


def may_go_unmeasured(rounds: Sequence[Round], prompts: int, most: int) -> bool:
    """Return whether a round may begin that nothing measures: ``most`` for each of a person's ``prompts``, on whatever days.

    Nothing else ends such practice, so a person who never comes back would practise the same prompt every day.
    """
    return sum(each.outcome == "drawn" and each.kl is None for each in rounds) < most * prompts


def verdict_of(
    kl: float | None, rounds: Sequence[Round], *, measured: bool = True
) -> Literal["drawn", "reached", "stuck"]:
    """Return what follows from the distance ``kl`` after ``rounds``; None: nothing is held out yet, so practice goes on.

    ``measured``: on as many held-out prompts as there shall be.

    Nothing is reached before the first round, because a single measurement may be of prompts to which the lessons matter little.
    """
    if kl is None:
        return "drawn"
    before = [each.kl for each in rounds if each.outcome == "drawn" and each.kl is not None]
    if kl < NEAR and before and measured:
        return "reached"
    latest = [*before[1:], kl][-PATIENCE:]
    if len(before) >= PATIENCE and min(latest) >= before[-PATIENCE]:
        return "stuck"
    return "drawn"


@dataclass(frozen=True)
class Prompt:
    """The prompt of a stored turn: ``student_ids`` as the policy reads it, ``teacher_ids`` with the lessons."""

    turn: Turn
    student_ids: list[int]
    teacher_ids: list[int]

    @property
    def lessoned(self) -> Prompt:
        """The prompt where the policy, too, reads the lessons."""
        return replace(self, student_ids=self.teacher_ids)

    @property
    def is_plain(self) -> bool:
        """Whether the policy reads no lessons."""
        return self.student_ids != self.teacher_ids


def reply_room(prompt: Prompt, longest: int, context: int) -> int:
    """Return the tokens of a reply to a prompt: at most ``longest`` and `REPLY_TOKENS`, so that both readings fit ``context``."""
    return min(longest, REPLY_TOKENS, context - max(len(prompt.student_ids), len(prompt.teacher_ids)))


def replies_of_round(prompts: Sequence[Prompt], budget: int, longest: int, context: int) -> list[tuple[Prompt, int]]:
    """Return the prompts of a round, each with the number of its replies; the first replies to all come before second ones.

    Those to prompts that have the lessons come last (`LESSONED_REPLIES`).

    Args:
        prompts: that may be practised, the best first.
        budget: tokens of all prompts and replies of the round; a prompt counts with each of its replies.
        longest: tokens of a reply.
        context: tokens of prompt plus reply.
    """
    plain = list(prompts[:PROMPTS])
    lessoned = [prompt.lessoned for prompt in plain]
    read = [*plain, *lessoned]
    counts = [0] * len(read)
    turns = [*range(len(plain))] * REPLIES + [*range(len(plain), len(read))] * LESSONED_REPLIES
    for number in turns:
        room = reply_room(read[number], longest, context)
        size = len(read[number].student_ids) + room
        if room > 0 and size <= budget:
            budget -= size
            counts[number] += 1
    return [(prompt, count) for prompt, count in zip(read, counts, strict=True) if count]


RUBRIC_RATE = 0.2
"""Reward of a reply that obeys, above the mean of its group: a group counts a fifth of what a judged turn does."""


def group_rewards(scores: Sequence[float]) -> list[float]:
    """Return the rewards of the replies to one prompt with scores from 0 to 1: above or below their mean; none if all are alike.

    No standard deviation divides them, or a group in which one reply differs by chance would count most.
    """
    if not scores or max(scores) - min(scores) <= TIE:
        return []
    mean = sum(scores) / len(scores)
    return [RUBRIC_RATE * (each - mean) for each in scores]


REPLAYS = 2
"""How often a turn is trained again."""
FAR = 1.0
"""Mean distance in nats per token from what the weights thought of a reply when they sampled it, from which it is not replayed."""


def is_near(sampled: Sequence[float], now: Sequence[float]) -> bool:
    """Return whether weights are near enough to those that sampled a reply to train it again.

    Args:
        sampled: log probabilities of its tokens when they were sampled.
        now: those of the present weights at the same temperature.
    """
    distances = [abs(one - other) for one, other in zip(sampled, now, strict=True)]
    return bool(distances) and math.fsum(distances) / len(distances) < FAR


EMPHASIS = 1.0
"""The most nats by which the teacher raises or lowers a token beyond the base model that reads the lessons:
log/practice_teacher.md#bounded-emphasis."""


def emphasised(taught: TopK, plain: TopK, most: float = EMPHASIS) -> TopK:
    """Return a teacher's tokens with what the lessons change counted twice, up to a bound: ``log q(v) + d(v)``, normalised.

    ``d(v)`` is ``log q(v) - log p(v)``, at most ``most`` up or down. Tokens that the lessons do not touch, such as the numbers of
    an answer, keep their odds. All tokens outside the lists keep their share.

    Args:
        taught: the likeliest tokens of the base model that reads the lessons, ``q``.
        plain: those of the base model without them, ``p``, at the same positions. A token that is not among them counts as
            the least likely of them, which is more than it has.
        most: nats; 0 gives ``taught``.
    """
    rows: list[list[float]] = []
    for ids, values, known, others in zip(taught.ids, taught.log_probs, plain.ids, plain.log_probs, strict=True):
        without, least = dict(zip(known, others, strict=True)), min(others)
        changes = [value - without.get(token, least) for token, value in zip(ids, values, strict=True)]
        raised = [value + min(most, max(-most, change)) for value, change in zip(values, changes, strict=True)]
        rest = max(0.0, 1.0 - math.fsum(map(math.exp, values)))
        whole = math.log(math.fsum(map(math.exp, raised)) + rest)
        rows.append([value - whole for value in raised])
    return TopK(rows, taught.ids)


def distance(student: TopK, teacher: TopK) -> float:
    """Return the sum over positions of the KL of the student from the teacher, in nats."""
    return math.fsum(
        _divergence(dict(zip(own_ids, own, strict=True)), dict(zip(their_ids, theirs, strict=True)))
        for own_ids, own, their_ids, theirs in zip(
            student.ids, student.log_probs, teacher.ids, teacher.log_probs, strict=True
        )
    )


def _divergence(student: dict[int, float], teacher: dict[int, float]) -> float:
    common = student.keys() & teacher.keys()
    inside = math.fsum(math.exp(student[token]) * (student[token] - teacher[token]) for token in common)
    p, q = (
        max(MIN_TAIL, 1.0 - math.fsum(math.exp(values[token]) for token in common)) for values in (student, teacher)
    )
    return inside + p * math.log(p / q)
