"""Who puts a user's reaction into words: its phrases, or an LLM (`simulated_users.llm`)."""

from __future__ import annotations

import random
from typing import Any, Protocol

from simulated_users.user import User


class Voice(Protocol):
    """Says what a user says after a reply."""

    async def react(
        self, rng: random.Random, messages: list[dict[str, Any]], liked: bool, following: str | None
    ) -> str:
        """Return the user's next message.

        Args:
            rng: of the session.
            messages: the conversation so far; its last message is the reply.
            liked: whether the reply follows the rule.
            following: the next opening message if the reply was liked; None at the end.
        """
        ...


class PhraseVoice:
    """The phrases of a user; deterministic in the random generator."""

    def __init__(self, user: User) -> None:
        self._user = user

    async def react(
        self, rng: random.Random, messages: list[dict[str, Any]], liked: bool, following: str | None
    ) -> str:
        """Return thanks with ``following``, or a complaint."""
        return self._user.approve(rng, following) if liked else self._user.complain(rng)
