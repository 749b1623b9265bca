"""A client says that a session is over, without a request to say it with."""

from __future__ import annotations

from typing import Any

import httpx

from tests.unit.gateway.conftest import Stack, Starter

FIRST: list[Any] = [{"role": "user", "content": "Hello?"}]


async def ask(stack: Stack, session: str, messages: list[Any]) -> None:
    stack.say("Hi.")
    await stack.client.chat.completions.create(model="m", messages=messages, extra_headers={"X-Session-Id": session})


async def done(stack: Stack, session: str, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False) as client:
        return await client.post(f"/v1/sessions/{session}/done", headers=headers)


def states(stack: Stack) -> list[str]:
    return [turn.state for turn in stack.turns()]


async def test_a_session_ends_once_and_goes_on_when_its_client_does(stack: Stack) -> None:
    await ask(stack, "agent:main:s/1", FIRST)
    for _ in range(2):
        response = await done(stack, "agent:main:s%2F1")
        assert (response.status_code, response.json()["id"]) == (200, "agent:main:s/1")
    assert states(stack) == ["ended"]
    again = [*FIRST, {"role": "assistant", "content": "Hi."}, {"role": "user", "content": "One more thing."}]
    await ask(stack, "agent:main:s/1", again)
    assert states(stack) == ["pending", "waiting"]


async def test_a_session_that_is_only_in_the_ledger_ends(start: Starter) -> None:
    first = await start()
    await ask(first, "s", FIRST)
    second = await start()
    assert len(second.service.sessions) == 0
    assert (await done(second, "s")).status_code == 200
    assert states(second) == ["ended"]


async def test_an_unknown_session_is_a_404(stack: Stack) -> None:
    response = await done(stack, "nobody")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "session_not_found"


async def test_the_key_protects_it(start: Starter) -> None:
    stack = await start(api_key="s3cret")
    assert (await done(stack, "s")).status_code == 401
    assert (await done(stack, "s", Authorization="Bearer s3cret")).status_code == 404
