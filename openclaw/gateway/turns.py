"""What a client asks and says about recorded turns.

``GET /v1/turns/{response_id}``: what became of a reply, for whoever got it. The answer has verdict and training step, but
no text of the conversation except the judge's hint. Another owner's reply gets the 404 of an unknown one, here and for
feedback.

``POST /v1/feedback``: a person's opinion on a reply, outside of the conversation, by the reply's id. After a 200 the
feedback is in the ledger. The answer says whether it counts for the verdict (``applied``) and if not, why. Sending the
same feedback again is a no-op with the same answer.

``GET /v1/rollouts``: recorded turns for a collector on another machine; off unless ``OPENCLAW_SERVE_ROLLOUTS=1``, because
it copies conversations. A key gets the turns that it and its children own; only an admin key gets those of all owners.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from openclaw.config.bounds import FEEDBACK_BODY, FEEDBACK_CHARACTERS, SESSION_ID
from openclaw.gateway.auth import Client
from openclaw.gateway.errors import ApiError, bad_request
from openclaw.gateway.limits import parse_body
from openclaw.gateway.metrics import GatewayMetrics
from openclaw.gateway.schema import AtMost
from openclaw.ledger.decisions import DecisionRecord, Offer
from openclaw.ledger.exceptions import LedgerError, UnknownRecordError
from openclaw.ledger.feedback import FeedbackReceipt, as_next_state, is_weak, stated_score
from openclaw.ledger.records import Feedback
from openclaw.ledger.store import Ledger
from openclaw.ledger.views import Outcome
from openclaw.owners import turn_of_response

logger = logging.getLogger(__name__)

OFFER_SECONDS = 2.0
"""How long a look at the gateway's health waits for the ledger: a busy one must not make the process look frozen."""
MAX_TURNS = 20
Result = TypeVar("Result")


class FeedbackRequest(BaseModel):
    """The body; at least one of the fields after the id is set."""

    model_config = ConfigDict(extra="forbid", strict=True)

    response_id: Annotated[str, Field(min_length=1), AtMost(SESSION_ID)]
    thumbs: Literal["up", "down"] | None = None
    score: float | None = Field(None, ge=-1, le=1, allow_inf_nan=False)
    text: Annotated[str, AtMost(FEEDBACK_CHARACTERS)] | None = None
    action: Literal["regenerated", "copied"] | None = None
    edit: Annotated[str, AtMost(FEEDBACK_CHARACTERS)] | None = None


