r"""A simulated user who talks about homework and has one taste; the student's is no bold, no list, no ``\boxed``.

Guarantees: deterministic in ``seed`` and the replies. The taste is a fixed rule of the persona (`personas`). The student's
phrases are held out from the judge's training. The assistant gets what any user's client sends: chat completions over
the OpenAI SDK, with a session id unless the client is plain. A disliked reply gets a complaint, a liked one thanks and the next problem. So every
reply except a session's last has a next state. Nothing is retried; refused requests are counted.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from measure import Item
from personas import STUDENT, Persona, draw_item

if TYPE_CHECKING:
    from openai import AsyncOpenAI

RECENT = 50
LAST_WORD_TOKENS = 16
REFUSED_PAUSE_SECONDS = 0.5
TURN_TYPE_MAIN = "main"


@dataclass
class Tally:
    """The student's counts so far."""

    sessions: int = 0
    turns: int = 0
    requests: int = 0
    refused: int = 0
    complaints: int = 0
    tokens: int = 0
    errors: list[str] = field(default_factory=list)
    recent: deque[bool] = field(default_factory=lambda: deque(maxlen=RECENT))

    @property
    def recent_rule_rate(self) -> float | None:
        """Share of the last first replies that the student liked."""
        return sum(self.recent) / len(self.recent) if self.recent else None


class Refused(RuntimeError):
    """The server refused a request."""


async def always() -> None:
    """Let the student continue at once."""


class Student:
    """One student with any number of conversations; owns its tally."""

    def __init__(
        self,
        client: AsyncOpenAI,
        model: str,
        *,
        seed: int = 0,
        max_turns: int = 3,
        name: str | None = None,
        persona: Persona = STUDENT,
        plain: bool = False,
        problems: Sequence[Item] = (),
        may_go_on: Callable[[], Awaitable[None]] = always,
    ) -> None:
        """Create the student.

        Args:
            client: of the server; switch its retries off, so that refusals show.
            model: model name in requests.
            seed: of problems and words.
            max_turns: user messages per session; the last one only reacts.
            name: prefix of session ids; default: the persona's.
            persona: who the user is.
            plain: send no header of ours, like any OpenAI client.
            problems: topics of the conversations, in order; default: generated ones.
            may_go_on: awaited before each session, for example to wait for the trainer.
        """
        if max_turns < 2:
            raise ValueError("max_turns must be 2 or more: the first reply needs a reaction")
        self._client, self._model = client, model
        self._seed, self._max_turns, self._name = seed, max_turns, name or persona.name
        self._persona, self._plain, self._problems = persona, plain, problems
        self._may_go_on = may_go_on
        self.tally = Tally()

    async def talk(self, parallel: int, stop: asyncio.Event, sessions: int | None = None) -> None:
        """Hold ``parallel`` conversations at a time until ``stop`` is set or ``sessions`` are held."""
        numbers = iter(range(sessions)) if sessions is not None else iter(range(10**9))

        async def one_after_another() -> None:
            for number in numbers:
                await self._may_go_on()
                if stop.is_set():
                    return
                try:
                    await self.session(number)
                except Refused as error:
                    self.tally.errors.append(str(error))
                    await asyncio.sleep(REFUSED_PAUSE_SECONDS)

        async with asyncio.TaskGroup() as group:
            for _ in range(parallel):
                group.create_task(one_after_another())

    async def session(self, number: int) -> list[dict[str, Any]]:
        """Hold one conversation and return its messages.

        Raises:
            Refused: when a request is not answered.
        """
        rng = random.Random(f"{self._seed}/{number}")
        session_id = f"{self._name}-{self._seed}-{number}"
        messages: list[dict[str, Any]] = [{"role": "user", "content": self._opening(rng, number)}]
        self.tally.sessions += 1
        for turn in range(self._max_turns):
            last = turn == self._max_turns - 1
            reply = await self._ask(messages, session_id, last)
            messages.append({"role": "assistant", "content": reply})
            if last:
                break
            liked = self._persona.likes(reply)
            if turn == 0:
                self.tally.recent.append(liked)
            closing = turn == self._max_turns - 2
            content = self._reaction(rng, liked, None if closing else number + 1)
            messages.append({"role": "user", "content": content})
        return messages

    def _opening(self, rng: random.Random, number: int) -> str:
        item = self._problems[number % len(self._problems)] if self._problems else draw_item(rng)
        return self._persona.opening(item)

    def _reaction(self, rng: random.Random, liked: bool, following: int | None) -> str:
        """Return a complaint, or approval with the problem ``following``; None ends the conversation."""
        self.tally.complaints += not liked
        if not liked:
            return self._persona.complain(rng)
        return self._persona.approve(rng, None if following is None else self._opening(rng, following))

    async def _ask(self, messages: list[dict[str, Any]], session_id: str, last: bool) -> str:
        headers = {} if self._plain else {"X-Session-Id": session_id, "X-Turn-Type": TURN_TYPE_MAIN}
        if last and not self._plain:
            headers["X-Session-Done"] = "1"
        self.tally.requests += 1
        from openai import APIConnectionError, APIStatusError

        try:
            completion = await self._client.chat.completions.create(
                model=self._model,
                messages=messages,  # type: ignore[arg-type]
                max_tokens=LAST_WORD_TOKENS if last else self._persona.max_tokens,
                extra_headers=headers,
            )
        except (APIConnectionError, APIStatusError) as error:
            self.tally.refused += 1
            raise Refused(f"{session_id}: {error}") from error
        self.tally.turns += 1
        if completion.usage:
            self.tally.tokens += completion.usage.completion_tokens
        return completion.choices[0].message.content or ""
