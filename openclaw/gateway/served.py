"""Replies of ours that a request carries back, with the ids that were sampled.

Guarantees: a reply is known by its owner and the digest of its whole conversation, so its own words alone never give
it ids. Memory holds `MAX_REMEMBERED_TOKENS`, evicted least recently used first; replies that memory lacks are looked
up in the ledger, which has none of forgotten or redacted turns. Replies that it lacks are remembered, too, but only if no
other process records any. Owns the memory; used from one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from chat_codec.formats import ReplyFormat
from chat_codec.renderer import PROMPT_END_TOKENS, Served, ServedReply
from groundwork.chat_messages import Message
from openclaw.ledger.exceptions import LedgerError
from openclaw.ledger.records import Turn
from openclaw.ledger.turns import Turns
from openclaw.messages.fingerprint import History, read_history
from openclaw.owners import LOCAL

logger = logging.getLogger(__name__)

MAX_REMEMBERED_TOKENS = 4_000_000  # 16 MB of ids
TOKENS_PER_REPLY = 64
"""What a reply counts in addition to its ids."""
MAX_UNKNOWN = 65_536
LOOKED_UP_REPLIES = 64


class ServedReplies:
    """Remembers replies and finds them in requests."""

    def __init__(
        self, turns: Turns, form: ReplyFormat, placeholders: Collection[int] = (), *, alone: bool = True
    ) -> None:
        """Create an empty memory over the ledger's ``turns`` for replies of the format ``form``.

        ``alone``: no other process records replies. A reply with one of ``placeholders`` is rendered from its text, because
        an engine would look for a picture.
        """
        self._turns = turns
        self._alone = alone
        self._form = form
        self._placeholders = frozenset(placeholders)
        self._known: OrderedDict[bytes, ServedReply] = OrderedDict()
        self._unknown: OrderedDict[bytes, None] = OrderedDict()
        self._tokens = 0
        self._forgotten = 0

    def remember(self, turn: Turn) -> None:
        """Keep the ids of a turn in the ledger; one that has lost its conversation or its ids is left out."""
        if turn.conversation is not None and turn.response_ids:
            self._add(turn.conversation, turn.response_ids, turn.prompt_ids[-PROMPT_END_TOKENS:])

    def forget(self) -> None:
        """Clear the memory."""
        self._known.clear()
        self._unknown.clear()
        self._tokens = 0
        self._forgotten += 1

    async def find(
        self, messages: Sequence[Message], schemas: Mapping[str, Mapping[str, Any]], owner: str = LOCAL
    ) -> tuple[Served, History | None]:
        """Return our replies to ``owner`` among a request's messages, and its digests if it has assistant messages.

        Without the ledger, only replies in memory are found.
        """
        if not any(message.get("role") == "assistant" for message in messages):
            return Served({}, self._form), None
        history = read_history(messages, owner)
        carried = history.replies
        missing = [
            reply.conversation
            for reply in carried
            if reply.conversation not in self._known and reply.conversation not in self._unknown
        ]
        if missing:
            await self._look_up(missing[:LOOKED_UP_REPLIES])
        replies = {}
        for reply in reversed(carried):
            if (value := self._known.get(reply.conversation)) is not None:
                self._known.move_to_end(reply.conversation)
                replies[reply.position] = value
        return Served(replies, self._form, schemas), history

    async def _look_up(self, digests: Sequence[bytes]) -> None:
        before = self._forgotten
        try:
            records = await asyncio.to_thread(self._turns.recorded_replies, digests, PROMPT_END_TOKENS)
        except LedgerError as error:
            logger.warning("earlier replies are rendered, because the ledger cannot be read: %s", error)
            return
        if before != self._forgotten:
            return  # what was read may belong to the forgotten session
        for record in records:
            if record.conversation not in self._known:
                self._add(record.conversation, record.response_ids, record.prompt_end)
        for digest in digests:
            if self._alone and digest not in self._known:
                self._unknown[digest] = None
        while len(self._unknown) > MAX_UNKNOWN:
            self._unknown.popitem(last=False)

    def _add(self, conversation: bytes, ids: Sequence[int], prompt_end: Sequence[int]) -> None:
        if not self._placeholders.isdisjoint(ids):
            self._unknown[conversation] = None
            return
        self._unknown.pop(conversation, None)
        if (old := self._known.pop(conversation, None)) is not None:
            self._tokens -= _size(old)
        reply = self._known[conversation] = ServedReply(array("i", ids), array("i", prompt_end))
        self._tokens += _size(reply)
        while self._tokens > MAX_REMEMBERED_TOKENS:
            self._tokens -= _size(self._known.popitem(last=False)[1])


def _size(reply: ServedReply) -> int:
    """Return what a reply counts in memory, in tokens."""
    return len(reply.ids) + TOKENS_PER_REPLY
