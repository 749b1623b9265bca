"""Commands in a conversation (``/rl good``): what the gateway answers itself, as a reply that no model wrote.

Guarantees: a command acts for the client that sends it, on its own turns and its own person's lessons, by the same
desks as the routes; the key of an episode's agent gives none (`openclaw.gateway.chat`). No engine reads it, no turn records it,
and it gives no turn a next state. `openclaw.messages.commands` says which messages are commands and removes them from later
requests. `CommandReply` has the face of `openclaw.gateway.reply.Reply`. Stateless.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from chat_codec.reply_parser import Content
from openclaw.gateway.auth import Client
from openclaw.gateway.capture import Capture, Step
from openclaw.gateway.dialects.dialect import Form, Head
from openclaw.gateway.errors import ApiError, from_ledger
from openclaw.gateway.lessons import LessonDesk
from openclaw.gateway.limits import RateLimits
from openclaw.gateway.turns import FeedbackRequest, TurnDesk
from openclaw.ledger.exceptions import LedgerError, UnknownRecordError
from openclaw.ledger.views import counted
from openclaw.lessons.lesson import Mode
from openclaw.messages.commands import ANSWER, MAX_CHARACTERS
from openclaw.messages.thumbs import Thumbs
from openclaw.sessions import Place, Sessions

HELP = """/rl good: the last answer was good; words may follow
/rl bad WORDS: it was not, and WORDS say why
/rl lessons: what is kept in mind for you; /rl lessons on, /rl lessons off, /rl lessons delete ID
/rl forget: delete what is recorded of this conversation
A command is one line, and the model does not read it."""
MODE_WORDS: dict[str, Mode] = {"on": "auto", "auto": "auto", "confirm": "confirm", "off": "off"}
NO_REPLY = "There is no answer of this server before this message, so nothing was rated."
WHY_NOT = {
    "already_trained": "A training step has used that answer already; your words are kept.",
    "side": "That answer is never trained; your opinion is kept.",
}
Where = Callable[[], Awaitable[Place]]


class CommandDesk:
    """Carries commands out."""

    def __init__(self, sessions: Sessions, turns: TurnDesk, lessons: LessonDesk, limits: RateLimits) -> None:
        """Create the desk; ``limits`` bound the feedback of each key."""
        self._sessions = sessions
        self._turns = turns
        self._lessons = lessons
        self._limits = limits

    async def answer(self, words: str, where: Where, client: Client) -> str:
        """Carry out a command of a client and return the text of the answer.

        Args:
            words: of the command, after ``/rl``.
            where: finds the conversation before it.
            client: who gives it.

        Raises:
            ApiError: 429 if the key is at its limit of feedback; the ledger's refusals.
        """
        name, _, rest = words.partition(" ")
        rest = rest.strip()
        if len(words) > MAX_CHARACTERS or len(words.splitlines()) > 1:
            text = f"Nothing was done: a command is one line of at most {MAX_CHARACTERS} characters.\n{HELP}"
            return ANSWER + text
        match name.lower(), rest:
            case "good", why:
                text = await self._rate("up", why or None, where, client)
            case "bad", why:
                text = await self._rate("down", why or None, where, client)
            case "lessons", which:
                text = await self._of_lessons(which, client)
            case "forget", ("" | "yes") as sure:
                text = await self._forget(where, sure=bool(sure))
            case "help" | "", _:
                text = HELP
            case _:
                text = f"Nothing was done: there is no such command.\n{HELP}"
        return ANSWER + text

    async def _rate(self, thumbs: Thumbs, why: str | None, where: Where, client: Client) -> str:
        await self._limits.count_feedback(client.name)
        turn_id = (await where()).turn_id
        if turn_id is None:
            return NO_REPLY
        receipt = await self._turns.give(
            FeedbackRequest(response_id=turn_id, thumbs=thumbs, score=None, text=why), client
        )
        if receipt["applied"]:
            return f"Noted: thumbs {thumbs}{', with your words,' if why else ''} for the last answer."
        reason = receipt["reason"]
        return WHY_NOT.get(reason, f"Kept, but it does not count for training ({reason}).")

    async def _of_lessons(self, which: str, client: Client) -> str:
        what, _, lesson_id = which.partition(" ")
        if mode := MODE_WORDS.get(which.lower()):
            await self._lessons.choose_mode(mode, client)
        elif what.lower() == "delete" and lesson_id:
            try:
                await self._lessons.remove(lesson_id.strip(), client)
            except ApiError as error:
                if error.status != 404:
                    raise
                return f"You have no lesson {lesson_id.strip()!r}; /rl lessons lists yours."
            return f"Deleted {lesson_id.strip()}."
        elif which:
            return f"Nothing was done: there is no such command.\n{HELP}"
        known = await self._lessons.listed(client)
        lines = [f"Lessons are {known['lessons']}. {'You have none.' if not known['data'] else ''}".strip()]
        lines += [f"{lesson['id']} ({lesson['state']}): {lesson['text']}" for lesson in known["data"]]
        return "\n".join(lines)

    async def _forget(self, where: Where, *, sure: bool) -> str:
        place = await where()
        if place.session_id is None:
            return "Nothing of this conversation is recorded."
        if not sure:
            return (
                f"This would delete {counted(place.turns, 'recorded turn')} of this conversation, with verdicts, samples and the "
                "lessons that come from it alone. Type /rl forget yes to do it."
            )
        try:
            gone = await self._sessions.forget(place.session_id)
        except UnknownRecordError:
            return "Nothing of this conversation is recorded."
        erased = await self._sessions.erase()
        text = f"Deleted {counted(gone.turns, 'turn')} and {counted(gone.samples, 'sample')} of this conversation."
        if gone.trained:
            text += f" {gone.trained} of the samples had been trained; the weights that learned from them remain."
        if not erased:
            text += " Another reader keeps the old bytes on disk for now."
        return f"{text} Now begin a new conversation: with your next message here the words come back."


class CommandReply:
    """The answer to a command, with the face of a `Reply`: entering carries the command out."""

    def __init__(self, capture: Capture, answer: Callable[[], Awaitable[str]], form: Form) -> None:
        """Create an answer that ``answer`` gives the text of, in an empty ``capture``."""
        self.error: ApiError | None = None
        self.recorded = False
        self.tokens = (0, 0)
        self.weight_version = ""
        self._capture = capture
        self._answer = answer
        self.form = form

    @property
    def id(self) -> str:
        """The answer's id; no turn has it."""
        return self._capture.prompt.id

    @property
    def log_words(self) -> str:
        """What the access log says of it besides its tokens."""
        return "command"

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the answer."""
        return {"x-request-id": self.id, "x-turn-type": "command"}

    def contents(self) -> str:
        """Return the command and its answer as one line of JSON."""
        prompt = self._capture.prompt
        return json.dumps({"messages": prompt.messages, "replies": [self._capture.builder.message()]})

    async def __aenter__(self) -> CommandReply:
        """Carry the command out in the background."""
        self._answering = asyncio.ensure_future(self._run())
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Wait until the command is carried out, also for a client that left."""
        await asyncio.gather(self._answering, return_exceptions=True)

    async def begun(self, within: float | None = None) -> bool:
        """Wait up to ``within`` seconds for the answer; return whether it is there.

        Raises:
            ApiError: if the command could not be carried out.
        """
        await asyncio.wait({self._answering}, timeout=within)
        if self._answering.done():
            self._answering.result()
        return self._answering.done()

    async def _run(self) -> None:
        try:
            text = await self._answer()
        except LedgerError as error:
            self.error = from_ledger(error)
            raise self.error from error
        except ApiError as error:
            self.error = error
            raise
        self._capture.builder.add(Content(text))
        self._capture.finish_reason = "stop"
        self._text, self.recorded = text, True

    def heartbeat(self) -> bytes:
        """Return what a silent stream gets."""
        return self.form.heartbeat()

    def failure(self, error: ApiError) -> bytes:
        """Return the event that ends a stream which failed."""
        return self.form.failure(error)

    async def whole(self) -> dict[str, Any]:
        """Return the answer as one JSON object."""
        return self.form.whole(self._head(), [self._capture])

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yield the answer as server-sent events."""
        writer = self.form.writer(self._head(), [self._capture])
        yield writer.step(Step(0, [Content(self._text)], [])) + writer.end([self._capture])

    def _head(self) -> Head:
        prompt = self._capture.prompt
        return Head(prompt.id, prompt.model, prompt.created_at, self.weight_version)
