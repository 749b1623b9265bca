"""Lessons at the gateway: which ones a request carries, and the routes by which a person reads and changes them.

``GET/POST/DELETE /v1/lessons``, ``PATCH/DELETE /v1/lessons/{id}``, ``GET/PUT /v1/me``: about the person of the key alone, an
admin's key included. The key of an episode gets a 403 (`openclaw.gateway.guard`).

Guarantees: a request carries lessons of its own person only. It carries none if its person's mode is ``off``, if it is a side
turn or an agent's of an episode, or if the server evaluates, unless it asks for them with ``X-OpenClaw-Lessons: on``; never if
it says ``off``. A ledger that cannot be read is no reason to refuse a request: it is served plain and counted. Memory is at
most `FRESH_SECONDS` older than the ledger, so that changes by other processes count soon; changes by this process, the judge's
included, count at once. Owns that
memory; used from one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from openclaw.config.bounds import LESSON_BODY
from openclaw.config.runtime import RuntimeConfig
from openclaw.gateway.auth import Client
from openclaw.gateway.errors import ApiError, bad_request
from openclaw.gateway.guard import client_of
from openclaw.gateway.limits import parse_body, take_body
from openclaw.gateway.metrics import GatewayMetrics
from openclaw.gateway.stream import LESSONS_HEADER, json_response
from openclaw.ledger.exceptions import LedgerError, LedgerUnavailableError, UnknownRecordError
from openclaw.ledger.records import TurnKind
from openclaw.ledger.store import Ledger
from openclaw.lessons.lesson import MODES, UNUSED_DAYS, Lesson, Mode, UnusableLessonError, chosen
from openclaw.owners import episode_of, root

logger = logging.getLogger(__name__)

LESSONS_PATH = "/v1/lessons"
LESSON_PATH = "/v1/lessons/{lesson_id}"
ME_PATH = "/v1/me"
FRESH_SECONDS = 5.0
MAX_REMEMBERED = 4096
Result = TypeVar("Result")


class LessonRequest(BaseModel):
    """The body of a new lesson."""

    model_config = ConfigDict(extra="forbid", strict=True)

    text: Annotated[str, Field(min_length=1)]
    pinned: bool = False


class LessonChange(BaseModel):
    """The body of a change; what is left out stays."""

    model_config = ConfigDict(extra="forbid", strict=True)

    text: Annotated[str | None, Field(min_length=1)] = None
    pinned: bool | None = None
    on: bool | None = None


class PersonChange(BaseModel):
    """The body that sets a person's choices."""

    model_config = ConfigDict(extra="forbid", strict=True)

    lessons: Mode


def wished(headers: Mapping[str, str]) -> str | None:
    """Return whether a request wants lessons, ``on`` or ``off``, or None if it does not say.

    Raises:
        ApiError: 400 for another word.
    """
    wish = headers.get(LESSONS_HEADER, "").strip().lower() or None
    if wish not in (None, "on", "off"):
        raise bad_request(f"X-OpenClaw-Lessons: {wish!r} is unknown; send on or off", param="X-OpenClaw-Lessons")
    return wish


