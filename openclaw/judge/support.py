"""The teacher's log probabilities of the tokens that the policy itself found likeliest, at the policy's own temperature.

``S`` are the policy's K likeliest tokens at each position of the reply, kept by the gateway when the reply was sampled. The
teacher reads the request with a hint, then the reply's ids.

Guarantees:
* The teacher's numbers are at the turn's temperature, as those of ``S``. A teacher that is the policy without a hint gives
  the same numbers, up to `openclaw.judge.tempered.TOLERANCE` and the engine's arithmetic.
* No number is made up. One request scores the whole reply and reports the likeliest tokens at temperature 1. Where these do
  not settle ``S`` at the turn's temperature, the engine is asked for exactly ``S``: as the log probabilities of a next token
  that it samples at that temperature after the same ids. Those requests find their prompt in the engine's cache.
* All numbers of a turn come from the same weights; if the weights change meanwhile, scoring starts again.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from groundwork.chat_messages import Message
from openclaw.exceptions import EngineUnavailableError, TeacherMismatchError
from openclaw.judge.client import Engine, together
from openclaw.judge.overlap import choose, overlaps
from openclaw.judge.teacher import VERSION_TRIES, Render, Scores, score
from openclaw.judge.tempered import at_temperature
from openclaw.ledger.records import TopK, Turn
from openclaw.method import HintChoice
from openclaw.owners import owner_of


@dataclass(frozen=True)
class SupportScore:
    """The teacher's numbers of ``S``.

    Attributes:
        topk: ``S`` with the teacher's log probabilities at the turn's temperature.
        chosen: index of the hint that counts at most positions.
        overlap: mean share of ``S`` among as many of the teacher's likeliest tokens.
        asked: positions that needed a request of their own.
        version: weight version of the teacher.
    """

    topk: TopK
    chosen: int
    overlap: float
    asked: int
    version: str


class SupportScorer:
    """Scores ``S`` under the hints' prompts, at most ``concurrency`` turns at a time."""

    def __init__(self, *, teacher: Engine, render: Render, choice: HintChoice, rows: int, concurrency: int) -> None:
        """Create a scorer.

        Args:
            teacher: scores; the policy's engine, or another model's with the policy's tokenizer.
            render: renders messages, tools and template keywords to prompt ids, as the gateway does; called in a thread.
            choice: which of several hints counts.
            rows: how many of its likeliest tokens the teacher reports per position, at least K.
            concurrency: most turns at a time.
        """
        self._teacher = teacher
        self._render = render
        self._choice: HintChoice = choice
        self._rows = rows
        self._slots = asyncio.Semaphore(concurrency)

    async def score_turn(self, turn: Turn, contexts: Sequence[Sequence[Message]]) -> SupportScore:
        """Return the teacher's numbers of the turn's ``S`` as a reply to the best of ``contexts``.

        Raises:
            TeacherMismatchError: if they are unusable, or the turn has no ``S``.
            JudgeError: if the engine was unavailable, or its weights changed during every try.
        """
        if turn.response_topk is None:
            raise TeacherMismatchError(f"turn {turn.id} was recorded without the policy's likeliest tokens")
        try:
            prompts = [
                await asyncio.to_thread(self._render, messages, turn.tools, turn.chat_template_kwargs)
                for messages in contexts
            ]
        except ValueError as error:
            raise TeacherMismatchError(f"turn {turn.id}: {error}") from error
        async with self._slots:
            for _ in range(VERSION_TRIES):
                if (found := await self._score(turn, turn.response_topk.ids, prompts)) is not None:
                    return found
        raise EngineUnavailableError(f"the weights changed during each of {VERSION_TRIES} tries to score a turn")

    async def _score(
        self, turn: Turn, support: Sequence[Sequence[int]], prompts: Sequence[list[int]]
    ) -> SupportScore | None:
        """Return the score, or None if the weights changed meanwhile."""
        owner = owner_of(turn.session_id)
        scored = await together(
            *(score(self._teacher, ids, turn.response_ids, self._rows, owner=owner) for ids in prompts)
        )
        teachers = [_rows_of(scores) for scores in scored]
        picks = choose(self._choice, support, [teacher.ids for teacher in teachers])
        chosen = [(teachers[pick].ids[n], teachers[pick].log_probs[n]) for n, pick in enumerate(picks)]
        settled = [at_temperature(own, *row, turn.temperature) for own, row in zip(support, chosen, strict=True)]
        missing = [position for position, values in enumerate(settled) if values is None]
        answers = await together(
            *(self._next(turn, prompts[picks[position]], position, support[position]) for position in missing)
        )
        versions = {*(scores.weight_version for scores in scored), *(version for _, version in answers)}
        if len(versions) > 1:
            return None
        for position, (values, _) in zip(missing, answers, strict=True):
            settled[position] = values
        found = [values for values in settled if values is not None]
        shared = overlaps(support, [ids for ids, _ in chosen])
        return SupportScore(
            topk=TopK(found, [list(own) for own in support]),
            chosen=Counter(picks).most_common(1)[0][0],
            overlap=sum(shared) / sum(map(len, support)),
            asked=len(missing),
            version=versions.pop(),
        )

    async def _next(
        self, turn: Turn, prompt_ids: Sequence[int], position: int, ids: Sequence[int]
    ) -> tuple[list[float], str]:
        """Return the log probabilities of ``ids`` as the next token, at the turn's temperature, and the weight version."""
        before = [*prompt_ids, *turn.response_ids[:position]]
        owner = owner_of(turn.session_id)
        return await next_token_log_probs(self._teacher, before, ids, turn.temperature, owner=owner)


async def next_token_log_probs(
    engine: Engine, before: Sequence[int], ids: Sequence[int], temperature: float, *, owner: str
) -> tuple[list[float], str]:
    """Return the log probabilities of ``ids`` as the next token after ``before``, at a temperature, and the weight version.

    Raises:
        TeacherMismatchError: if the engine gave other tokens, or a value that is not finite.
        JudgeError: if the engine was unavailable.
    """
    answer = await engine.generate(
        {
            "input_ids": list(before),
            "sampling_params": {"max_new_tokens": 1, "temperature": temperature},
            "return_logprob": True,
            "token_ids_logprob": list(ids),
        },
        owner,
    )
    meta = answer["meta_info"]
    rows: list[list[list[Any]]] = meta.get("output_token_ids_logprobs") or [[]]
    if [entry[1] for entry in rows[0]] != list(ids):
        raise TeacherMismatchError(f"asked for the log-probabilities of {list(ids)}, the engine gave others")
    values = [entry[0] for entry in rows[0]]
    if not all(value is not None and math.isfinite(value) for value in values):
        raise TeacherMismatchError("the engine gave a log-probability that is not a finite number")
    return values, str(meta.get("weight_version", ""))


def _rows_of(scores: Scores) -> TopK:
    if scores.topk is None:
        raise TeacherMismatchError("the engine gave no likeliest tokens")
    return scores.topk
