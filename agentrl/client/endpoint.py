"""A model behind ``/v1/chat/completions``, for agents that play without a trainer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx

from agentrl.exceptions import ConfigError

ANSWER_S = 600.0


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
        body = {"model": self._model, "messages": list(messages), **({"tools": tools} if tools else {})}
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        try:
            answer = await self._client.post(self._url, json=body, headers=headers)
            answer.raise_for_status()
            return answer.json()["choices"][0]["message"]
        except httpx.HTTPStatusError as error:
            raise ConfigError(
                f"{self._url} answered {error.response.status_code}: {error.response.text[:300]}"
            ) from error
        except (httpx.HTTPError, ValueError, KeyError, IndexError) as error:
            raise ConfigError(f"{self._url} gave no reply ({type(error).__name__}); check --base-url") from error
