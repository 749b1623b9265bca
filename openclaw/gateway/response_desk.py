"""Responses that clients continue, ask for again, delete or cancel.

``GET`` and ``DELETE /v1/responses/{id}``, ``GET /v1/responses/{id}/input_items``, ``POST /v1/responses/{id}/cancel``.

Guarantees: a response that was not stored, was deleted, forgotten with its session, or is another owner's gets one answer, here
and as ``previous_response_id``. An admin key reads, deletes and cancels those of all owners, but continues its own only. A
cancelled reply is recorded like one whose client left: with what was sampled, and never trained. `ResponseDesk` knows the replies under way; those that ended leave by themselves.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from weakref import WeakSet

from fastapi import FastAPI, Request, Response

from openclaw.gateway.auth import Client
from openclaw.gateway.chat import ChatService
from openclaw.gateway.dialects.dialect import Question
from openclaw.gateway.dialects.response_items import named_turn, with_ids
from openclaw.gateway.dialects.responses import RESPONSES, ResponsesForm, completed, is_whole, referred
from openclaw.gateway.errors import ApiError, bad_request, from_ledger
from openclaw.gateway.guard import client_of
from openclaw.gateway.reply import Reply
from openclaw.gateway.stream import json_response
from openclaw.ledger.exceptions import LedgerError, UnknownRecordError
from openclaw.ledger.store import Ledger
from openclaw.messages.commands import ANSWER
from openclaw.owners import COMPLETION, names_command_answer, stored_id, turn_of_response

PATH = f"{RESPONSES.path}/{{response}}"
MOST_ITEMS = 100
"""On a page of input items, as in OpenAI's API."""
PAGE = re.compile(r"[1-9][0-9]{0,2}")


class ResponseDesk:
    """Begins replies to responses, and answers for those that are stored."""

    def __init__(self, service: ChatService, ledger: Ledger) -> None:
        """Create the desk over a ledger, for replies of ``service``."""
        self._service = service
        self._stored = ledger.responses
        self._running: WeakSet[Reply] = WeakSet()
        self.elsewhere: Callable[[str, Client], Awaitable[dict[str, Any] | None]] = _nowhere
        """`stop` of the other processes of this gateway."""

    def begin(self, question: Question, headers: Mapping[str, str], client: Client) -> Reply:
        """Return the reply to a question, which may be cancelled from now on."""
        reply = self._service.reply(question, headers, client)
        self._running.add(reply)
        return reply

    async def completed(self, question: Question, client: Client) -> Question:
        """Return a question with what it only names.

        Raises:
            ApiError: 400, if that is not stored.
        """
        if is_whole(question):
            return question
        form = question.form
        assert isinstance(form, ResponsesForm)
        try:
            items = await asyncio.to_thread(self._items, form.previous, form.items, client)
        except UnknownRecordError as error:
            raise _unknown_previous(form.previous) from error
        except LedgerError as error:
            raise from_ledger(error) from error
        return completed(question, items, self._service.config.context_length)

    def _items(self, previous: str | None, own: list[Any], client: Client) -> list[Any]:
        """Return the whole conversation of a request."""
        before: list[Any] = []
        if previous is not None and not names_command_answer(previous):
            for kept in self._stored.chain(turn_of_response(previous), client.has):
                before += [*self._resolved(kept.items, client), *kept.response["output"]]
        return before + self._resolved(own, client)

    def _resolved(self, items: list[Any], client: Client) -> list[Any]:
        """Return items with those that references mean in their places.

        Raises:
            ApiError: 400, if one of them is not stored.
        """
        return [item if (name := referred(item)) is None else self._item(name, client) for item in items]

    def _item(self, name: str, client: Client) -> Any:
        if names_command_answer(name):
            return {"role": "assistant", "content": ANSWER}
        try:
            output = self._stored.get(named_turn(name), client.has)["output"]
        except UnknownRecordError:
            output = []
        found = next((item for item in output if item["id"] == name), None)
        if found is None:
            raise bad_request(f"input: there is no item {name[:100]!r}; send the item itself", param="input")
        return found

    async def get(self, response: str, client: Client) -> dict[str, Any]:
        """Return a stored response as it was sent.

        Raises:
            ApiError: 404, if there is none.
        """
        try:
            return await asyncio.to_thread(self._stored.get, turn_of_response(response), client.reaches)
        except UnknownRecordError as error:
            raise _unknown(response) from error

    async def delete(self, response: str, client: Client) -> dict[str, Any]:
        """Delete a stored response; its turn stays until its session is forgotten.

        Raises:
            ApiError: 404, if there is none.
        """
        try:
            await asyncio.to_thread(self._stored.delete, turn_of_response(response), client.reaches)
        except UnknownRecordError as error:
            raise _unknown(response) from error
        return {"id": response, "object": "response", "deleted": True}

    async def input_items(self, response: str, client: Client, query: Mapping[str, str]) -> dict[str, Any]:
        """Return a page of the items that a stored response answered, the newest first unless ``order`` is ``asc``.

        Raises:
            ApiError: 404, if there is none; 400 for another page.
        """
        turn = turn_of_response(response)

        def read() -> list[Any]:
            *before, last = self._stored.chain(turn, client.reaches)
            items = [item for kept in before for item in (*kept.items, *kept.response["output"])]
            return with_ids([*items, *last.items], turn.removeprefix(COMPLETION))

        order, limit = query.get("order", "desc"), query.get("limit", "20")
        if order not in ("asc", "desc") or not PAGE.fullmatch(limit) or int(limit) > MOST_ITEMS:
            raise bad_request(f"send order=asc or desc, and limit=1 to {MOST_ITEMS}", param="limit")
        try:
            items = await asyncio.to_thread(read)
        except UnknownRecordError as error:
            raise _unknown(response) from error
        items = items if order == "asc" else items[::-1]
        if after := query.get("after"):
            place = next((number for number, item in enumerate(items) if item["id"] == after), None)
            if place is None:
                raise bad_request(f"after: there is no item {after[:100]!r}", param="after")
            items = items[place + 1 :]
        page = items[: int(limit)]
        ends = {"first_id": page[0]["id"] if page else None, "last_id": page[-1]["id"] if page else None}
        return {"object": "list", "data": page, **ends, "has_more": len(page) < len(items)}

    async def cancel(self, response: str, client: Client) -> dict[str, Any]:
        """Stop a response that is under way, and return what there is of it.

        Raises:
            ApiError: 400, if it is over; 404, if there is none.
        """
        turn = turn_of_response(response)
        if stopped := self.stop(turn, client) or await self.elsewhere(turn, client):
            return stopped
        await self.get(response, client)
        raise bad_request("this response is over; there is nothing to cancel", param="response_id")

    def stop(self, turn: str, client: Client) -> dict[str, Any] | None:
        """Stop a client's reply of this process, and return what there is of it; None if there is no such reply under way."""
        reply = next((reply for reply in self._running if reply.captures and reply.id == turn), None)
        if reply is None or not client.reaches(stored_id(reply.owner, "")) or not reply.cancel():
            return None
        return {**reply.form.whole(reply.head, reply.captures), "status": "cancelled", "incomplete_details": None}


