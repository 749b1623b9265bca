"""Read a request's body, within bounds on its size and time, as one of the protocol's models."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from agentrl.exceptions import InfraError, InvalidError
from agentrl.protocol import MOST_ITEMS, is_quick

M = TypeVar("M", bound=BaseModel)
BODY_S = 30.0
SHOWN_ERRORS = 3


async def read(request: Request, kind: type[M], most_bytes: int) -> M:
    """Return the body as a ``kind``.

    Raises:
        InvalidError: the body is larger than ``most_bytes``, slower than `BODY_S`, no ``kind``, or of more values than
            the event loop reads in time.
        InfraError: the client went away.
    """
    body = bytearray()
    try:
        stated = request.headers.get("content-length", "")
        if stated.isdecimal() and int(stated) > most_bytes:
            raise _too_large(most_bytes)
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                body += part
                if len(body) > most_bytes:
                    raise _too_large(most_bytes)
        if not is_quick(body):
            raise InvalidError(
                f"the body has more than {MOST_ITEMS} commas and brackets; send less", code="body_too_large"
            )
        return kind.model_validate_json(bytes(body))
    except TimeoutError as error:
        raise InvalidError(f"the body took longer than {BODY_S:g} s; send it faster", code="body_too_slow") from error
    except ClientDisconnect as error:
        raise InfraError("the client went away", code="client_gone") from error
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False, include_context=False)
        shown = "; ".join(
            f"{'.'.join(map(str, each['loc'])) or 'body'}: {each['msg']}" for each in found[:SHOWN_ERRORS]
        )
        raise InvalidError(f"the body is not a {kind.__name__}: {shown}", code="invalid_request") from error


def _too_large(most_bytes: int) -> InvalidError:
    return InvalidError(f"the body is larger than {most_bytes} bytes; send less", code="body_too_large")
