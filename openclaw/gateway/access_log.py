"""One log line per request: who asked, what it cost and how it ended, but never its contents.

Guarantees: a line has the request id, the key's name, route, status, tokens, seconds, the turn's id and a digest of the
session id. No text of a client gets in unescaped: a request id is accepted only if its characters are harmless and it
looks like no secret.
Only ``OPENCLAW_LOG_CONTENTS=1`` logs the conversation itself. The request's guard owns its `RequestRecord`; the
handler finds it in the ASGI scope.
"""

from __future__ import annotations

import json
import logging
import re
import time
import uuid
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from openclaw.gateway.auth import Client, sent_key
from openclaw.gateway.reply import Reply
from openclaw.privacy.secret_finder import looks_random, secret_finder
from openclaw.sessions.identity import logged_name

logger = logging.getLogger("openclaw.access")

SANE_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
LONG_WORD = re.compile(r"[A-Za-z0-9/+=]{32,}")
"""In an id a secret if it is random and has both cases; trace ids are hexadecimal digits or UUIDs."""
SCOPE_NAME = "openclaw.request"
QUIET_ROUTES = ("/healthz", "/metrics", "/v1/turns/{response_id:path}")
"""Routes that clients poll."""


@dataclass
class RequestRecord:
    """What the access log knows about one request.

    Attributes:
        stated_id: the client's own request id, if it is usable.
        id: the request id in the answer.
        client: who sends it; None until the key is known.
        method: HTTP method.
        status: of the answer; 499 if the client left before it.
        reply: the reply of a completion that has begun.
        started: monotonic clock, seconds.
    """

    stated_id: str | None
    id: str
    method: str
    client: Client | None = None
    status: int = 499
    reply: Reply | None = None
    started: float = field(default_factory=time.monotonic)

    @staticmethod
    def of(headers: Mapping[str, str], method: str) -> RequestRecord:
        """Return the record of a new request."""
        stated = headers.get("x-request-id", "")
        usable = SANE_REQUEST_ID.fullmatch(stated) and not has_secret(stated) and stated != sent_key(headers)
        id_ = stated if usable else f"req-{uuid.uuid4().hex}"
        return RequestRecord(stated if usable else None, id_, method)

    @property
    def key(self) -> str:
        """Name of the key, ``-`` until it is known."""
        return "-" if self.client is None else self.client.name

    @property
    def tokens(self) -> tuple[int, int]:
        """Tokens of the prompt and of all choices of the reply."""
        if self.reply is None:
            return 0, 0
        return len(self.reply.capture.prompt.ids), sum(len(capture.ids) for capture in self.reply.captures)

    def line(self, route: str) -> str:
        """Return the log line."""
        prompt, generated = self.tokens
        words = [
            f"request={self.id} key={self.key} {self.method} {route} status={self.status}",
            f"seconds={time.monotonic() - self.started:.3f}",
        ]
        if self.reply is not None:
            session = logged_name(self.reply.context.session_id)
            turn = self.reply.id
            words.append(f"prompt_tokens={prompt} generated_tokens={generated} session={session} turn={turn}")
        return " ".join(words)

    def contents(self) -> str:
        """Return the conversation as one line of JSON."""
        assert self.reply is not None
        replies = [capture.builder.message() for capture in self.reply.captures]
        return json.dumps({"messages": self.reply.capture.prompt.messages, "replies": replies})


def has_secret(request_id: str) -> bool:
    """Return whether a request id of sane length looks like a key, token or password."""
    words = LONG_WORD.findall(request_id)
    if any(not word.islower() and not word.isupper() and looks_random(word) for word in words):
        return True
    return next(secret_finder()(request_id), None) is not None


def note_reply(scope: MutableMapping[str, Any], reply: Reply) -> None:
    """Store the reply in the request's record; no-op without a guard."""
    if SCOPE_NAME in scope:
        scope[SCOPE_NAME].reply = reply


def client_of(scope: Mapping[str, Any]) -> Client:
    """Return who sends a request that the guard admitted."""
    client = scope[SCOPE_NAME].client
    assert client is not None, "the guard admits no request to this route without a key"
    return client


def route_of(scope: Mapping[str, Any]) -> str:
    """Return the pattern of the route that answered, ``-`` if none did."""
    return getattr(scope.get("route"), "path", "-")


def log_request(record: RequestRecord, route: str, *, contents: bool) -> None:
    """Log a finished request."""
    level = logging.DEBUG if route in QUIET_ROUTES and record.status == 200 else logging.INFO
    if logger.isEnabledFor(level):
        logger.log(level, "%s", record.line(route))
    if contents and record.reply is not None:
        logger.info("request=%s contents=%s", record.id, record.contents())
