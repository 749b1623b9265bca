"""``GET /v1/turns/{response_id}``: what became of a reply, for whoever got it; and of what the gate refused.

Guarantees: read-only. The answer has verdict and training step, but no text of the conversation except the judge's hint.
Another owner's reply gets the 404 of an unknown one, here and for feedback.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any

from openclaw.gateway.auth import Client
from openclaw.gateway.errors import ApiError
from openclaw.ledger.decisions import Offer
from openclaw.ledger.exceptions import LedgerError, UnknownRecordError
from openclaw.ledger.store import Ledger
from openclaw.ledger.views import Outcome

OFFER_SECONDS = 2.0
"""How long a look at the gateway's health waits for the ledger: a busy one must not make the process look frozen."""


class OutcomeDesk:
    """Tells what became of a reply; stateless."""

    def __init__(self, store: Ledger) -> None:
        self._store = store

    async def tell(self, response_id: str, client: Client) -> dict[str, Any]:
        """Return what became of the reply ``response_id``.

        Raises:
            ApiError: 404 for a reply that is unknown or not the client's.
        """

        def read() -> Outcome:
            outcome = self._store.views.outcome(response_id)
            require_own_turn(self._store, response_id, client)
            return outcome

        try:
            outcome = await asyncio.to_thread(read)
        except UnknownRecordError as error:
            raise unknown_reply() from error
        return {"object": "turn", "id": response_id, **asdict(outcome)}

    async def offered(self, fewest: int) -> Offer | None:
        """Return the change that a person may accept (`openclaw.gate`), or None; None if the ledger cannot be read soon."""
        try:
            async with asyncio.timeout(OFFER_SECONDS):
                return await asyncio.to_thread(self._store.decisions.offer, fewest)
        except (LedgerError, TimeoutError):
            return None


def require_own_turn(store: Ledger, turn_id: str, client: Client) -> None:
    """Raise UnknownRecordError if the client does not reach a turn, or if there is none."""
    if not client.reaches(store.turns.session_of(turn_id)):
        raise UnknownRecordError(f"{client.name} has no turn {turn_id!r}")


def unknown_reply() -> ApiError:
    """Return the 404 for an id that no finished reply has."""
    return ApiError(
        404,
        "no finished reply has this response_id; send the 'id' of a chat completion of this server",
        code="response_not_found",
        param="response_id",
    )
