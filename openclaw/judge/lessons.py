"""Writes lessons: reads in a person's complaint what that person wants of later replies (`openclaw.lessons`).

Guarantees: a lesson comes from words that the person of the turn typed, and from nothing else. The judge that writes one sees
these words and the person's own lessons, never the request, a tool result, or a page: what is quoted, fenced or longer than
`MAX_TYPED` characters counts as pasted, and another key's comment is not the person's (`typed_words`). No words, no question. A judge that follows instructions must confirm in a
second answer that the wish is a standing one. A tiny judge (``OPENCLAW_JUDGE_PROMPTS=brief``) and a Python class are asked for their
hint on these words, and see the reply as in any hint. A tiny judge only says whether there is a wish: it repeats words with slips, so
the lesson quotes the person (`openclaw.lessons.lesson.quotation`). A failure costs the lesson, never the verdict, and withdraws no
earlier lesson. While a person's lessons are off, nothing is read. Every complaint is counted with what became of it.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from openclaw.exceptions import EngineRefusedError, EngineUnavailableError
from openclaw.judge.answers import longest_hint
from openclaw.judge.interface import Judge, Question
from openclaw.judge.prompts import lesson_messages, standing_messages
from openclaw.judge.voting import JudgeMetrics
from openclaw.ledger.exceptions import LedgerError
from openclaw.ledger.feedback import Opinion, judged_messages, opinion
from openclaw.ledger.lessons import Birth, Wish
from openclaw.ledger.records import Feedback, Turn, Verdict, Vote
from openclaw.ledger.store import Ledger
from openclaw.lessons.lesson import Lesson, Mode, UnusableLessonError, quotation, usable_lesson
from openclaw.messages.classify import is_internal, message_side_kind, user_words
from openclaw.owners import episode_of, owner_of, owner_of_key, root

logger = logging.getLogger(__name__)

MAX_TYPED = 1000
"""Characters; a longer message is pasted."""
SHOWN_LESSONS = 16
QUOTED = re.compile(
    r"```.*?(?:```|\Z)|\"\"\".*?(?:\"\"\"|\Z)|<(\w++)[^<>]*+>.*?(?:</\1>|\Z)|^[ \t]*[>|][^\n]*$",
    re.DOTALL | re.MULTILINE,
)
"""What stands between fences or tags, or in a quotation's lines; possessive, so that no text takes quadratic time."""
UNSAID = "unsaid"
"""The outcome of a reaction without typed words; it is no complaint and is not counted."""
NO_WISH = (UNSAID, "none", "not_standing")
"""Outcomes that say that there is no wish; the others leave it open."""
REPLACES = re.compile(r"\(?\s*replaces\s+(\d{1,2})\s*\)?[\s:.,-]*(.*)", re.DOTALL | re.IGNORECASE)


def typed_words(turn: Turn, verdict: Verdict, feedback: Sequence[Feedback]) -> str:
    """Return what the person of a turn typed about its reply, empty if nothing of it can be a complaint.

    These are the comments that one of the person's keys sent as feedback, and the user's messages after a reply with a verdict
    of -1 that no rule gave. Tool results, the client's own texts and the gateway's sentence about a regenerated reply are none;
    quoted and fenced parts are left out, and pasted messages altogether.
    """
    person = root(owner_of(turn.session_id))
    own = [each for each in feedback if each.source is not None and root(owner_of_key(each.source)) == person]
    disliked = verdict.score == -1 and verdict.score_source != "rule" and turn.signal != "regenerated"
    followed = judged_messages(turn, Opinion()) if disliked else []
    texts: list[str] = []
    for message in (*followed, *({"role": "user", "content": text} for text in opinion(own).texts)):
        if message.get("role") != "user" or is_internal(message) or message_side_kind(message) is not None:
            continue
        said = user_words(message)
        if len(said) <= MAX_TYPED and (typed := QUOTED.sub(" ", said).strip()):
            texts.append(typed)
    return "\n\n".join(texts)


Reading = Literal["prompt", "hint", "quote"]
"""How a judge reads a complaint: by a prompt of its own, by its hint, or by its hint in the person's own words."""


