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
engine's weights change in between, scoring starts again. The top K (`TopK`) are the engine's own numbers at temperature
1, where the loss compares them.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from groundwork.chat_messages import Message
from openclaw.exceptions import EngineUnavailableError, TeacherMismatchError
from openclaw.judge.client import Engine, together
from openclaw.judge.prompts import append_hint
from openclaw.ledger.records import TopK, Turn, Verdict
from openclaw.method import TeacherContext
from openclaw.owners import owner_of

Render = Callable[[Sequence[Message], list[dict[str, Any]] | None, dict[str, Any]], list[int]]
VERSION_TRIES = 3


@dataclass(frozen=True)
class Scores:
    """Log-probabilities of response tokens at temperature 1, their weight version, and the top K if requested."""

    log_probs: list[float]
    weight_version: str
    topk: TopK | None = None


@dataclass(frozen=True)
class TeacherScore:
    """A turn's teacher log-probabilities, the weight versions of both scores, and the teacher's top K."""

    log_probs: tuple[float, ...]
    versions: tuple[str, ...]
    topk: TopK | None = None


async def score(
    engine: Engine, prompt_ids: Sequence[int], response_ids: Sequence[int], topk: int = 0, *, owner: str
) -> Scores:
    """Return log p(response_ids[k] | prompt_ids, response_ids[:k]) for each k, and the ``topk`` likeliest tokens.

    ``owner`` is whose conversation it is, see `Engine.generate`.

    Raises:
        TeacherMismatchError: if the engine scored other tokens or another number, or gave a value that is not finite.
        JudgeError: if the engine was unavailable.
    """
    start = len(prompt_ids) - 1
    answer = await engine.generate(
        {
            "input_ids": [*prompt_ids, *response_ids],
            "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
            "return_logprob": True,
            "logprob_start_len": start,
            **({"top_logprobs_num": topk} if topk else {}),
        },
        owner,
    )
    meta = answer["meta_info"]
    entries = meta["input_token_logprobs"]
    ids = [entry[1] for entry in entries]
    if ids != [prompt_ids[start], *response_ids]:
        raise TeacherMismatchError(
            f"asked to score {len(response_ids)} tokens after position {start}, "
            f"but the engine scored {len(ids) - 1}, or other tokens"
        )
    values = [entry[0] for entry in entries[1:]]
    if not all(value is not None and math.isfinite(value) for value in values):
        raise TeacherMismatchError("the engine gave a log-probability that is not a finite number")
    found = _topk(meta.get("input_top_logprobs"), len(response_ids), topk) if topk else None
    return Scores(values, str(meta.get("weight_version", "")), found)


def _topk(rows: list[Any] | None, length: int, topk: int) -> TopK:
    """Return the top K of each response token; ``rows`` starts with an empty entry for the position before."""
    if rows is None or len(rows) != length + 1 or any(row is None or len(row) != topk for row in rows[1:]):
        raise TeacherMismatchError(f"the engine did not give the requested top {topk} of {length} positions")
    log_probs = [[entry[0] for entry in row] for row in rows[1:]]
    if not all(math.isfinite(value) for row in log_probs for value in row):
        raise TeacherMismatchError("the engine gave a top log-probability that is not a finite number")
    return TopK(log_probs, [[entry[1] for entry in row] for row in rows[1:]])


def under_hint(turn: Turn, verdict: Verdict) -> list[Message] | None:
    """Return the request with the hint appended to its last user message, the teacher's default context."""
    return None if verdict.hint is None else append_hint(turn.messages, verdict.hint)


def context_of(context: TeacherContext, turn: Turn, verdict: Verdict) -> Sequence[Message] | None:
    """Return the teacher's messages, or None if the turn has no teacher.

    Raises:
        TeacherMismatchError: if the turn lacks what the context is built from.
    """
    try:
        return context(turn, verdict)
    except ValueError as error:
        raise TeacherMismatchError(f"turn {turn.id}: {error}") from error


class TeacherScorer:
    """Scores replies under the teacher's prompt, at most ``concurrency`` turns at a time."""

    def __init__(self, *, policy: Engine, teacher: Engine, render: Render, concurrency: int, topk: int = 0) -> None:
        """Create a scorer.

        Args:
            policy: the policy's engine; scores the reply under the turn's own prompt.
            teacher: scores the reply under the teacher's prompt: the same object for self-distillation, or another
            model's engine with the policy's tokenizer.
            render: renders messages, tools and template keywords to prompt ids, as the gateway does; called in a
            thread.
            concurrency: most turns at a time.
            topk: size of the teacher's top K; 0 for none.
        """
        self._topk = topk
        self._policy = policy
        self._teacher = teacher
        self._render = render
        self._slots = asyncio.Semaphore(concurrency)

    async def score_turn(self, turn: Turn, messages: Sequence[Message]) -> TeacherScore:
        """Return the teacher's log-probabilities of the turn's response as a reply to ``messages``.

        Raises:
            TeacherMismatchError: if they are unusable.
            JudgeError: if an engine was unavailable, or its weights changed during every try.
        """
        try:
            prompt_ids = await asyncio.to_thread(self._render, messages, turn.tools, turn.chat_template_kwargs)
        except ValueError as error:
            raise TeacherMismatchError(f"turn {turn.id}: {error}") from error
        async with self._slots:
            owner = owner_of(turn.session_id)
            for _ in range(VERSION_TRIES):
                teacher, student = await together(
                    score(self._teacher, prompt_ids, turn.response_ids, self._topk, owner=owner),
                    score(self._policy, turn.prompt_ids, turn.response_ids, owner=owner),
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
