"""``POST /v1/feedback``: a person's opinion on a reply, outside of the conversation, by the reply's id.

Guarantees: after a 200 the feedback is in the ledger. The answer says whether it counts for the verdict (``applied``)
and if not, why. Sending the same feedback again is a no-op with the same answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from openclaw.config.bounds import FEEDBACK_CHARACTERS, SESSION_ID
from openclaw.gateway.auth import Client
from openclaw.gateway.errors import ApiError, bad_request
from openclaw.gateway.metrics import GatewayMetrics
from openclaw.gateway.outcomes import require_own_turn, unknown_reply
from openclaw.ledger.exceptions import LedgerError, UnknownRecordError
from openclaw.ledger.feedback import FeedbackReceipt, as_next_state, stated_score
from openclaw.ledger.records import Feedback
from openclaw.ledger.store import Ledger

logger = logging.getLogger(__name__)


class FeedbackRequest(BaseModel):
    """The body; at least one of ``thumbs``, ``score`` and ``text`` is set."""

    model_config = ConfigDict(extra="forbid", strict=True)

    response_id: str = Field(min_length=1, max_length=SESSION_ID.most)
    thumbs: Literal["up", "down"] | None = None
    score: float | None = Field(None, ge=-1, le=1, allow_inf_nan=False)
    text: str | None = Field(None, max_length=FEEDBACK_CHARACTERS.most)


class FeedbackDesk:
    """Takes feedback and stores it in the ledger."""

    def __init__(
        self,
        store: Ledger,
        metrics: GatewayMetrics,
        *,
        clock: Callable[[], float],
        on_pending: Callable[[], None],
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._clock = clock
        self._on_pending = on_pending

    async def take(self, body: bytes, client: Client) -> dict[str, Any]:
        """Record the feedback in ``body``, and return the answer.

        Raises:
            ApiError: 400 for an empty or contradictory body, 404 for a reply that is unknown or not the client's, 500
                if the ledger is not writable.
        """
        request = parse_feedback(body)
        feedback = Feedback(
            turn_id=request.response_id,
            created_at=self._clock(),
            thumbs=request.thumbs,
            score=request.score,
            text=request.text,
            source=client.name,
        )

        def record() -> FeedbackReceipt:
            require_own_turn(self._store, feedback.turn_id, client)
            return self._store.feedback.record(feedback, as_next_state(feedback))

        try:
            receipt = await asyncio.to_thread(record)
        except UnknownRecordError as error:
            raise unknown_reply() from error
        except LedgerError as error:
            self._metrics.ledger_failures.inc()
            logger.exception("feedback could not be recorded")
            raise ApiError(
                500, "the feedback could not be recorded; send it again later", code="ledger_unavailable"
            ) from error
        if receipt.applied and not receipt.repeated:
            self._on_pending()
        score = stated_score(feedback)
        self._metrics.feedback.labels(
            value="words" if score is None else str(score),
            outcome="repeated" if receipt.repeated else "applied" if receipt.applied else "kept",
        ).inc()
        return {
            "object": "feedback",
            "response_id": request.response_id,
            "applied": receipt.applied,
            "reason": None if receipt.applied else why_not(receipt),
        }


def why_not(receipt: FeedbackReceipt) -> str:
    """Return why feedback does not count: a step has used the turn's samples, or it is excluded from training."""
    return "already_trained" if receipt.state == "judged" else receipt.reason or receipt.state


def parse_feedback(body: bytes) -> FeedbackRequest:
    """Return the request in ``body``.

    Raises:
        ApiError: 400, naming the invalid field.
    """
    try:
        request = FeedbackRequest.model_validate(orjson.loads(body))
    except orjson.JSONDecodeError as error:
        raise bad_request("the body is not JSON", code="invalid_json") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        field = str(first["loc"][0]) if first["loc"] else None
        raise bad_request(f"{field or 'the body'}: {first['msg']}", param=field) from error
    text = (request.text or "").strip() or None
    if request.thumbs is None and request.score is None and text is None:
        raise bad_request("the feedback is empty; send thumbs (up, down), score (-1 to 1) or text")
    if request.score and request.thumbs and (request.score > 0) != (request.thumbs == "up"):
        raise bad_request(f"thumbs {request.thumbs} and score {request.score:g} contradict; send one", param="score")
    return request.model_copy(update={"text": text})
