"""How a simulated user talks: one problem, a reaction to each reply, and the next problem after a liked one.

Guarantees: deterministic in ``seed`` and the replies, unless an LLM writes the reactions. The user (`simulated_users.user`) has a
fixed rule. The assistant gets what any user's client sends: chat completions over the OpenAI SDK, with a session id unless the
client is plain. A disliked reply gets a complaint, a liked one thanks and the next problem. So every reply except a session's
last has a next state. Nothing is retried; refused requests are counted.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from measure import LESSONS_HEADER, Item, draw_item
from simulated_users.reaction import PhraseVoice, Voice
from simulated_users.reading import find_user
from simulated_users.user import User
from simulated_users.workspace import Chat, Form

if TYPE_CHECKING:
    from openai import AsyncOpenAI

RECENT = 50
LAST_WORD_TOKENS = 16
REFUSED_PAUSE_SECONDS = 0.5
TURN_TYPE_MAIN, TURN_TYPE_SIDE = "main", "side"
STUDENT = find_user("student")
"""The user of the demo."""


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
    """One user with any number of conversations; owns its tally."""

    def __init__(
        self,
        client: AsyncOpenAI,
        model: str,
        *,
        seed: int = 0,
        max_turns: int | None = None,
        name: str | None = None,
        user: User = STUDENT,
        voice: Voice | None = None,
        form: Form | None = None,
        plain: bool = False,
        trained: bool = True,
        declines_lessons: bool = False,
        problems: Sequence[Item] = (),
        may_go_on: Callable[[], Awaitable[None]] = always,
    ) -> None:
        """Create the student.

        Args:
            client: of the server; switch its retries off, so that refusals show.
            model: model name in requests.
            seed: of problems and words.
            max_turns: user messages per session; the last one only reacts. Default: the user's.
            name: prefix of session ids; default: the user's.
            user: rule, words and limits.
            voice: who writes the reactions; default: the user's phrases.
            form: how problems are handed over; default: in the chat.
            plain: send no header of ours, like any OpenAI client.
            trained: whether the server may train on the conversations; False needs headers.
            declines_lessons: whether no prompt may have lessons, so that the replies show what the weights know; needs headers.
            problems: topics of the conversations, in order; default: generated ones.
            may_go_on: awaited before each session, for example to wait for the trainer.
        """
        turns = user.turns if max_turns is None else max_turns
        if turns < 2:
            raise ValueError("max_turns must be 2 or more: the first reply needs a reaction")
        if plain and not trained:
            raise ValueError("a plain client cannot keep its conversations from training")
        if plain and declines_lessons:
            raise ValueError("a plain client cannot decline lessons")
        self._client, self._model = client, model
        self._seed, self._max_turns, self._name = seed, turns, name or user.name
        self._user, self._plain, self._trained, self._problems = user, plain, trained, problems
        self._declines_lessons = declines_lessons
        self._voice, self._form = voice or PhraseVoice(user), form or Chat()
        self._may_go_on = may_go_on
        self.tally = Tally()
        self.opinions: dict[int, list[bool]] = {}
        """Whether the user liked each reply but the last one, by session number."""

    @property
    def first_replies(self) -> dict[int, bool]:
        """Whether the user liked the first reply, by session number."""
        return {number: liked[0] for number, liked in self.opinions.items() if liked}

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
            UserModelError: when the user's LLM does not react.
        """
        rng, problem = random.Random(f"{self._seed}/{number}"), 0
        session_id = f"{self._name}-{self._seed}-{number}"
        opening = self._form.hand_over(number, problem, self._opening(rng, number))
        messages: list[dict[str, Any]] = [{"role": "user", "content": opening}]
        opinions = self.opinions[number] = []
        self.tally.sessions += 1
        for turn in range(self._max_turns):
            last = turn == self._max_turns - 1
            reply = await self._ask(messages, session_id, last)
            messages.append({"role": "assistant", "content": reply})
            if last:
                break
            liked = self._user.likes(self._form.answer(number, problem, reply))
            if turn == 0:
                self.tally.recent.append(liked)
            opinions.append(liked)
            self.tally.complaints += not liked
            following = None
            if liked and turn < self._max_turns - 2:
                problem += 1
                following = self._form.hand_over(number, problem, self._opening(rng, number + 1))
            reaction = await self._voice.react(rng, messages, liked, following)
            messages.append({"role": "user", "content": reaction})
        return messages

    def _opening(self, rng: random.Random, number: int) -> str:
        item = self._problems[number % len(self._problems)] if self._problems else draw_item(rng)
        return self._user.first_message(item)

    async def _ask(self, messages: list[dict[str, Any]], session_id: str, last: bool) -> str:
        turn_type, agent = TURN_TYPE_MAIN if self._trained else TURN_TYPE_SIDE, self._form.through_agent
        headers = {} if self._plain or agent else {"X-Session-Id": session_id, "X-Turn-Type": turn_type}
        if last and headers:
            headers["X-Session-Done"] = "1"
        if self._declines_lessons:
            headers[LESSONS_HEADER] = "off"
        more: dict[str, Any] = {} if self._user.temperature is None else {"temperature": self._user.temperature}
        if agent:
            more["user"] = session_id
        self.tally.requests += 1
        from openai import APIConnectionError, APIStatusError

        try:
            completion = await self._client.chat.completions.create(
                model=self._model,
                messages=messages[-1:] if agent else messages,  # type: ignore[arg-type]
                max_tokens=LAST_WORD_TOKENS if last else self._user.max_tokens,
                extra_headers=headers,
                **more,
            )
        except (APIConnectionError, APIStatusError) as error:
            self.tally.refused += 1
            raise Refused(f"{session_id}: {error} ({error.__cause__!r})") from error
        self.tally.turns += 1
        if completion.usage:
            self.tally.tokens += completion.usage.completion_tokens
        return completion.choices[0].message.content or ""
