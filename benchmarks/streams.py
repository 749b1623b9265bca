"""Reads a streamed chat completion like a client, and raises if it is incomplete."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx

from slime.utils.http_utils import stream_lines


class RefusedError(Exception):
    """The gateway answered, but not with a whole reply."""


async def stream_events(client: httpx.AsyncClient, session: str, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    """Yield the chunks of one reply, each when it arrives.

    Raises:
        RefusedError: for a status other than 200, an error in the stream, or a stream without its end.
        httpx.TransportError: when the connection broke.
    """
    request = {"json": {"model": "m", **body, "stream": True}, "headers": {"X-Session-Id": session}}
    async with client.stream("POST", "/v1/chat/completions", **request) as answer:
        if answer.status_code != 200:
            raise RefusedError(f"{answer.status_code}: {(await answer.aread())[:200]!r}")
        async for line in stream_lines(answer):
            if line == "data: [DONE]":
                return
            if line.startswith("data: "):
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    raise RefusedError(f"in the stream: {event['error']}")
                yield event
    raise RefusedError("the stream ended before the reply was complete")
