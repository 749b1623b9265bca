"""Conversations for the tests of sessions: messages, and sessions over a ledger that can be restarted."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

from lab.testkit.ledger_records import make_turn
from openclaw.ledger.records import Turn
from openclaw.ledger.store import Ledger
from openclaw.sessions import Sessions, TurnContext
from openclaw.sessions.table import NODES_PER_SESSION

SYSTEM = {"role": "system", "content": "You are helpful."}
NUMBERS = itertools.count()
TOGETHER = 100


def user(text: str) -> dict[str, Any]:
    """Return a user's message."""
    return {"role": "user", "content": text}


def assistant(text: str | None, *calls: tuple[str, str], ids: str = "call") -> dict[str, Any]:
    """Return an assistant message with calls (name, arguments as JSON)."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {"id": f"{ids}{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for n, (name, arguments) in enumerate(calls)
        ]
    return message


def tool(text: str) -> dict[str, Any]:
    """Return a tool's result."""
    return {"role": "tool", "tool_call_id": "x", "content": text}


class World:
    """Sessions over a real ledger, a clock, and the events they reported; ``events`` grows as they happen."""

    def __init__(self, path: Path) -> None:
        """Open the ledger at ``path`` and sessions over it."""
        self.path = path
        self.now = 1000.0
        self.events: list[str] = []
        self.ledger = Ledger(path, clock=lambda: self.now)
        self.sessions = self.new_sessions()

    def new_sessions(self, **options: Any) -> Sessions:
        """Return sessions that know nothing but the ledger."""
        return Sessions(
            self.ledger,
            clock=lambda: self.now,
            on_event=self.events.append,
            **{"idle_seconds": 60, "max_sessions": 100, **options},
        )

    async def restart(self, **options: Any) -> None:
        """Forget everything that is not in the ledger."""
        await self.sessions.close()
        self.sessions = self.new_sessions(**options)

    async def close(self) -> None:
        """Let go of the ledger."""
        await self.sessions.close()
        self.ledger.close()

    def count(self, event: str) -> int:
        """Return how often something happened."""
        return self.events.count(event)

    async def turn(
        self,
        messages: list[dict[str, Any]],
        reply: dict[str, Any],
        *,
        session: str | None = None,
        finish_reason: str = "stop",
        headers: dict[str, str] | None = None,
        turn_id: str | None = None,
        **options: Any,
    ) -> tuple[TurnContext, Turn]:
        """One request with its reply."""
        stated = {"x-session-id": session} if session else {}
        context = await self.sessions.begin({**stated, **(headers or {})}, messages, **options)
        turn = make_turn(
            finish_reason=finish_reason,
            turn_id=turn_id or f"turn-{next(NUMBERS)}",
            session_id=context.session_id,
            kind=context.kind,
            messages=messages,
            response_message=reply,
            finished_at=self.now,
        )
        return context, await self.sessions.finish(context, turn)

    def next_state(self, turn: Turn) -> list[dict[str, Any]] | None:
        """Return what the ledger holds as a turn's next state."""
        return self.ledger.turns.get(turn.id).next_state


async def talk_past_memory(world: World, sessions: int, memory: int) -> None:
    """Let many sessions, half of them without an id, talk in turns; memory holds few of them, and nothing is missed.

    Raises:
        AssertionError: when memory holds more than it may or a next state is missed.
    """
    await world.restart(max_sessions=memory)
    first: list[Turn] = []

    async def begin(n: int) -> Turn:
        return (await world.turn([user(f"question {n}")], assistant("answer"), session=_name(n)))[1]

    async def go_on(n: int) -> str | None:
        messages = [user(f"question {n}"), assistant("answer"), user("thanks")]
        return (await world.turn(messages, assistant("welcome"), session=_name(n)))[0].next_state_of

    for start in range(0, sessions, TOGETHER):
        numbers = range(start, min(start + TOGETHER, sessions))
        first += await asyncio.gather(*(begin(n) for n in numbers))
        _check_sizes(world, memory)
    for start in range(0, sessions, TOGETHER):
        numbers = range(start, min(start + TOGETHER, sessions))
        found = await asyncio.gather(*(go_on(n) for n in numbers))
        assert found == [first[n].id for n in numbers]
        _check_sizes(world, memory)
    assert world.count("next_state") == sessions
    world.now += 61
    ended = 0
    while swept := await world.sessions.sweep():
        ended += swept
    assert ended == sessions


def _name(n: int) -> str | None:
    return f"s{n}" if n % 2 else None


def _check_sizes(world: World, memory: int) -> None:
    sizes = world.sessions.sizes()
    assert sizes["sessions"] <= memory
    assert sizes["nodes"] <= NODES_PER_SESSION * memory
    assert max(sizes["known"], sizes["waiting"], sizes["traces"], sizes["issued"]) <= sizes["nodes"]
