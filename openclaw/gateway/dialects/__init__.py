"""Dialects: the APIs in which clients ask, each one small module around the one form that the rest of the gateway knows.

`dialect` says what a dialect is. `chat` is OpenAI's chat completions, whose request is the canonical form; `anthropic` is the
Messages API; `responses` is OpenAI's Responses API; `text_completions` continues texts. Guarantees: reading a body and writing
an answer are pure; nothing behind a dialect knows which one it was.
"""

from __future__ import annotations

from openclaw.gateway.dialects.anthropic import COUNT_TOKENS, MESSAGES
from openclaw.gateway.dialects.chat import CHAT
from openclaw.gateway.dialects.dialect import Dialect
from openclaw.gateway.dialects.responses import RESPONSES
from openclaw.gateway.dialects.text_completions import TEXT

DIALECTS: tuple[Dialect, ...] = (CHAT, TEXT, RESPONSES, MESSAGES)
"""Those in which a request is answered by a reply."""
READ: tuple[Dialect, ...] = (*DIALECTS, COUNT_TOKENS)
"""Those that have bodies; the place of one is how the worker of large bodies knows it."""
EPISODE_DIALECTS: tuple[Dialect, ...] = (CHAT, RESPONSES, MESSAGES)
"""Those in which the agent of an episode may ask, with what is below their paths: their turns are trained."""

__all__ = [
    "CHAT",
    "COUNT_TOKENS",
    "DIALECTS",
    "EPISODE_DIALECTS",
    "MESSAGES",
    "READ",
    "RESPONSES",
    "TEXT",
    "Dialect",
]
