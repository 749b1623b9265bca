"""Error answers, in the shape of the API that the path belongs to.

Below `MESSAGES_PATH` that is Anthropic's, ``{"type": "error", "error": {"type", "message"}, "request_id"}``. Everywhere else
it is OpenAI's, ``{"error": {"message", "type", "param", "code"}}``.

Guarantees: every error of the gateway has its path's shape, whatever raised it. The message says what is wrong and what to
send instead. It never contains a key or any part of a conversation.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson
from fastapi import FastAPI, Request
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from openclaw.config.bounds import Bound
from openclaw.exceptions import (
    EngineAwayError,
    EngineDiedError,
    EngineError,
    EngineRejectedError,
    OpenClawError,
    VersionRefusedError,
)
from openclaw.ledger.exceptions import LedgerError, LedgerFullError, LedgerUnavailableError

logger = logging.getLogger(__name__)

LIMIT_HEADER = "x-limit"
"""Names the bound that a refused request reached."""

MESSAGES_PATH = "/v1/messages"
REQUEST_SCOPE = "openclaw.request"
"""Where the guard keeps what it knows about a request (`openclaw.gateway.guard.RequestRecord`)."""
ELSEWHERE = {
    "/responses": "the base URL of this server ends in /v1",
    "/messages": "the base URL of this server ends before /v1",
    "/completions": "the base URL of this server ends in /v1",
    "/embeddings": "this server gives no embeddings",
    "/chat/completions": "the base URL of this server ends in /v1",
}
"""Ends of paths that clients of other APIs ask for."""
SHOWN_CHARACTERS = 500
"""Of a client's own words in an error message."""
Place = tuple[int | str, ...]
"""Of a field in a body: names and positions, from the outermost to the innermost."""

# Status in metrics and logs for a client that disconnected; nobody receives it.
CLIENT_GONE = 499


class ClientGoneError(Exception):
    """The client closed the connection before the answer."""


class ApiError(OpenClawError):
    """An error answer with its HTTP status."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        kind: str | None = None,
        retry_after: int | None = None,
        limit: str | None = None,
        excess: Sequence[Any] | None = None,
        streamed: bool = False,
    ) -> None:
        """Create the answer.

        Args:
            status: HTTP status.
            message: what is wrong and what to send instead.
            code: OpenAI's machine-readable name of the problem.
            param: the invalid request field.
            kind: OpenAI's ``type``; the default follows from the status.
            retry_after: seconds after which the client may retry; a 503 has 1.
            limit: name of the bound that the request reached (`openclaw.config.bounds`), or None.
            excess: of a prompt that the context cannot hold, its size, the largest one, and their unit.
            streamed: whether the client asked for a stream, and understands the error there alone.
        """
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.limit = limit
        self.excess = None if excess is None else (excess[0], excess[1], excess[2])
        self.streamed = streamed
        self.retry_after = retry_after or (1 if status == 503 else None)
        self.kind = kind or _KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")

    def body(self) -> dict[str, Any]:
        """Return the JSON body in OpenAI's shape."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def messages_body(self, request_id: str | None = None) -> dict[str, Any]:
        """Return the JSON body in Anthropic's shape."""
        kind = _MESSAGES_KINDS.get(self.status, "invalid_request_error" if self.status < 500 else "api_error")
        message = self.message
        if self.excess is not None:  # clients of this API shorten the conversation when they read these words
            size, most, unit = self.excess
            message = f"prompt is too long: {size} {unit} > {most} maximum"
        return {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id}

    def body_at(self, path: str, request_id: str | None = None) -> dict[str, Any]:
        """Return the JSON body in the shape of a path."""
        if is_below_messages(path):
            return self.messages_body(request_id)
        return self.body()


def is_below_messages(path: str) -> bool:
    """Return whether a path belongs to the Messages API."""
    return path == MESSAGES_PATH or path.startswith(f"{MESSAGES_PATH}/")


def headers_of(error: ApiError) -> dict[str, str]:
    """Return the headers that say when to try again, and which bound a request reached."""
    headers = {} if error.retry_after is None else {"retry-after": str(error.retry_after)}
    return headers if error.limit is None else {**headers, LIMIT_HEADER: error.limit}


def answer(error: ApiError, scope: Mapping[str, Any]) -> Response:
    """Return the HTTP response to the request of an ASGI scope."""
    headers = {**_HEADERS.get(error.status, {}), **headers_of(error)}
    record = scope.get(REQUEST_SCOPE)
    body = error.body_at(scope["path"], record.id if record else None)
    return Response(orjson.dumps(body), error.status, headers, media_type="application/json")


_HEADERS = {401: {"www-authenticate": "Bearer"}, 408: {"connection": "close"}}
_KINDS = {401: "authentication_error", 404: "not_found_error", 503: "service_unavailable_error"}
_MESSAGES_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def bad_request(
    message: str, *, param: str | None = None, code: str | None = "invalid_value", bound: Bound | None = None
) -> ApiError:
    """Return a 400 about a request field; ``bound`` is the bound that it exceeds."""
    return ApiError(400, message, param=param, code=code, limit=bound.name if bound else None)


