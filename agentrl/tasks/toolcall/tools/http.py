"""A tool that is a web service which ``TOOLCALL_ALLOWED_URLS`` allows.

Guarantees: the address comes from the configuration, never from the agent. Redirects are not followed, proxies and keys of the host are not used,
and the answer is bounded. A service that does not answer is an error that the agent sees.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Literal

import httpx

from agentrl.exceptions import InvalidError
from agentrl.protocol import JsonObject
from agentrl.tasks.toolcall.tools.interface import World, clipped, shown

MAX_ANSWER = 1 << 18
MAX_SHOWN = 8192


@dataclass(frozen=True)
class HttpTool:
    """A service: ``POST`` sends the arguments as JSON, ``GET`` as query parameters."""

    name: str
    description: str
    parameters: JsonObject
    url: str
    method: Literal["GET", "POST"]
    seconds: float
    room: None = None

    async def call(self, arguments: JsonObject, world: World) -> str:
        """See `agentrl.tasks.toolcall.tools.interface.Tool`."""
        body = bytearray()
        try:
            async with asyncio.timeout(self.seconds), httpx.AsyncClient(timeout=None, trust_env=False) as client:
                sent = (
                    client.stream("POST", self.url, json=arguments)
                    if self.method == "POST"
                    else client.stream("GET", self._asked(arguments))
                )
                async with sent as answer:
                    async for chunk in answer.aiter_bytes():
                        body += chunk
                        if len(body) > MAX_ANSWER:
                            break
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
            raise InvalidError(f"{self.name} does not answer: {type(error).__name__}", code="tool_error") from None
        except ValueError as error:
            raise InvalidError(
                f"the arguments of {self.name} cannot be sent: {error}", code="invalid_arguments"
            ) from None
        text = clipped(bytes(body[:MAX_ANSWER]).decode(errors="replace"), MAX_SHOWN)
        if answer.is_success:
            return text
        raise InvalidError(f"{self.name} answered with status {answer.status_code}: {text}", code="tool_error")

    def _asked(self, arguments: JsonObject) -> httpx.URL:
        """Return the URL with the arguments; its own query stays, which httpx's ``params`` would replace."""
        return httpx.URL(self.url).copy_merge_params({key: shown(value) for key, value in arguments.items()})