class TurnDesk:
    """Answers for the recorded turns of a ledger; stateless."""

    def __init__(
        self,
        ledger: Ledger,
        metrics: GatewayMetrics,
        *,
        clock: Callable[[], float],
        on_pending: Callable[[], None],
        serves_rollouts: bool,
        model_path: str | None = None,
    ) -> None:
        """Create the desk.

        Args:
            ledger: has the turns.
            metrics: count feedback.
            clock: seconds since the epoch.
            on_pending: called when feedback made a turn pending.
            serves_rollouts: whether collectors may copy turns.
            model_path: checkpoint of the model that is served, told to collectors.
        """
        self._ledger = ledger
        self._metrics = metrics
        self._clock = clock
        self._on_pending = on_pending
        self._serves_rollouts = serves_rollouts
        self._model_path = model_path

    async def outcome(self, response_id: str, client: Client) -> dict[str, Any]:
        """Return what became of the reply ``response_id``; the number of its step, which counts what all do, for an admin alone.

        Raises:
            ApiError: 404 for a reply that is unknown or not the client's.
        """

        turn_id = turn_of_response(response_id)

        def read() -> Outcome:
            outcome = self._ledger.views.outcome(turn_id)
            self._require_own(turn_id, client)
            return outcome

        try:
            outcome = await asyncio.to_thread(read)
        except UnknownRecordError as error:
            raise _unknown_reply() from error
        told = outcome if client.admin else replace(outcome, step=None)
        return {"object": "turn", "id": response_id, **asdict(told)}

    async def offered(self, fewest: int) -> Offer | None:
        """Return the change that a person may accept (`openclaw.gate`), or None; None if the ledger cannot be read soon."""
        return await _read_soon(partial(self._ledger.decisions.offer, fewest))

    async def certified(self, *whose: str | None) -> DecisionRecord | None:
        """Return the newest update with a certificate; None without one, or if the ledger cannot be read soon.

        ``whose``: see `Decisions.last_certified`.
        """
        return await _read_soon(partial(self._ledger.decisions.last_certified, *whose))

    async def people_refused(self) -> int:
        """Return the number of people whose adapter's newest certificate is red; 0 if the ledger cannot be read soon."""
        return await _read_soon(self._ledger.decisions.people_with_red_certificate) or 0

    async def take_feedback(self, body: bytes, client: Client) -> dict[str, Any]:
        """Record the feedback in ``body`` as `give` does.

        Raises:
            ApiError: 400 for an empty or contradictory body; what `give` raises.
        """
        return await self.give(parse_feedback(body), client)

    async def give(self, request: FeedbackRequest, client: Client) -> dict[str, Any]:
        """Record feedback, and return the answer.

        Raises:
            ApiError: 404 for a reply that is unknown or not the client's, 500 if the ledger is not writable.
        """
        feedback = Feedback(
            turn_id=turn_of_response(request.response_id),
            created_at=self._clock(),
            thumbs=request.thumbs,
            score=request.score,
            text=request.text,
            source=client.name,
            action="edited" if request.edit else request.action,
            edit=request.edit,
        )

        def record() -> FeedbackReceipt:
            self._require_own(feedback.turn_id, client)
            return self._ledger.feedback.record(feedback, as_next_state(feedback))

        try:
            receipt = await asyncio.to_thread(record)
        except UnknownRecordError as error:
            raise _unknown_reply() from error
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
            value=feedback.action or "words" if score is None else str(score),
            outcome="repeated" if receipt.repeated else "applied" if receipt.applied else "kept",
        ).inc()
        return {
            "object": "feedback",
            "response_id": request.response_id,
            "applied": receipt.applied,
            "reason": None if receipt.applied else _why_not(receipt, is_weak(feedback)),
        }

    async def rollouts(self, since: str, after: str, client: Client) -> dict[str, Any]:
        """Return the turns that changed after a position, and the next position.

        Args:
            since: seconds since the epoch.
            after: number of the last turn that changed at ``since``.
            client: who asks.

        Raises:
            ApiError: 404 if the route is off, 400 for an invalid position.
        """
        if not self._serves_rollouts:
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
        turns = await asyncio.to_thread(self._ledger.transfer.changed, *position, MAX_TURNS, owner)
        last = (turns[-1].changed_at, turns[-1].number) if turns else position
        return {
            "object": "list",
            "data": [turn.to_dict() for turn in turns],
            "has_more": len(turns) == MAX_TURNS,
            "next": {"since": last[0], "after": last[1]},
            "model_path": self._model_path,
        }

    def _require_own(self, turn_id: str, client: Client) -> None:
        """Raise UnknownRecordError if the client does not reach a turn, or if there is none."""
        if not client.reaches(self._ledger.turns.session_of(turn_id)):
            raise UnknownRecordError(f"{client.name} has no turn {turn_id!r}")


async def _read_soon(read: Callable[[], Result | None]) -> Result | None:
    """Return what a look into the ledger finds; None if the ledger cannot be read within `OFFER_SECONDS`."""
    try:
        async with asyncio.timeout(OFFER_SECONDS):
            return await asyncio.to_thread(read)
    except (LedgerError, TimeoutError):
        return None


def _unknown_reply() -> ApiError:
    """Return the 404 for an id that no finished reply has."""
    return ApiError(
        404,
        "no finished reply has this response_id; send the 'id' of a chat completion of this server",
        code="response_not_found",
        param="response_id",
    )


def _why_not(receipt: FeedbackReceipt, weak: bool) -> str:
    """Return why feedback does not count: a step has used the turn's samples, it is excluded, or words outrank an action."""
    if weak and receipt.state != "excluded":
        return "waiting" if receipt.state == "waiting" else "outranked"
    return "already_trained" if receipt.state == "judged" else receipt.reason or receipt.state


def parse_feedback(body: bytes) -> FeedbackRequest:
    """Return the request in ``body``.

    Raises:
        ApiError: 400, naming the invalid field; 413 for a body beyond its bound.
    """
    request = parse_body(FeedbackRequest, body, FEEDBACK_BODY)
    text, edit = ((said or "").strip() or None for said in (request.text, request.edit))
    if request.thumbs is None and request.score is None and text is None and edit is None and request.action is None:
        raise bad_request(
            "the feedback is empty; send thumbs (up, down), score (-1 to 1), text, action (copied, regenerated) or edit"
        )
    if edit and request.action:
        raise bad_request(
            f"edit and the action {request.action} are two statements; send one at a time", param="action"
        )
    if request.score and request.thumbs and (request.score > 0) != (request.thumbs == "up"):
        raise bad_request(f"thumbs {request.thumbs} and score {request.score:g} contradict; send one", param="score")
    return request.model_copy(update={"text": text, "edit": edit})
