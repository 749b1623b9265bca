"""The hint of a whole session, for methods whose plan has a `openclaw.method.SessionPlan`.

Guarantees: the judge is asked about a session once for all turns that wait for its hint, not once per turn. A failed
question is a failure of every turn that waits for it, and is asked again. A turn that is judged again, because feedback
arrived or its teacher was away, asks again. Hints are forgotten when no turn is being judged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from groundwork.chat_messages import Message
from openclaw.judge.hints import longest_hint
from openclaw.judge.interface import Question
from openclaw.ledger.feedback import judged_messages, opinion
from openclaw.ledger.records import Turn, Vote
from openclaw.ledger.store import Ledger
from openclaw.method import SessionPlan

MOST_TURNS = 64
"""A longer session is judged by its last turns."""

Ask = Callable[[Question], Awaitable[list[Vote]]]


@dataclass(frozen=True)
class _Asked:
    """A question under way or answered, and the turns that still need its answer."""

    votes: asyncio.Task[list[Vote]]
    waiting: set[str]


class SessionHints:
    """Asks the hint judge about sessions; owns the answers until they are used."""

    def __init__(self, ledger: Ledger, plan: SessionPlan, ask: Ask) -> None:
        """Create it; ``ask`` casts the hint judge's votes on a question."""
        self._ledger = ledger
        self._plan = plan
        self._ask = ask
        self._asked: dict[str, _Asked] = {}
        self._reading = asyncio.Lock()

    async def votes(self, turn: Turn) -> list[Vote]:
        """Return the votes on the session of ``turn``; none if the session gives the judge nothing to read.

        They are those of the question that gave the hint, or of the last one.

        Raises:
            JudgeError: if the judge failed.
        """
        asked = await self._of(turn)
        try:
            votes = await asyncio.shield(asked.votes)
        except Exception:
            if self._asked.get(turn.session_id) is asked:
                del self._asked[turn.session_id]
            raise
        asked.waiting.discard(turn.id)
        return votes

    def forget(self) -> None:
        """Forget every answer, and give up the questions under way."""
        for asked in self._asked.values():
            asked.votes.cancel()
        self._asked.clear()

    async def _of(self, turn: Turn) -> _Asked:
        async with self._reading:
            asked = self._asked.get(turn.session_id)
            if asked is None or turn.id not in asked.waiting:
                found = await asyncio.to_thread(self._ledger.judging.answered, turn.session_id, MOST_TURNS)
                heard = [
                    replace(each.turn, next_state=judged_messages(each.turn, opinion(each.feedback))) for each in found
                ]
                heard = [each for each in heard if each.next_state and not each.never_trained]
                asked = _Asked(
                    asyncio.create_task(self._votes(heard)),
                    {turn.id, *(each.turn.id for each in found if each.turn.state == "pending")},
                )
                self._asked[turn.session_id] = asked
        return asked

    async def _votes(self, turns: Sequence[Turn]) -> list[Vote]:
        votes: list[Vote] = []
        for prompt in self._plan.questions(turns) if turns else ():
            votes = await self._ask(_question(turns[-1], prompt))
            if longest_hint(votes):
                break
        return votes


def _question(last: Turn, prompt: Sequence[Message]) -> Question:
    """Return a question with the method's prompt; a judge that reads no prompt gets the last turn, whose request holds the session."""
    return replace(Question.about(last.messages, last.response_message, last.next_state or []), prompt=prompt)
