"""The answers to errors that a route raised, in OpenAI's shape."""

from __future__ import annotations

import logging

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from openclaw.gateway.connected import CLIENT_GONE, ClientGoneError
from openclaw.gateway.errors import ApiError, defect, from_ledger
from openclaw.ledger.exceptions import LedgerError

logger = logging.getLogger(__name__)


def answer_errors(app: FastAPI) -> None:
    """Answer for refusals, for the ledger's errors, for unknown routes, and for defects."""
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(ClientGoneError, _client_gone)
    app.add_exception_handler(LedgerError, _ledger_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _internal_error)


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response()


async def _client_gone(request: Request, error: Exception) -> Response:
    """Answer for the log; nobody is there to read it."""
    return Response(status_code=CLIENT_GONE)


async def _ledger_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, LedgerError)
    logger.error("%s %s is refused: %s", request.method, request.scope["route"].path, error)
    return from_ledger(error).response()


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return ApiError(error.status_code, f"{request.method} {request.url.path}: {error.detail}").response()


async def _internal_error(request: Request, error: Exception) -> Response:
    """Answer for a defect; the server logs it with its traceback."""
    return defect().response()