class LessonDesk:
    """Chooses the lessons of requests, and answers for a person's lessons."""

    def __init__(
        self,
        config: RuntimeConfig,
        ledger: Ledger,
        count_tokens: Callable[[str], int],
        metrics: GatewayMetrics,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the desk with an empty memory; ``count_tokens`` is called in a thread."""
        self._config = config
        self._ledger = ledger
        self._count_tokens = count_tokens
        self._metrics = metrics
        self._monotonic = monotonic
        self._known: dict[str, tuple[float, Sequence[Lesson]]] = {}
        self._forgotten = 0
        self.on_forgotten: Callable[[str | None], None] = lambda person: None
        """Called with what `forget` forgets."""

    def forget(self, person: str | None = None) -> None:
        """Forget what memory has of a person, or of everybody."""
        if person is None:
            self._known.clear()
        else:
            self._known.pop(person, None)
        self._forgotten += 1
        self.on_forgotten(person)

    async def of_request(self, client: Client, kind: TurnKind, wish: str | None) -> Sequence[Lesson]:
        """Return the lessons that a request of a client carries, in the order of the prompt."""
        measured = kind == "side" or episode_of(client.owner) is not None or self._config.eval_mode
        if wish == "off" or (measured and wish is None):
            return ()
        person = root(client.owner)
        known = self._known.get(person)
        if known is not None and self._monotonic() < known[0]:
            return known[1]
        forgotten = self._forgotten
        try:
            lessons = await asyncio.to_thread(self._read, person)
        except LedgerError as error:
            self._metrics.lessons.labels(outcome="ledger").inc()
            logger.error("a request is served without lessons, because they cannot be read: %s", error)
            return ()
        if forgotten == self._forgotten:
            if len(self._known) >= MAX_REMEMBERED:
                self._known.clear()
            self._known[person] = (self._monotonic() + FRESH_SECONDS, lessons)
        return lessons

    def _read(self, person: str) -> Sequence[Lesson]:
        if self._ledger.lessons.mode(person, self._config.lessons) == "off":
            return ()
        known, config = self._ledger.lessons.served(person), self._config
        return chosen(known, self._count_tokens, config.context_length, config.most_lessons)

    def age(self) -> None:
        """Retire the lessons that nobody used for long."""
        if self._ledger.lessons.age():
            logger.info("lessons that no request carried for %d days are retired", UNUSED_DAYS)

    async def listed(self, client: Client) -> dict[str, Any]:
        """Return a person's lessons with their evidence, and the person's mode."""
        person = root(client.owner)

        def read() -> tuple[Mode, list[Lesson]]:
            return self._ledger.lessons.mode(person, self._config.lessons), self._ledger.lessons.of(person)

        mode, lessons = await self._call(person, read)
        return {"object": "list", "lessons": mode, "data": [_shown(lesson) for lesson in lessons]}

    async def add(self, body: bytes, client: Client) -> dict[str, Any]:
        """Add the lesson in a body, and return it."""
        asked = parse_body(LessonRequest, body, LESSON_BODY)
        person = root(client.owner)
        return _shown(
            await self._call(person, lambda: self._ledger.lessons.add(person, asked.text, pinned=asked.pinned))
        )

    async def change(self, lesson_id: str, body: bytes, client: Client) -> dict[str, Any]:
        """Change a lesson as a body says, and return it; with new words also ``erased``, as `remove` does."""
        asked = parse_body(LessonChange, body, LESSON_BODY)
        person = root(client.owner)
        changes = {"text": asked.text, "pinned": asked.pinned, "on": asked.on}
        if all(value is None for value in changes.values()):
            raise bad_request("nothing to change; send text, pinned or on")
        lesson = await self._call(
            person,
            lambda: self._ledger.lessons.edit(person, lesson_id, text=asked.text, pinned=asked.pinned, on=asked.on),
        )
        return _shown(lesson) if asked.text is None else {**_shown(lesson), "erased": await self._erased()}

    async def remove(self, lesson_id: str, client: Client) -> dict[str, Any]:
        """Delete a lesson and its bytes; ``erased`` is false while another reader keeps old bytes on disk."""
        person = root(client.owner)
        await self._call(person, lambda: self._ledger.lessons.remove(person, lesson_id))
        return {"id": lesson_id, "object": "lesson", "deleted": True, "erased": await self._erased()}

    async def remove_all(self, client: Client) -> dict[str, Any]:
        """Delete all lessons of a person and the person's choice."""
        person = root(client.owner)
        count = await self._call(person, lambda: self._ledger.lessons.forget_person(person))
        return {"object": "list", "deleted": count, "erased": await self._erased()}

    async def me(self, client: Client) -> dict[str, Any]:
        """Return what a person has chosen."""
        person = root(client.owner)
        mode = await self._call(person, lambda: self._ledger.lessons.mode(person, self._config.lessons))
        return {"object": "person", "lessons": mode, "choices": {"lessons": list(MODES)}}

    async def choose(self, body: bytes, client: Client) -> dict[str, Any]:
        """Set a person's choices, and return them."""
        await self.choose_mode(parse_body(PersonChange, body, LESSON_BODY).lessons, client)
        return await self.me(client)

    async def choose_mode(self, mode: Mode, client: Client) -> None:
        """Set whether a person has lessons."""
        person = root(client.owner)
        await self._call(person, lambda: self._ledger.lessons.choose_mode(person, mode))

    async def _call(self, person: str, work: Callable[[], Result]) -> Result:
        """Return the result of ``work`` in a thread; it may change what memory has of the person.

        Raises:
            ApiError: 400 for a text that cannot be a lesson, 404 for a lesson that the person does not have.
        """
        try:
            return await asyncio.to_thread(work)
        except UnusableLessonError as error:
            raise bad_request(str(error), param="text", code=f"unusable_lesson_{error.reason}") from error
        except UnknownRecordError as error:
            raise ApiError(
                404, "you have no such lesson; GET /v1/lessons lists yours", code="lesson_not_found", param="lesson_id"
            ) from error
        finally:
            self.forget(person)

    async def _erased(self) -> bool:
        with suppress(LedgerUnavailableError):
            await asyncio.to_thread(self._ledger.sessions.erase)
            return True
        return False


def _shown(lesson: Lesson) -> dict[str, Any]:
    """Return a lesson as a client sees it."""
    values = asdict(lesson)
    del values["person"]
    return {"object": "lesson", **values, "confirmed": lesson.is_confirmed}


def add_lesson_routes(app: FastAPI, desk: LessonDesk) -> None:
    """Add the routes."""

    @app.get(LESSONS_PATH)
    async def lessons(request: Request) -> Response:
        """Return the client's lessons with their evidence."""
        return json_response(await desk.listed(client_of(request.scope)))

    @app.post(LESSONS_PATH)
    async def add_lesson(request: Request) -> Response:
        """Add a lesson in the client's own words."""
        return json_response(await desk.add(take_body(request.scope), client_of(request.scope)))

    @app.delete(LESSONS_PATH)
    async def forget_lessons(request: Request) -> Response:
        """Delete all lessons of the client, and its choice."""
        return json_response(await desk.remove_all(client_of(request.scope)))

    @app.patch(LESSON_PATH)
    async def change_lesson(lesson_id: str, request: Request) -> Response:
        """Edit, pin, accept or switch off a lesson."""
        return json_response(await desk.change(lesson_id, take_body(request.scope), client_of(request.scope)))

    @app.delete(LESSON_PATH)
    async def forget_lesson(lesson_id: str, request: Request) -> Response:
        """Delete a lesson, and what the prompts of recorded turns have of it."""
        return json_response(await desk.remove(lesson_id, client_of(request.scope)))

    @app.get(ME_PATH)
    async def me(request: Request) -> Response:
        """Return what the client's person has chosen."""
        return json_response(await desk.me(client_of(request.scope)))

    @app.put(ME_PATH)
    async def choose(request: Request) -> Response:
        """Set what the client's person wants."""
        return json_response(await desk.choose(take_body(request.scope), client_of(request.scope)))
