"""Scores the turns of logs with the policy's engine, so that they can be judged and trained.

A turn of a log has a text only. Its request and reply are rendered once with the model's template, and the engine scores
the joined ids under the weights that are to be trained. The version of these weights is the turn's weight version.

Temperature: the trainer divides logits by ``T``, but an engine scores given tokens at temperature 1. With ``p`` the scores at
1, ``log p_T(v) = log p(v) / T - log sum_u p(u)^(1/T)``. The likeliest tokens settle the sum within `openclaw.judge.teacher.TOLERANCE`
almost everywhere; where they do not, the engine is asked for that token at ``T`` itself.

Guarantees: nothing is scored while ``ahead`` turns and samples wait for the judge or a batch, so scores are few updates old
when they are used. All numbers of a turn come from the same weights. A conversation is committed as a whole. A failure of the engine is
never a reason: the worker tries again. A turn that the template refuses, or that is too long, ends with a reason.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from groundwork.chat_messages import Message
from openclaw.exceptions import EngineRefusedError, EngineUnavailableError, TeacherMismatchError
from openclaw.judge.client import Engine, together
from openclaw.judge.teacher import VERSION_TRIES, log_normaliser, next_token_log_probs, score
from openclaw.ledger.exceptions import LedgerUnavailableError
from openclaw.ledger.logs import ReplyScores
from openclaw.ledger.records import TopK, Turn
from openclaw.ledger.store import Ledger
from openclaw.owners import owner_of

logger = logging.getLogger(__name__)

RenderReply = Callable[
    [Sequence[Message], Message, list[dict[str, Any]] | None, dict[str, Any]], tuple[list[int], list[int]]
]
ROWS = 64
"""How many of its likeliest tokens the engine reports at each position, to settle the sum."""
NOT_RENDERED = "log_not_rendered"
REFUSED = "log_refused"
TOO_LONG = "too_long"
POLL_SECONDS = 0.5
PAUSE_SECONDS = 2.0


@dataclass(frozen=True)
class ScorerSettings:
    """Settings of the loop.

    Attributes:
        temperature: by which the trainer divides logits.
        ahead: most turns and samples that wait for the judge or a batch.
        max_tokens: limit on prompt plus reply.
        student_topk: how many of the policy's likeliest tokens the method reads at each position.
    """

    temperature: float
    ahead: int
    max_tokens: int
    student_topk: int = 0


class LogScorer:
    """Scores conversation after conversation until stopped; see the module's guarantees."""

    def __init__(
        self,
        ledger: Ledger,
        engine: Engine,
        render_reply: RenderReply,
        settings: ScorerSettings,
        on_scored: Callable[[], None],
    ) -> None:
        """Create the worker; ``on_scored`` is called when turns became pending."""
        self._ledger = ledger
        self._engine = engine
        self._render_reply = render_reply
        self._settings = settings
        self._on_scored = on_scored

    async def run(self, stop: asyncio.Event) -> None:
        """Score until ``stop`` is set."""
        stopped = asyncio.create_task(stop.wait())
        try:
            while not stop.is_set():
                pause = POLL_SECONDS
                try:
                    if await self.step():
                        continue
                except (EngineUnavailableError, LedgerUnavailableError) as error:
                    logger.warning("scoring logs waits: %s", error)
                    pause = PAUSE_SECONDS
                except Exception:
                    logger.exception("scoring logs failed; it is tried again")
                    pause = PAUSE_SECONDS
                await asyncio.wait([stopped], timeout=pause)
        finally:
            stopped.cancel()

    async def step(self) -> bool:
        """Score one conversation if training needs more; return whether it did."""
        if await asyncio.to_thread(self._ledger.logs.ahead_of_training) >= self._settings.ahead:
            return False
        turns = await asyncio.to_thread(self._ledger.logs.unscored_session)
        if not turns:
            return False
        outcomes = await together(*map(self._outcome, turns))
        scored = [replace(turn, temperature=self._settings.temperature) for turn in turns]
        await asyncio.to_thread(self._ledger.logs.record_scores, list(zip(scored, outcomes, strict=True)))
        self._on_scored()
        return True

    async def _outcome(self, turn: Turn) -> ReplyScores | str:
        """Return a turn's scores, or why it has none.

        Raises:
            EngineUnavailableError: the engine is away, or its weights changed meanwhile.
        """
        try:
            prompt_ids, response_ids = await asyncio.to_thread(
                self._render_reply, turn.messages, turn.response_message, turn.tools, turn.chat_template_kwargs
            )
        except ValueError as error:
            logger.warning("turn %s of a log is not trained: %s", turn.id, error)
            return NOT_RENDERED
        if turn.finish_reason == "length":
            response_ids = response_ids[:-1]  # it was cut off, so its end is the template's and nobody's word
        if len(prompt_ids) + len(response_ids) > self._settings.max_tokens:
            return TOO_LONG
        if not response_ids or not prompt_ids:
            return "empty"
        try:
            for _ in range(VERSION_TRIES):
                if (scores := await self._scores(prompt_ids, response_ids, owner_of(turn.session_id))) is not None:
                    return scores
        except (EngineRefusedError, TeacherMismatchError) as error:
            logger.warning("turn %s of a log is not trained: %s", turn.id, error)
            return REFUSED
        raise EngineUnavailableError(f"the weights changed during each of {VERSION_TRIES} tries to score a turn")

    async def _scores(self, prompt_ids: list[int], response_ids: list[int], owner: str) -> ReplyScores | None:
        """Return the scores, or None if the weights changed meanwhile."""
        temperature, wanted = self._settings.temperature, self._settings.student_topk
        rows = 0 if temperature == 1.0 and not wanted else max(ROWS, wanted)
        found = await score(self._engine, prompt_ids, response_ids, rows, owner=owner)
        if not rows:
            return ReplyScores(prompt_ids, response_ids, found.log_probs, found.weight_version)
        assert found.topk is not None
        power = 1.0 / temperature
        likeliest = [ids[:wanted] for ids in found.topk.ids]
        names = [[*dict.fromkeys([own, *row])] for own, row in zip(response_ids, likeliest, strict=True)]
        sums = [log_normaliser(row, power) for row in found.topk.log_probs]
        values: list[dict[int, float] | None] = []
        for position, total in enumerate(sums):
            at_one = dict(zip(found.topk.ids[position], found.topk.log_probs[position], strict=True))
            at_one[response_ids[position]] = found.log_probs[position]
            settled = None if total is None else {name: at_one[name] * power - total for name in names[position]}
            values.append(settled)
        missing = [position for position, settled in enumerate(values) if settled is None]
        answers = await together(
            *(
                next_token_log_probs(
                    self._engine, [*prompt_ids, *response_ids[:position]], names[position], temperature, owner=owner
                )
                for position in missing
            )
        )
        if {version for _, version in answers} - {found.weight_version}:
            return None
        for position, (asked, _) in zip(missing, answers, strict=True):
            values[position] = dict(zip(names[position], asked, strict=True))
        known = [each for each in values if each is not None]
        log_probs = [each[own] for each, own in zip(known, response_ids, strict=True)]
        rows_of = [[each[name] for name in row] for each, row in zip(known, likeliest, strict=True)]
        topk = TopK(rows_of, likeliest) if wanted else None
        return ReplyScores(prompt_ids, response_ids, log_probs, found.weight_version, topk)
