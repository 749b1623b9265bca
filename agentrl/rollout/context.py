"""What is left out of a conversation that no longer fits: whole messages, never tokens.

A conversation that fits stays as it is. One that does not is cut to `SHARE` of its budget if that is possible, and stays
cut, so that the turns after it extend each other again. The first messages, with which the episode began, always stay.

* ``none``: nothing is left out.
* ``drop_middle``: exchanges (a reply and what followed it) go from the middle; of those that stay, 30 % or the given share are the oldest.
* ``elide``: all but the newest observations shrink to their ends; replies stay.

Whatever the policy, all but the newest pictures are left out (`without_old_pictures`).

Guarantees: deterministic. The length is that of the rendered prompt, tools included. A policy that cannot make the
conversation fit changes nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from agentrl.rollout.pictures import IMAGE, numbers_of, parts_of
from groundwork.chat_messages import Message
from openclaw.messages.text import clip_middle, content_text

Kept = list[tuple[int | None, Message]]
"""The messages that stay, each with its old position; None if it is new or changed."""
Policy = Literal["none", "drop_middle", "elide"]
SHARE = 0.75
OLDEST_SHARE = 0.3
NOTE = "[{} earlier exchanges are left out]"
NO_PICTURE = "[an older picture is left out]"
ELIDED_CHARACTERS = (800, 200, 40)
"""An old observation's length, tried in this order."""


@dataclass(frozen=True)
class Cut:
    """A conversation that was cut, and what is missing: the old positions of messages that were dropped or shortened."""

    kept: Kept
    dropped: tuple[int, ...] = ()
    shortened: tuple[int, ...] = ()


def cut(
    policy: Policy,
    messages: Sequence[Message],
    budget: int,
    length: Callable[[Kept], int],
    *,
    first: int,
    keep_observations: int = 3,
    oldest_share: float = OLDEST_SHARE,
) -> Cut | None:
    """Return a conversation cut to at most ``budget`` tokens, or None if the policy cannot do that.

    Args:
        policy: what to leave out.
        messages: the conversation, which is too long.
        budget: most tokens of the prompt.
        length: number of tokens of the prompt of messages.
        first: number of messages with which the episode began.
        keep_observations: of ``elide``, the newest observations that stay whole.
        oldest_share: of the exchanges that ``drop_middle`` keeps, the share of the oldest.
    """
    candidates = {
        "none": lambda: iter(()),
        "drop_middle": lambda: _without_middle(messages, first, oldest_share),
        "elide": lambda: _elided(messages, first, keep_observations),
    }[policy]()
    fitting: Cut | None = None
    for candidate in candidates:
        count = length(candidate.kept)
        if count <= budget:
            fitting = candidate
        if count <= SHARE * budget:
            break
    return fitting


def without_old_pictures(messages: Sequence[Message], keep: int) -> Cut | None:
    """Return a conversation with only its ``keep`` newest pictures; None if it has no more."""
    old = len(numbers_of(messages)) - keep
    if old <= 0:
        return None
    kept: Kept = []
    shortened: list[int] = []
    for position, message in enumerate(messages):
        here = len(numbers_of([message]))
        if not here or old <= 0:
            kept.append((position, message))
            continue
        parts: list[Message] = []
        for part in parts_of(message):
            gone = part["type"] == IMAGE and old > 0
            old -= gone
            parts.append({"type": "text", "text": NO_PICTURE + "\n"} if gone else part)
        kept.append((None, {**message, "content": parts}))
        shortened.append(position)
    return Cut(kept, shortened=tuple(shortened))


def exchanges(messages: Sequence[Message], first: int) -> list[range]:
    """Return the positions of each exchange after the ``first`` messages."""
    replies = [position for position in range(first, len(messages)) if messages[position]["role"] == "assistant"]
    return [range(*pair) for pair in itertools.pairwise([*replies, len(messages)])]


def _without_middle(messages: Sequence[Message], first: int, oldest_share: float) -> Iterator[Cut]:
    """Yield the conversation with fewer and fewer exchanges; the newest always stays."""
    found = exchanges(messages, first)
    for stay in range(len(found) - 1, 0, -1):
        oldest = min(int(oldest_share * stay), stay - 1)
        gone = found[oldest : len(found) - (stay - oldest)]
        note: Message = {"role": "user", "content": NOTE.format(len(gone))}
        head: Kept = [(position, messages[position]) for position in range(gone[0].start)]
        tail: Kept = [(position, messages[position]) for position in range(gone[-1].stop, len(messages))]
        dropped = tuple(position for exchange in gone for position in exchange)
        yield Cut([*head, (None, note), *tail], dropped=dropped)


def _elided(messages: Sequence[Message], first: int, keep: int) -> Iterator[Cut]:
    """Yield the conversation with shorter and shorter old observations."""
    heard = [n for n in range(first, len(messages)) if messages[n]["role"] != "assistant"]
    old = heard[: len(heard) - keep] if keep else heard
    for characters in ELIDED_CHARACTERS:
        kept: Kept = []
        shortened: list[int] = []
        for position, message in enumerate(messages):
            text = content_text(message.get("content"))
            if position in old and len(short := clip_middle(text, characters)) < len(text):
                kept.append((None, {**message, "content": short}))
                shortened.append(position)
            else:
                kept.append((position, message))
        yield Cut(kept, shortened=tuple(shortened))
