"""What a person does with a reply, read without a judge: a score and a weight for each action.

| action | score | weight | counts |
|---|---|---|---|
| a thumb, or a score | its own | 1 | always; the last one |
| a correction in words, such as "I meant the other one" | -1 | 1 | unless there is a thumb or a score |
| the reply edited by hand | -1 | 1 | the same |
| the reply regenerated | -1 | 0.5 | if there is no reaction in words |
| the reply copied | 1 | 0.5 | the same |
| silence | none | 0 | never: it may be content or anger |

The weight multiplies the reward of the turn's sample. Guarantees: pure functions, in time linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from groundwork.chat_messages import Message
from openclaw.messages.classify import is_internal, user_words

Action = Literal["edited", "regenerated", "copied"]


class ActionSignal(NamedTuple):
    """What an action says: its score, its weight, and whether any reaction in words outranks it."""

    score: int
    weight: float
    weak: bool


ACTIONS: Mapping[Action, ActionSignal] = {
    "edited": ActionSignal(-1, 1.0, weak=False),
    "regenerated": ActionSignal(-1, 0.5, weak=True),
    "copied": ActionSignal(1, 0.5, weak=True),
}
CORRECTED = ActionSignal(-1, 1.0, weak=False)
"""What a correction in words says."""
WEAK = tuple(action for action, signal in ACTIONS.items() if signal.weak)

MAX_CORRECTION = 1000
"""Characters; a longer message is more than a correction."""
CORRECTION = re.compile(
    r"\s*(?:(?:no|nope|sorry|wrong|nein|falsch|non|faux|incorrecto)[\s,.!:;-]{1,4}|不[，,。.\s]{0,3})?"
    r"(?:i (?:actually )?meant(?! (?:to|well|no)\b)|what i (?:actually )?meant (?:is|was)\b"
    r"|i (?:didn['’]t|did not) (?:mean|ask for|ask you to)\b|(?:that|this|it)(?:['’]s| is) not what i (?:meant|asked|wanted)\b"
    r"|(?:so |das |es )?(?:habe ich|hab ich) (?:das |es )?(?:so )?nicht gemeint\b|(?:das )?meinte ich nicht\b|ich meinte\b"
    r"|je voulais dire\b|ce n['’]est pas ce que j|quise decir\b|quería decir\b|no es lo que (?:pedí|quería)\b"
    r"|我的意思是|我不是(?:这个|那个)意思|不是我要的)",
    re.IGNORECASE,
)


def is_correction(text: str) -> bool:
    """Return whether a message says outright that the reply is not what its writer meant.

    Example:
        >>> is_correction("No, I meant the second file."), is_correction("I meant to ask: who are you?")
        (True, False)
    """
    return len(text) <= MAX_CORRECTION and CORRECTION.match(text) is not None


def corrects(messages: Sequence[Message]) -> bool:
    """Return whether one of the user's messages is a correction."""
    return any(
        is_correction(user_words(message))
        for message in messages
        if message.get("role") == "user" and not is_internal(message)
    )
