"""A span for each request: ids and numbers, no word of the conversation."""

from __future__ import annotations

from typing import Any

import pytest

from openclaw.gateway import reply
from tests.unit.gateway.conftest import Stack


async def test_a_request_is_a_span(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    spans: list[tuple[str, float, float, dict[str, Any]]] = []
    monkeypatch.setattr(
        reply, "record_span", lambda name, began, seconds, **said: spans.append((name, began, seconds, said))
    )
    stack.say("The sum is 5.")
    await stack.client.chat.completions.create(model="any", messages=[{"role": "user", "content": "2 + 3?"}])
    [turn] = stack.turns()
    [(name, began, seconds, said)] = spans
    assert (name, began, seconds) == ("request", turn.created_at, turn.finished_at - turn.created_at)
    assert said == {
        "turn": turn.id,
        "kind": "main",
        "outcome": "stop",
        "prompt_tokens": len(turn.prompt_ids),
        "tokens": len(turn.response_ids),
        "version": turn.weight_versions[-1].version,
    }
