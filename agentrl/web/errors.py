"""Errors as HTTP answers, and their status.

Guarantee: every error has the shape of `agentrl.protocol.Refusal`, also those that the framework raises.
"""

from __future__ import annotations

import logging
import math

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from agentrl.exceptions import AgentError, InternalError, InvalidError, Kind, NotFoundError
from agentrl.protocol import ErrorBody, Refusal

logger = logging.getLogger(__name__)
STATUS: dict[Kind, int] = {
    "invalid": 400,
    "capacity": 429,
    "not_found": 404,
    "timeout": 504,
    "infra": 503,
    "internal": 500,
}
STATUS_OF_CODE = {
    "unauthorized": 401,
    "wrong_host": 403,
    "wrong_method": 405,
    "body_too_slow": 408,
    "body_too_large": 413,
    "not_json": 415,
}
JSON = "application/json"


def response(error: AgentError) -> Response:
    """Return the answer for an error, with ``Retry-After`` where it is known."""
    status = STATUS_OF_CODE.get(error.code, STATUS[error.kind])
    headers = {} if error.retry_after_s is None else {"retry-after": str(math.ceil(error.retry_after_s))}
    return Response(Refusal(error=ErrorBody.of(error)).model_dump_json(), status, headers, JSON)


def answer_errors(app: FastAPI) -> None:
    """Answer all errors of an application's routes in this shape."""

    @app.exception_handler(AgentError)
    async def own(_: Request, error: AgentError) -> Response:
        return response(error)

    @app.exception_handler(HTTPException)
    async def of_the_framework(request: Request, error: HTTPException) -> Response:
        if error.status_code == 405:
            return response(InvalidError(f"{request.method} is not for {request.url.path}", code="wrong_method"))
        return response(NotFoundError(f"there is no route {request.url.path}", code="unknown_route"))

    @app.exception_handler(Exception)
    async def defect(request: Request, error: Exception) -> Response:
        logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return response(InternalError("the server has a defect; see its log", code="defect"))
