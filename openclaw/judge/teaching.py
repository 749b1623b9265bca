"""The teacher's part of a verdict: which messages it reads, and what it adds. Owns nothing."""

from __future__ import annotations

import logging
from dataclasses import replace

from groundwork.chat_messages import pictures_in
from openclaw.exceptions import EngineUnavailableError, JudgeError, TeacherMismatchError
from openclaw.judge.metrics import JudgeMetrics
from openclaw.judge.overlap import candidates
from openclaw.judge.support import SupportScorer
from openclaw.judge.teacher import TeacherScorer, context_of, under_hint
from openclaw.ledger.records import Turn, Verdict
from openclaw.method import JudgePlan

logger = logging.getLogger(__name__)


class Teaching:
    """Scores replies as a plan wants it."""

    def __init__(self, teacher: TeacherScorer | SupportScorer | None, plan: JudgePlan, metrics: JudgeMetrics) -> None:
        """``teacher``: None if the plan needs none."""
        self._teacher = teacher
        self._plan = plan
        self._metrics = metrics

    async def taught(self, turn: Turn, verdict: Verdict) -> Verdict:
        """Return the verdict with the teacher's numbers; without them if the turn has no teacher or has pictures, or it refused the turn.

        Raises:
            EngineUnavailableError: the teacher's engine is away.
        """
        teacher = self._teacher
        if teacher is None or not self._plan.needs_teacher:
            return verdict
        if pictures_in(turn.messages):
            self._metrics.teacher_failures.labels(kind="pictures").inc()
            logger.warning(
                "turn %s has no teacher logprobs: its prompt has pictures, which the teacher does not see", turn.id
            )
            return verdict
        try:
            if isinstance(teacher, SupportScorer):
                return await self._with_support(teacher, turn, verdict)
            messages = context_of(self._plan.teacher_context or under_hint, turn, verdict)
            if messages is None:
                return verdict
            scored = await teacher.score_turn(turn, messages)
        except EngineUnavailableError:
            raise
        except JudgeError as error:
            kind = "mismatch" if isinstance(error, TeacherMismatchError) else "refused"
            self._metrics.teacher_failures.labels(kind=kind).inc()
            logger.error("turn %s has no teacher logprobs (%s): %s", turn.id, kind, error)
            return verdict
        return replace(
            verdict, teacher_log_probs=scored.log_probs, teacher_versions=scored.versions, teacher_topk=scored.topk
        )

    async def _with_support(self, teacher: SupportScorer, turn: Turn, verdict: Verdict) -> Verdict:
        """Return the verdict with the teacher's numbers of the policy's top K, and the hint that it read for them."""
        hints = [verdict.hint]
        if verdict.hint is not None:
            hints = [*candidates(verdict.votes, self._plan.hint_choice)]
        readings = [replace(verdict, hint=hint) for hint in hints]
        contexts = [context_of(self._plan.teacher_context or under_hint, turn, reading) for reading in readings]
        read = [(reading, messages) for reading, messages in zip(readings, contexts, strict=True) if messages]
        if not read:
            return verdict
        scored = await teacher.score_turn(turn, [messages for _, messages in read])
        self._metrics.hint_overlap.observe(scored.overlap)
        self._metrics.teacher_positions.labels(settled="together").inc(len(turn.response_ids) - scored.asked)
        self._metrics.teacher_positions.labels(settled="alone").inc(scored.asked)
        return replace(read[scored.chosen][0], teacher_topk=scored.topk, teacher_versions=(scored.version,))