def too_long(
    message: str, *, param: str, size: int, most: int, unit: str = "tokens", bound: Bound | None = None
) -> ApiError:
    """Return the 400 ``context_length_exceeded`` about a prompt in ``param`` of at least ``size`` tokens, or of another ``unit``."""
    limit = bound.name if bound else None
    return ApiError(400, message, param=param, code="context_length_exceeded", limit=limit, excess=(size, most, unit))


def from_validation(error: ValidationError, advice: Callable[[Place], str | None] = lambda place: None) -> ApiError:
    """Return the 400 for a field that exceeds its bound (`openclaw.gateway.schema.AtMost`), or else for pydantic's first error.

    ``advice`` may replace pydantic's words about a place in the body.
    """
    errors = error.errors(include_url=False, include_input=False)
    first = next((item for item in errors if item["type"] == "bound"), errors[0])
    place = [str(part) for part in first["loc"]]
    return ApiError(
        400,
        f"{'.'.join(place)[:SHOWN_CHARACTERS] or 'the body'}: {advice(first['loc']) or first['msg'][:SHOWN_CHARACTERS]}",
        param=place[0][:SHOWN_CHARACTERS] if place else None,
        code="invalid_value",
        limit=first.get("ctx", {}).get("limit"),
    )


def unsupported(param: str, advice: str) -> ApiError:
    """Return the 400 for an unsupported parameter that would change the reply."""
    return ApiError(400, f"{param!r} is not supported: {advice}", param=param, code="unsupported_parameter")


def disk_full(error: LedgerFullError) -> ApiError:
    """Log that a deletion found no space, and return its answer."""
    logger.error("nothing could be deleted: %s", error)
    return ApiError(
        507,
        "the server's disk is full, so nothing is deleted; ask its operator to free some space, then send the request again",
        code="disk_full",
    )


def defect() -> ApiError:
    """Return the 500 for a bug in this server."""
    return ApiError(500, "internal error; see the server's log", code="internal_error")


def stopping() -> ApiError:
    """Return the 503 for a request that this server, which ends, does not answer any more."""
    return ApiError(503, "the server is stopping; send the request again once it is back", code="server_stopping")


CANCELLED = "response_cancelled"


def cancelled() -> ApiError:
    """Return the 400 for a request whose reply its client cancelled by another one."""
    return ApiError(400, "the response was cancelled", code=CANCELLED)


def from_engine(error: EngineError) -> ApiError:
    """Return the client's answer to an engine error.

    A request under which engines died is a 400: SDKs send a 5xx again, and each time would cost another engine.
    """
    if isinstance(error, VersionRefusedError):
        return ApiError(error.status, str(error), code="version_refused", param="model")
    if isinstance(error, EngineDiedError):
        return ApiError(400, f"{error}; change the request before you send it again", code="engine_died")
    if isinstance(error, EngineAwayError):
        return ApiError(503, "the engine is unavailable; send the request again", code="engine_unavailable")
    if isinstance(error, EngineRejectedError):
        return ApiError(400, f"the engine refused the request: {error}", code="engine_rejected")
    return ApiError(500, f"the engine failed: {error}", code="engine_error")


def from_ledger(error: LedgerError) -> ApiError:
    """Return the client's answer to a ledger error; the log names the file and the remedy."""
    if isinstance(error, LedgerUnavailableError):
        return ApiError(503, "the ledger is not writable now; send the request again", code="ledger_unavailable")
    return ApiError(500, "the ledger refused the request; see the server's log", code="ledger_failed")


def answer_errors(app: FastAPI) -> None:
    """Register the answers to refusals, ledger errors, unknown routes and bugs."""
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(ClientGoneError, _client_gone)
    app.add_exception_handler(LedgerError, _ledger_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _internal_error)


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return answer(error, request.scope)


async def _client_gone(request: Request, error: Exception) -> Response:
    """Answer for the log only; the client is gone."""
    return Response(status_code=CLIENT_GONE)


async def _ledger_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, LedgerError)
    logger.error("refused %s %s: %s", request.method, request.scope["route"].path, error)
    return answer(from_ledger(error), request.scope)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path[:SHOWN_CHARACTERS]
    if error.status_code == 404:
        refusal = _unknown_route(request.method, path)
    else:
        refusal = ApiError(error.status_code, f"{request.method} {path}: {error.detail}")
    response = answer(refusal, request.scope)
    response.headers.update(error.headers or {})
    return response


def _unknown_route(method: str, path: str) -> ApiError:
    end = max((item for item in ELSEWHERE if path.rstrip("/").endswith(item)), key=len, default="")
    why = f": {ELSEWHERE[end]}" if end else ""
    return ApiError(
        404,
        f"there is no {method} {path}{why}; use POST /v1/chat/completions, or see the routes at GET /",
        code="route_not_found",
    )


async def _internal_error(request: Request, error: Exception) -> Response:
    """Answer an unexpected exception; the server logs its traceback."""
    return answer(defect(), request.scope)