async def _nowhere(turn: str, client: Client) -> None:
    """There is no other process."""


def add_response_routes(app: FastAPI, desk: ResponseDesk) -> None:
    """Add the routes for stored responses and those under way."""

    @app.get(PATH)
    async def response(response: str, request: Request) -> Response:
        """Return a stored response as it was sent."""
        if request.query_params.get("stream") == "true":
            raise bad_request("stream: a stored response is sent whole; leave it out", param="stream")
        return json_response(await desk.get(response, client_of(request.scope)))

    @app.delete(PATH)
    async def delete_response(response: str, request: Request) -> Response:
        """Delete a stored response; its turn stays until its session is forgotten."""
        return json_response(await desk.delete(response, client_of(request.scope)))

    @app.get(f"{PATH}/input_items")
    async def input_items(response: str, request: Request) -> Response:
        """Return what a stored response answered: its conversation, newest item first."""
        return json_response(await desk.input_items(response, client_of(request.scope), request.query_params))

    @app.post(f"{PATH}/cancel")
    async def cancel(response: str, request: Request) -> Response:
        """Stop a response that is under way."""
        return json_response(await desk.cancel(response, client_of(request.scope)))


def _unknown(response: str) -> ApiError:
    return ApiError(
        404,
        f"Response with id {response[:100]!r} not found: it was not stored, or was deleted or forgotten",
        code="response_not_found",
        param="response_id",
    )


def _unknown_previous(previous: str | None) -> ApiError:
    return bad_request(
        f"Previous response with id {(previous or '')[:100]!r} not found: it, or one before it, was not stored, or was deleted "
        "or forgotten; send the whole conversation as 'input'",
        param="previous_response_id",
        code="previous_response_not_found",
    )
