"""Reads a request's session id and retry mark. Pure functions of the request."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from groundwork.chat_messages import Message
from openclaw.config.bounds import SESSION_ID
from openclaw.messages.classify import runtime_session
from openclaw.owners import LOCAL, stored_id
from openclaw.privacy.secret_finder import kept_id

SESSION_DIGITS = 12
AFFINITY_SUFFIX = re.compile(r":\d+$")
RETRY_COUNT = "x-stainless-retry-count"
Origin = Literal["header", "body", "affinity", "runtime", "fingerprint"]


@dataclass(frozen=True)
class Identity:
    """The stored id of a request's session and its source; None leaves it to the fingerprint."""

    session_id: str | None
    origin: Origin


def stated_identity(
    headers: Mapping[str, str], body_session_id: str | None, messages: Sequence[Message], owner: str = LOCAL
) -> Identity:
    """Return a request's session from the most trusted source; it is always a session of ``owner``.

    Header ``X-Session-Id``; ``session_id`` in the body; the affinity headers ``session_id`` and ``x-session-affinity``
    without their ``:<n>``; ``sessionId=`` in the Runtime line of OpenClaw's first user message.
    """
    stated, origin = _stated(headers, body_session_id, messages)
    return Identity(stored_id(owner, kept_id(stated)) if stated else None, origin)


def _stated(
    headers: Mapping[str, str], body_session_id: str | None, messages: Sequence[Message]
) -> tuple[str | None, Origin]:
    if stated := headers.get("x-session-id"):
        return stated, "header"
    if body_session_id:
        return body_session_id, "body"
    if affinity := headers.get("session_id") or headers.get("x-session-affinity"):
        return AFFINITY_SUFFIX.sub("", affinity), "affinity"
    stated = runtime_session(messages)
    if stated and len(stated) <= SESSION_ID.most:
        return stated, "runtime"
    return None, "fingerprint"


def is_retry(headers: Mapping[str, str]) -> bool:
    """Return whether the client declares a retry, as the OpenAI libraries do."""
    count = headers.get(RETRY_COUNT, "")
    return count.isdigit() and int(count) > 0


def logged_name(session_id: str) -> str:
    """Return a session id's name in logs: the start of its SHA-256."""
    return hashlib.sha256(session_id.encode("utf-8", "surrogatepass")).hexdigest()[:SESSION_DIGITS]
