"""Teacher log-probabilities: the likelihood of each response token under the teacher's prompt.

The method chooses the teacher's prompt (`openclaw.method.JudgePlan`): the hint, unless the plan has its own context.

Guarantees: ids are joined (the teacher's prompt ids + response ids), never text, so each number belongs to the sampled
token. Scoring starts one token early, because an engine gives no value for the first position that it scores. So the
first response token has a true log-probability.

Temperature: a turn's stored log-probabilities are at its sampling temperature, but an engine scores given tokens only at
temperature 1. So both prompts are scored. With s = score of the reply under the turn's own prompt, and t = its score
under the teacher's prompt,

    teacher_log_probs[k] = response_logprobs[k] + (t[k] - s[k])

so that teacher_log_probs - response_logprobs, the advantage of on-policy distillation, is exactly the log ratio of the
two distributions at temperature 1, free of any temperature mismatch. Both scores come from the same weights: when the
engine's weights change in between, they are taken again. The top K (`TopK`) are the engine's own numbers at temperature 1,
at which the loss compares them.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from openclaw.exceptions import EngineUnavailableError, TeacherMismatchError
from openclaw.judge.client import Engine, together
from openclaw.judge.prompts import append_hint
from openclaw.ledger.records import Message, TopK, Turn, Verdict
from openclaw.method import TeacherContext

Render = Callable[[Sequence[Message], list[dict[str, Any]] | None, dict[str, Any]], list[int]]
VERSION_TRIES = 3


@dataclass(frozen=True)
class Scores:
    """Log-probabilities of response tokens at temperature 1, the weights that gave them, and the top K if asked for."""

    log_probs: list[float]
    weight_version: str
    topk: TopK | None = None


@dataclass(frozen=True)
class TeacherScore:
    """Teacher log-probabilities of a turn's response tokens, the weight versions of both scores, and the teacher's top K."""

    log_probs: tuple[float, ...]
    versions: tuple[str, ...]
    topk: TopK | None = None


async def score(engine: Engine, prompt_ids: Sequence[int], response_ids: Sequence[int], topk: int = 0) -> Scores:
    """Return log p(response_ids[k] | prompt_ids, response_ids[:k]) for each k, and the ``topk`` most likely tokens there.

    Raises:
        TeacherMismatchError: when the engine scored other tokens, other many, or gave a value that is not finite.
        JudgeError: when it could not be asked.
    """
    start = len(prompt_ids) - 1
    answer = await engine.generate(
        {
            "input_ids": [*prompt_ids, *response_ids],
            "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
            "return_logprob": True,
            "logprob_start_len": start,
            **({"top_logprobs_num": topk} if topk else {}),
        }
    )
    meta = answer["meta_info"]
    entries = meta["input_token_logprobs"]
    ids = [entry[1] for entry in entries]
    if ids != [prompt_ids[start], *response_ids]:
        raise TeacherMismatchError(
            f"asked to score {len(response_ids)} tokens after position {start}, "
            f"the engine scored {len(ids) - 1} or other ones"
        )
    values = [entry[0] for entry in entries[1:]]
    if not all(value is not None and math.isfinite(value) for value in values):
        raise TeacherMismatchError("the engine gave a log-probability that is not a finite number")
    found = _topk(meta.get("input_top_logprobs"), len(response_ids), topk) if topk else None
    return Scores(values, str(meta.get("weight_version", "")), found)


def _topk(rows: list[Any] | None, length: int, topk: int) -> TopK:
    """Return the top K of each response token; ``rows`` has one entry more, without value, for the position before."""
    if rows is None or len(rows) != length + 1 or any(row is None or len(row) != topk for row in rows[1:]):
        raise TeacherMismatchError(f"asked for the top {topk} of {length} positions, the engine gave something else")
    log_probs = [[entry[0] for entry in row] for row in rows[1:]]
    if not all(math.isfinite(value) for row in log_probs for value in row):
        raise TeacherMismatchError("the engine gave a log-probability among its top ones that is not a finite number")
    return TopK(log_probs, [[entry[1] for entry in row] for row in rows[1:]])


def under_hint(turn: Turn, verdict: Verdict) -> list[Message] | None:
    """Return the request with the hint at the end of its last user message: what a teacher reads by default."""
    return None if verdict.hint is None else append_hint(turn.messages, verdict.hint)


def context_of(context: TeacherContext, turn: Turn, verdict: Verdict) -> Sequence[Message] | None:
    """Return what the teacher reads; None when the turn has no teacher.

    Raises:
        TeacherMismatchError: when the turn does not have what the context is built from.
    """
    try:
        return context(turn, verdict)
    except ValueError as error:
        raise TeacherMismatchError(f"turn {turn.id}: {error}") from error


class TeacherScorer:
    """Scores replies under the teacher's prompt with at most ``concurrency`` turns under way."""

    def __init__(self, *, policy: Engine, teacher: Engine, render: Render, concurrency: int, topk: int = 0) -> None:
        """Bind the engines.

        Args:
            policy: the engine that serves the policy; it scores the reply to the turn's own prompt.
            teacher: the engine that scores it under the teacher's: the same object for self-distillation, or
                another model's engine with the policy's tokenizer.
            render: messages, tools and template keywords to prompt ids, as the gateway renders them; called in a
                thread.
            concurrency: most turns under way.
            topk: tokens per position whose probabilities the teacher gives too; 0 for none.
        """
        self._topk = topk
        self._policy = policy
        self._teacher = teacher
        self._render = render
        self._slots = asyncio.Semaphore(concurrency)

    async def score_turn(self, turn: Turn, messages: Sequence[Message]) -> TeacherScore:
        """Return the teacher's log-probabilities of the turn's response as the reply to ``messages``.

        Raises:
            TeacherMismatchError: when they cannot be used.
            JudgeError: when an engine could not be asked, or its weights changed at every try.
        """
        try:
            prompt_ids = await asyncio.to_thread(self._render, messages, turn.tools, turn.chat_template_kwargs)
        except ValueError as error:
            raise TeacherMismatchError(f"turn {turn.id}: {error}") from error
        async with self._slots:
            for _ in range(VERSION_TRIES):
                teacher, student = await together(
                    score(self._teacher, prompt_ids, turn.response_ids, self._topk),
                    score(self._policy, turn.prompt_ids, turn.response_ids),
                )
                if self._teacher is not self._policy or teacher.weight_version == student.weight_version:
                    break
            else:
                raise EngineUnavailableError(
                    f"the weights changed during each of {VERSION_TRIES} tries to score a turn"
                )
        log_probs = tuple(
            sampled + (taught - without)
            for sampled, taught, without in zip(
                turn.response_logprobs, teacher.log_probs, student.log_probs, strict=True
            )
        )
        versions = tuple(dict.fromkeys((teacher.weight_version, student.weight_version)))
        return TeacherScore(log_probs, versions, teacher.topk)
