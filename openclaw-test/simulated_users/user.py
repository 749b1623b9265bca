"""One kind of simulated user: a fixed rule, the words of its reactions, and how it talks.

Guarantees: deterministic in the random generator. The rule is never told, only complained about. A user is immutable.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from string import Formatter
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationInfo,
    model_validator,
)

from simulated_users.rules import Rule, load_call

if TYPE_CHECKING:
    from measure import Item

OPENING_FIELDS = ("question", "answer")


@dataclass(frozen=True)
class Wording:
    """What a user may say: one of ``phrases``, or what ``function`` returns for a random generator."""

    phrases: tuple[str, ...] = ()
    function: Callable[..., str] | None = None

    def say(self, rng: random.Random, *about: str | None) -> str:
        """Return what the user says; ``about`` is for a function only."""
        return self.function(rng, *about) if self.function else rng.choice(self.phrases)


def _wording(value: Any, info: ValidationInfo) -> Wording:
    if isinstance(value, Wording):
        return value
    if isinstance(value, dict):
        if list(value) != ["call"] or not isinstance(value["call"], str):
            raise ValueError("is neither a list of phrases nor a function")
        return Wording(function=load_call(value["call"], info))
    if not isinstance(value, list) or not value:
        raise ValueError("is not a list of phrases")
    if wrong := [phrase for phrase in value if not isinstance(phrase, str) or not phrase.strip()]:
        raise ValueError(f"{wrong[0]!r} is not a phrase; put texts with a colon or a yes in quotes")
    return Wording(phrases=tuple(value))


def _name(value: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9-]*", value):
        raise ValueError(f"{value!r} is not made of small letters, digits and dashes, as a session id needs")
    return value


def _opening(value: str) -> str:
    try:
        names = {name for _, name, _, _ in Formatter().parse(value) if name is not None}
    except ValueError as error:
        raise ValueError(f"{error}; double a brace that you mean as such: {{{{") from error
    if unknown := names - set(OPENING_FIELDS):
        raise ValueError(f"has {{{min(unknown)}}}, but only {{question}} and {{answer}} are known")
    if "question" not in names:
        raise ValueError("does not have {question}, so the assistant would not learn the problem")
    return value


def _distinct(value: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(value)) != len(value):
        raise ValueError(f"{list(value)} repeats a seed, and equal runs are not evidence")
    return value


Words = Annotated[Wording, PlainValidator(_wording)]


class User(BaseModel):
    """One kind of user.

    Attributes:
        name: prefix of session ids; small letters, digits and dashes.
        wish: the rule in words, for people and for an LLM that plays the user.
        rule: by which the user likes a reply.
        opening: first message about a problem, with ``{question}`` and perhaps ``{answer}``.
        complaints: reactions to a reply that breaks the rule.
        thanks: reactions to one that follows it. A function gets the next opening message, too, which is None at the end.
        hints: what the user adds to each complaint: how to do better. Empty: nothing.
        turns: user messages per session; the last one only reacts.
        seeds: of the runs of a measurement.
        temperature: of replies, sent with each request; None leaves it to the server. A server does not train on a reply
            at another temperature than its own.
        max_tokens: limit on a reply.
        role: whom an LLM plays that writes the reactions; without it the user has its phrases only.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    name: Annotated[StrictStr, AfterValidator(_name)]
    wish: Annotated[StrictStr, Field(min_length=1)]
    rule: Rule
    opening: Annotated[StrictStr, AfterValidator(_opening)] = "{question}"
    complaints: Words
    thanks: Words
    hints: tuple[StrictStr, ...] = ()
    turns: Annotated[StrictInt, Field(ge=2)] = 3
    seeds: Annotated[tuple[StrictInt, ...], Field(min_length=1), AfterValidator(_distinct)] = (0, 1, 2)
    temperature: Annotated[StrictFloat | StrictInt, Field(ge=0, le=2)] | None = None
    max_tokens: Annotated[StrictInt, Field(ge=8)] = 160
    role: Annotated[StrictStr, Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if (least := self.rule.min_words) is not None and least > self.max_tokens:
            raise ValueError(
                f"rule.min_words {least} is above max_tokens {self.max_tokens}, where a reply is cut off, so no reply can "
                "follow the rule; raise max_tokens"
            )
        return self

    def likes(self, reply: str) -> bool:
        """Return whether a reply follows the rule; nobody likes an empty one."""
        return bool(reply.strip()) and self.rule.likes(reply)

    def first_message(self, item: Item) -> str:
        """Return the first message about a problem."""
        return self.opening.format(question=item.question, answer=item.answer)

    def complain(self, rng: random.Random) -> str:
        """Return the reaction to a reply that breaks the rule."""
        said = self.complaints.say(rng)
        return f"{said} {rng.choice(self.hints)}" if self.hints else said

    def approve(self, rng: random.Random, following: str | None) -> str:
        """Return the reaction to a reply that follows the rule, with the next message if there is one."""
        if self.thanks.function:
            return self.thanks.say(rng, following)
        return " ".join(filter(None, [self.thanks.say(rng), following]))
