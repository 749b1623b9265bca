"""Commands in a conversation (``/rl good``): what the gateway answers itself.

Guarantees: a command acts for the client that sends it, on its own turns and its own person's lessons, by the same
desks as the routes; the key of an episode's agent gives none (`openclaw.gateway.chat`). No engine reads it, no turn records it,
and it gives no turn a next state. `openclaw.messages.commands` says which messages are commands and removes them from later
requests. Stateless.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from groundwork.chat_messages import Message
from openclaw.gateway.auth import Client
from openclaw.gateway.errors import ApiError
from openclaw.gateway.lessons import LessonDesk
from openclaw.gateway.limits import RateLimits
from openclaw.gateway.turns import FeedbackRequest, TurnDesk
from openclaw.ledger.exceptions import UnknownRecordError
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
SEVERAL = (
    "Nothing was deleted: several recorded conversations are like this one, and your client does not name its session. "
    "It can with the header X-Session-Id."
)
WHY_NOT = {
    "already_trained": "A training step has used that answer already; your words are kept.",
    "side": "That answer is never trained; your opinion is kept.",
}
Where = Callable[[], Awaitable[Place]]


@dataclass(frozen=True)
class Before:
    """The conversation before a command, as `Sessions.place` takes it, and whether its session ends with the command."""

    headers: Mapping[str, str]
    messages: Sequence[Message]
    body_session_id: str | None
    done: bool


class CommandDesk:
    """Carries commands out."""

    def __init__(self, sessions: Sessions, turns: TurnDesk, lessons: LessonDesk, limits: RateLimits) -> None:
        """Create the desk; ``limits`` bound the feedback of each key."""
        self._sessions = sessions
        self._turns = turns
        self._lessons = lessons
        self._limits = limits

    async def answer(self, words: str, before: Before, client: Client) -> str:
        """Carry out a command of a client and return the text of the answer.

        Args:
            words: of the command, after ``/rl``.
            before: the conversation before it.
            client: who gives it.

        Raises:
            ApiError: 429 if the key is at its limit of feedback.
            LedgerError: if the ledger refuses it.
        """
        where = partial(
            self._sessions.place,
            before.headers,
            before.messages,
            owner=client.owner,
            body_session_id=before.body_session_id,
        )
        said = await self._carry_out(words, where, client)
        if before.done and (session_id := (await where()).session_id):
            await self._sessions.end(session_id)
        return said

    async def _carry_out(self, words: str, where: Where, client: Client) -> str:
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
        if place.ambiguous:
            return SEVERAL
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
