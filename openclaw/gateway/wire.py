"""Bodies in and out: bounded reading, JSON answers."""

from __future__ import annotations

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from openclaw.gateway.connected import ClientGoneError
from openclaw.gateway.errors import ApiError


async def read_body(request: Request, limit: int) -> bytes:
    """Return the body of a request.

    Raises:
        ApiError: 413 when it has more than ``limit`` bytes; the rest is not read.
        ClientGoneError: when the client closed the connection before it had sent all.
    """
    too_large = ApiError(413, f"the body has more than {limit} bytes; send less", code="request_too_large")
    stated = request.headers.get("content-length", "0")
    if stated.isdigit() and int(stated) > limit:
        raise too_large
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > limit:
                raise too_large
    except ClientDisconnect as error:
        raise ClientGoneError from error
    return bytes(body)


def json_response(value: object, headers: dict[str, str] | None = None) -> Response:
    """Return an answer with a JSON body."""
    return Response(orjson.dumps(value), headers=headers, media_type="application/json")
