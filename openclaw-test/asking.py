"""The one client for requests to a server, with its key, retries and proxy settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from openclaw.config.runtime_variables import client_key

if TYPE_CHECKING:
    from openai import AsyncOpenAI


def server_client(base_url: str, timeout: float, key: str | None = None) -> AsyncOpenAI:
    """Return a client of the server at ``base_url`` (``http://host:port/v1``) that waits ``timeout`` seconds for an answer.

    Its key is ``key``, by default ``SGLANG_API_KEY`` or ``OPENCLAW_API_KEY``. It never retries, so that refusals show, and uses no
    proxy for this machine.
    """
    # The OpenAI client takes a second to import, for which a mistyped option need not wait.
    from openai import DEFAULT_CONNECTION_LIMITS, AsyncOpenAI, DefaultAsyncHttpxClient

    from slime.utils.http_utils import direct_transports

    key = key or client_key() or "none"
    http = DefaultAsyncHttpxClient(mounts=direct_transports(DEFAULT_CONNECTION_LIMITS))
    return AsyncOpenAI(base_url=base_url, api_key=key, max_retries=0, timeout=timeout, http_client=http)
