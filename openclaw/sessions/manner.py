"""How a request asks, besides its words, and which words a conversation went on without.

Nobody goes on from the reply to a client's own request, but nobody goes on from the reply to a user's last words either. Two
things tell them apart without knowing the client. A client asks for something of its own in another manner than it asked
for the turn before: without the tools, for a structured answer, or under other instructions. And it says
the same long words again after another reply, though a conversation went on without them.

A user's request may do so, too, so this excludes nothing: `openclaw.sessions.earlier_turns` waits until the conversation
goes on from the reply. Memory only: after a restart no manner and no words are known.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from groundwork.chat_messages import Message
from openclaw.messages.text import content_text

LOOKED_AT = 96
END_CHARACTERS = 24
LONG_WORDS = 40
"""A person may say "thanks" again after an edit, but hardly a sentence of this many characters."""
REMEMBERED_WORDS = 4096


@dataclass(frozen=True, slots=True)
class Manner:
    """How a request asks, besides its words.

    Attributes:
        tools: whether the model may call any.
        structured: whether the answer must be JSON.
        streamed: whether it asks for a stream.
        system: hashes of how its first system message begins and ends, without digits and spaces; None without one.
    """

    tools: bool = False
    structured: bool = False
    streamed: bool = False
    system: tuple[int, int] | None = None

    def departs_from(self, usual: Manner) -> bool:
        """Return whether a client asks so for something of its own, if it asked for the turn before in the ``usual`` manner.

        A stream in one turn and none in the next is no sign, because people's own programs mix them. Nor are more tools,
        another length or a time of day in the instructions, because they change in a conversation, or instructions that
        are missing: a response that continues one by its id need not repeat them.
        """
        if (usual.tools and not self.tools) or (self.structured and not usual.structured):
            return True
        ends, others = self.system, usual.system
        return ends is not None and others is not None and ends[0] != others[0] and ends[1] != others[1]


def manner_of(messages: Sequence[Message], *, tools: bool, structured: bool, streamed: bool) -> Manner:
    """Return the manner of a request with these messages."""
    first = next((message for message in messages if message.get("role") in ("system", "developer")), None)
    text = content_text(first.get("content")).strip() if first else ""
    begins, ends = _letters(text[:LOOKED_AT])[:END_CHARACTERS], _letters(text[-LOOKED_AT:])[-END_CHARACTERS:]
    return Manner(tools, structured, streamed, (hash(begins), hash(ends)) if text else None)


def _letters(text: str) -> str:
    return "".join(character for character in text if not character.isdigit() and not character.isspace())


class PassedOver:
    """Next states that a conversation went on without, by owner; bounded."""

    def __init__(self) -> None:
        self._digests: OrderedDict[tuple[str, bytes], None] = OrderedDict()

    def add(self, owner: str, words: bytes) -> None:
        """Remember the digest of a next state that another one replaced."""
        self._digests[owner, words] = None
        self._digests.move_to_end((owner, words))
        if len(self._digests) > REMEMBERED_WORDS:
            self._digests.popitem(last=False)

    def discard(self, owner: str, words: bytes) -> None:
        """Forget words that a conversation went on from."""
        self._digests.pop((owner, words), None)

    def has(self, owner: str, words: bytes, following: Sequence[Message]) -> bool:
        """Return whether messages with the digest ``words`` are long and were passed over."""
        return (owner, words) in self._digests and sum(
            len(content_text(message.get("content"))) for message in following
        ) >= LONG_WORDS
