"""``GET /v1/rollouts``: recorded turns for a collector on another machine.

Guarantees: read-only; off unless ``OPENCLAW_SERVE_ROLLOUTS=1``, because it copies conversations. A key gets the turns
that it and its children own; only an admin key gets those of all owners.
"""

from __future__ import annotations

import asyncio
from typing import Any

from openclaw.gateway.auth import Client
from openclaw.gateway.errors import ApiError, bad_request
from openclaw.ledger.copying import Transfer

MOST_TURNS = 20


class RolloutDesk:
    """Serves recorded turns; stateless."""

    def __init__(self, transfer: Transfer, *, enabled: bool) -> None:
        self._transfer = transfer
        self._enabled = enabled

    async def page(self, since: str, after: str, client: Client) -> dict[str, Any]:
        """Return the turns that changed after a position, and the next position.

        Args:
            since: seconds since the epoch.
            after: number of the last turn that changed at ``since``.
            client: who asks.

        Raises:
            ApiError: 404 if the route is off, 400 for an invalid position.
        """
        if not self._enabled:
            raise ApiError(
                404,
                "this server does not serve recorded turns; start it with OPENCLAW_SERVE_ROLLOUTS=1, or "
                "python -m openclaw.server --enable-rl-intercept",
                code="rollouts_not_served",
            )
        try:
            position = float(since), int(after)
        except ValueError as error:
            raise bad_request("since must be a number of seconds, after a whole number", param="since") from error
        if not -(2**63) <= position[1] < 2**63:
            raise bad_request("after is out of range", param="after")
        owner = None if client.admin else client.owner
        turns = await asyncio.to_thread(self._transfer.changed, *position, MOST_TURNS, owner)
        last = (turns[-1].changed_at, turns[-1].number) if turns else position
        return {
            "object": "list",
            "data": [turn.to_dict() for turn in turns],
            "has_more": len(turns) == MOST_TURNS,
            "next": {"since": last[0], "after": last[1]},
        }
