"""All requests of a conversation name it alike to a router, so that they reach the engine with its prefix."""

from __future__ import annotations

import string
from typing import Any

from openclaw.messages.fingerprint import routing_key
from tests.unit.gateway.conftest import Stack

SYSTEM = {"role": "system", "content": "Be brief."}


def test_a_key_is_the_beginning_of_a_conversation() -> None:
    first = [SYSTEM, {"role": "user", "content": "Hello?"}]
    later = [*first, {"role": "assistant", "content": "Hi."}, {"role": "user", "content": "Go on."}]
    assert routing_key(first) == routing_key(later)
    assert routing_key(first) != routing_key(first[1:])
    assert routing_key(first) != routing_key(
        [SYSTEM, {"role": "user", "content": [{"type": "text", "text": "Hello?"}]}]
    )
    assert routing_key([SYSTEM]) != routing_key([SYSTEM, SYSTEM])
    assert set(routing_key(first)) <= set(string.hexdigits)


async def test_the_turns_of_a_conversation_carry_its_key(stack: Stack) -> None:
    stack.say("one", "two", "three")
    talk: list[Any] = [{"role": "user", "content": "First?"}]
    for text in ("one", "two"):
        await stack.client.chat.completions.create(model="policy", messages=talk)
        talk += [{"role": "assistant", "content": text}, {"role": "user", "content": "And then?"}]
    await stack.client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "Another?"}])
    first, second, other = stack.engine.routing_keys
    assert first is not None
    assert first == second != other