class LessonWriter:
    """Asks the judge about complaints; stateless."""

    def __init__(
        self,
        ledger: Ledger,
        judge: Judge,
        metrics: JudgeMetrics,
        *,
        default: Mode,
        reads: Reading,
        timeout: float,
    ) -> None:
        """Create the writer.

        Args:
            ledger: has the lessons.
            judge: writes them.
            metrics: counts complaints.
            default: the mode of a person who has not chosen.
            reads: how the judge reads a complaint.
            timeout: seconds for all questions about a complaint.
        """
        self._ledger = ledger
        self._judge = judge
        self._metrics = metrics
        self._default: Mode = default
        self._reads: Reading = reads
        self._timeout = timeout

    def count(self, outcome: str | None) -> None:
        """Count what became of a complaint; None is not one."""
        if outcome is not None:
            self._metrics.lessons.labels(outcome=outcome).inc()

    async def read(self, turn: Turn, verdict: Verdict, feedback: Sequence[Feedback]) -> Wish:
        """Return what the reaction to a turn wishes: a lesson, no wish, or None if that is not known."""
        owner = owner_of(turn.session_id)
        if turn.kind != "main" or turn.scored or episode_of(owner) is not None:
            return None
        try:
            found = await self._found(turn, verdict, feedback, root(owner))
        except (EngineUnavailableError, EngineRefusedError, LedgerError, TimeoutError) as error:
            logger.warning("the complaint about turn %s gave no lesson, because the judge failed: %s", turn.id, error)
            found = "failed"
        except Exception:  # a judge class may raise anything, and a lesson is optional
            logger.exception("the complaint about turn %s gave no lesson, because the judge failed", turn.id)
            found = "failed"
        if not isinstance(found, str):
            return found
        if found != UNSAID:
            self.count(found)
        return "no_wish" if found in NO_WISH else None

    async def _found(
        self, turn: Turn, verdict: Verdict, feedback: Sequence[Feedback], person: str
    ) -> Birth | str | None:
        """Return a lesson, why there is none, or None if the judge need not be asked."""
        mode = await asyncio.to_thread(self._ledger.lessons.mode, person, self._default)
        if mode == "off":
            return None
        words = typed_words(turn, verdict, feedback)
        if not words:
            return None if verdict.score is None else UNSAID
        known = await asyncio.to_thread(self._ledger.lessons.wanted, person)
        async with asyncio.timeout(self._timeout):
            asked = self._followed if self._reads == "prompt" else self._hinted
            found = await asked(turn, words, known[-SHOWN_LESSONS:])
        return found if isinstance(found, str) else replace(found, waits=mode == "confirm")

    async def _hinted(self, turn: Turn, words: str, known: Sequence[Lesson]) -> Birth | str:
        question = Question.about(turn.messages, turn.response_message, [{"role": "user", "content": words}])
        votes = await self._judge.votes("hint", question, 1)
        hint = longest_hint(votes)
        if hint is None:
            return _outcome(votes)
        if self._reads == "hint":
            return _usable(hint, turn, None)
        found = _usable(words, turn, None)  # before they are quoted, where no rule sees how they begin
        return found if isinstance(found, str) else _usable(quotation(found.text), turn, None)

    async def _followed(self, turn: Turn, words: str, known: Sequence[Lesson]) -> Birth | str:
        question = Question("", (), prompt=lesson_messages(words, [lesson.text for lesson in known]))
        votes = await self._judge.votes("hint", question, 1)
        hint = longest_hint(votes)
        if hint is None:
            return _outcome(votes)
        named = REPLACES.fullmatch(hint)
        place = int(named[1]) - 1 if named else -1
        result = _usable(named[2] if named else hint, turn, known[place].id if 0 <= place < len(known) else None)
        if isinstance(result, str):
            return result
        asked = Question("", (), prompt=standing_messages(words, result.text))
        [vote] = await self._judge.votes("hint", asked, 1)
        return result if vote.value == 1 else "not_standing" if vote.value == -1 else "unread"


def _outcome(votes: Sequence[Vote]) -> str:
    """Return why an answer has no lesson: the judge says so, or it cannot be read."""
    return "none" if any(vote.value == -1 for vote in votes) else "unread"


def _usable(hint: str, turn: Turn, replaces: str | None) -> Birth | str:
    functions: list[dict[str, Any]] = [tool.get("function") or {} for tool in turn.tools or []]
    tools = [str(function.get("name", "")) for function in functions]
    try:
        return Birth(usable_lesson(hint, tools), replaces=replaces)
    except UnusableLessonError:
        return "unusable"
