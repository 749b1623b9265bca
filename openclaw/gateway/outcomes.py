"""``GET /v1/turns/{response_id}``: what became of a reply, for whoever got it.

Guarantees: read-only. The answer has verdict and training step, but no text of the conversation except the judge's hint.
A reply's id is random and only its client knows it, as for feedback.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any, Protocol

from openclaw.gateway.errors import ApiError
from openclaw.ledger.exceptions import UnknownRecordError
from openclaw.ledger.outcome import Outcome


class OutcomeStore(Protocol):
    """What the route needs from the ledger."""

    def outcome(self, turn_id: str) -> Outcome: ...


class OutcomeDesk:
    """Tells what became of a reply; stateless."""

    def __init__(self, store: OutcomeStore) -> None:
        self._store = store

    async def tell(self, response_id: str) -> dict[str, Any]:
        """Return what became of the reply ``response_id``.

        Raises:
            ApiError: 404 for an unknown reply.
        """
        try:
            outcome = await asyncio.to_thread(self._store.outcome, response_id)
        except UnknownRecordError as error:
            raise unknown_reply() from error
        return {"object": "turn", "id": response_id, **asdict(outcome)}


def unknown_reply() -> ApiError:
    """Return the 404 for an id that no finished reply has."""
    return ApiError(
        404,
        "no finished reply has this response_id; send the 'id' of a chat completion of this server",
        code="response_not_found",
        param="response_id",
    )
