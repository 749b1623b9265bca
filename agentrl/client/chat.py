"""A model behind any server with OpenAI's ``/v1/chat/completions``, for episodes without a trainer.

Guarantee: the key is in a header only. A server that fails or refuses is an error with its address and what it said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from groundwork.exceptions import ConfigError

NO_PARAMETERS: Mapping[str, Any] = {}


class Endpoint:
    """A server with ``/v1/chat/completions``."""

    def __init__(self, base_url: str, model: str, key: str | None, client: httpx.AsyncClient) -> None:
        self._url = f"{base_url.rstrip('/').removesuffix('/v1')}/v1/chat/completions"
        self._model, self._key, self._client = model, key, client

    async def reply(self, messages: Sequence[dict[str, Any]], tools: Any) -> dict[str, Any]:
        """Return the model's next message.

        Raises:
            ConfigError: the server cannot be reached, or refuses.
        """
        return (await self.ask(messages, tools))["choices"][0]["message"]

    async def ask(
        self, messages: Sequence[dict[str, Any]], tools: Any = None, parameters: Mapping[str, Any] = NO_PARAMETERS
    ) -> dict[str, Any]:
        """Return the server's whole answer, which has a message.

        Args:
            messages: of the conversation.
            tools: that the model may call.
            parameters: of the request, such as ``temperature``.

        Raises:
            ConfigError: the server cannot be reached, or refuses.
        """
        body = {"model": self._model, "messages": list(messages), **parameters, **({"tools": tools} if tools else {})}
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        try:
            answer = await self._client.post(self._url, json=body, headers=headers)
            answer.raise_for_status()
            found = answer.json()
            found["choices"][0]["message"]["role"]
        except httpx.HTTPStatusError as error:
            raise ConfigError(
                f"{self._url} answered {error.response.status_code}: {error.response.text[:300]}"
            ) from error
        except (httpx.HTTPError, ValueError, KeyError, IndexError, TypeError) as error:
            raise ConfigError(f"{self._url} gave no reply ({type(error).__name__}); check its address") from error
        return found
