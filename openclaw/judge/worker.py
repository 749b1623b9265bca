"""The judge loop: judges every pending turn of the ledger exactly once.

Guarantees:

* The ledger is the only queue, so a restart continues where the last process stopped.
* A technical failure (engine gone, time-out, a bug here) is never a score. The turn stays pending, the failure is
  counted, and the worker retries after a growing pause or when the engine is back (`openclaw.judge.outage`).
* A person's stated opinion outranks the judge (`openclaw.ledger.opinion`).
* At most ``concurrency`` turns are judged at a time. A session that cannot be closed blocks no other.

The worker's only state is the set of turns that it is judging and the sessions to retry.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from openclaw.config.runtime_variables import RuntimeVariables
from openclaw.exceptions import EngineRefusedError, EngineUnavailableError, JudgeError, TeacherMismatchError
from openclaw.judge.client import JudgeClient, Question, together
from openclaw.judge.hygiene import Limits, defect
from openclaw.judge.metrics import JudgeMetrics
from openclaw.judge.teacher import TeacherScorer, context_of, under_hint
from openclaw.judge.votes import agreement, longest_hint, majority
from openclaw.ledger.exceptions import (
    FeedbackArrivedError,
    LedgerUnavailableError,
    TransitionError,
    UnknownRecordError,
)
from openclaw.ledger.opinion import judged_messages, opinion, weighted
from openclaw.ledger.records import Feedback, PendingTurn, Turn, Verdict, Vote
from openclaw.ledger.store import Ledger
from openclaw.method import Method, SampleDecision

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkerSettings:
    """Settings of the loop.

    Attributes:
        concurrency: most turns at a time.
        timeout: seconds for all votes and the teacher of a turn.
        vote_threshold: minimum share of the valid votes for a majority.
        poll_seconds: how often the worker polls the ledger without a call of `JudgeWorker.notify`.
        first_pause: seconds before the first retry of a failed turn, doubled for each further one.
        longest_pause: upper bound of that pause, seconds.
    """

    concurrency: int = RuntimeVariables.judge_concurrency
    timeout: float = RuntimeVariables.judge_timeout
    vote_threshold: float = RuntimeVariables.majority_vote_threshold
    poll_seconds: float = 0.5
    first_pause: float = 1.0
    longest_pause: float = 60.0


class JudgeWorker:
    """Judges pending turns until stopped."""

    def __init__(
        self,
        ledger: Ledger,
        method: Method,
        judge: JudgeClient,
        teacher: TeacherScorer | None,
        limits: Limits,
        metrics: JudgeMetrics,
        settings: WorkerSettings | None = None,
    ) -> None:
        """Create the worker.

        Args:
            ledger: holds the pending turns and takes the verdicts.
            method: chooses the judges and turns verdicts into samples.
            judge: casts the votes.
            teacher: scores replies; required if the method's plan needs a teacher.
            limits: decide which turns can be trained at all.
            metrics: counters of the loop.
            settings: of the loop.
        """
        self._plan = method.judges()
        if self._plan.needs_teacher and teacher is None:
            raise ValueError(f"method {method.name} needs a teacher; pass a TeacherScorer")
        self._ledger = ledger
        self._method = method
        self._judge = judge
        self._teacher = teacher
        self._limits = limits
        self._metrics = metrics
        self._settings = settings or WorkerSettings()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._unclosed: dict[str, tuple[int, float]] = {}
        self._wake = asyncio.Event()
        self.missed_engine = asyncio.Event()
        """Set when a turn is postponed because an engine was away or silent."""

    def notify(self) -> None:
        """Wake the worker: a turn became pending or a session ended. Call it from the worker's event loop."""
        self._wake.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Judge until ``stop`` is set; unfinished turns stay pending."""
        stopped = asyncio.create_task(stop.wait())
        try:
            while not stop.is_set():
                self._wake.clear()
                try:
                    await self._start_pending()
                    await self._close_sessions()
                except Exception:
                    self._metrics.failures.labels(kind="internal").inc()
                    logger.exception("the judge loop failed; it continues")
                woken = asyncio.create_task(self._wake.wait())
                await asyncio.wait(
                    [stopped, woken], timeout=self._settings.poll_seconds, return_when=asyncio.FIRST_COMPLETED
                )
                woken.cancel()
        finally:
            stopped.cancel()
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _start_pending(self) -> None:
        free = self._settings.concurrency - len(self._tasks)
        if free <= 0:
            return
        pending = await asyncio.to_thread(self._ledger.pending_turns, free, tuple(self._tasks))
        for item in pending:
            task = asyncio.create_task(self._handle(item))
            self._tasks[item.turn.id] = task
            task.add_done_callback(lambda _, turn_id=item.turn.id: self._finished(turn_id))
        self._metrics.in_flight.set(len(self._tasks))

    def _finished(self, turn_id: str) -> None:
        del self._tasks[turn_id]
        self._metrics.in_flight.set(len(self._tasks))
        self._wake.set()

    async def _handle(self, item: PendingTurn) -> None:
        """Judge one turn and commit the outcome, or leave it pending."""
        turn = item.turn
        try:
            async with asyncio.timeout(self._settings.timeout):
                verdict, decision = await self._decide(turn, item.feedback)
            samples = weighted(decision.samples, verdict, item.choices)
            await self._record(turn.id, verdict, replace(decision, samples=samples), len(item.feedback))
        except UnknownRecordError:
            logger.info("turn %s was deleted while it was judged", turn.id)
        except FeedbackArrivedError as error:
            self._metrics.failures.labels(kind="feedback_arrived").inc()
            logger.info("judging again: %s", error)
        except TransitionError as error:
            self._metrics.failures.labels(kind="judged_elsewhere").inc()
            logger.warning("another process judged turn %s meanwhile: %s", turn.id, error)
        except (EngineUnavailableError, TimeoutError) as error:
            kind = "timeout" if isinstance(error, TimeoutError) else "unavailable"
            await self._postpone(item, kind, str(error) or f"no verdict in {self._settings.timeout} s")
        except Exception as error:
            logger.exception("judging turn %s failed", turn.id)
            await self._postpone(item, "internal", f"{type(error).__name__}: {error}")
        else:
            self._metrics.judged.labels(outcome=decision.reason or "sample").inc()
            self._metrics.seconds.observe(verdict.seconds)

    async def _record(self, turn_id: str, verdict: Verdict, decision: SampleDecision, feedback: int) -> None:
        """Commit a verdict; retry while the ledger is unavailable, so that no judge is asked twice."""
        pause = self._settings.first_pause
        while True:
            try:
                await asyncio.to_thread(
                    self._ledger.record_judged, turn_id, verdict, decision.samples, decision.reason, feedback
                )
                return
            except LedgerUnavailableError as error:
                self._metrics.failures.labels(kind="ledger").inc()
                logger.error("cannot store the verdict of turn %s; next try in %.1f s: %s", turn_id, pause, error)
            await asyncio.sleep(pause)
            pause = min(self._settings.longest_pause, 2 * pause)

    async def _postpone(self, item: PendingTurn, kind: str, error: str) -> None:
        self._metrics.failures.labels(kind=kind).inc()
        pause = min(self._settings.longest_pause, self._settings.first_pause * 2 ** min(item.attempts, 16))
        logger.warning("turn %s stays pending (%s), next try in %.1f s: %s", item.turn.id, kind, pause, error)
        not_before = self._ledger.clock() + pause
        try:
            await asyncio.to_thread(self._ledger.postpone, item.turn.id, error, not_before)
        except Exception:
            self._metrics.failures.labels(kind="postpone").inc()
            logger.exception("could not postpone turn %s; it stays pending and is retried at once", item.turn.id)
        if kind in ("unavailable", "timeout"):
            self.missed_engine.set()

    async def retry_postponed(self) -> None:
        """Make the postponed turns due now, because an engine is back."""
        try:
            await asyncio.to_thread(self._ledger.retry_pending)
        except LedgerUnavailableError as error:
            self._metrics.failures.labels(kind="ledger").inc()
            logger.error("could not make postponed turns due; they wait out their pause: %s", error)
        self.notify()

    async def _decide(self, turn: Turn, feedback: Sequence[Feedback]) -> tuple[Verdict, SampleDecision]:
        """Return a turn's verdict and samples; skip the judge for a turn that cannot be trained.

        A person's stated score is final. Judges see only feedback in words.
        """
        reason = defect(turn, self._limits)
        if reason is not None:
            return Verdict(), SampleDecision(reason=reason)
        started = time.monotonic()
        stated = opinion(feedback)
        messages = judged_messages(turn, stated)
        question = Question.about(turn.response_message, messages)
        try:
            prm, hints = await together(
                self._judge.votes("prm", question, self._plan.prm_votes if stated.score is None else 0),
                self._judge.votes("hint", question, self._plan.hint_votes if messages else 0),
            )
        except EngineRefusedError as error:
            logger.error("turn %s cannot be judged: %s", turn.id, error)
            return Verdict(seconds=time.monotonic() - started), SampleDecision(reason="judge_refused")
        self._count(prm)
        self._count(hints)
        verdict = Verdict(
            score=majority([vote.value for vote in prm], self._settings.vote_threshold) if prm else stated.score,
            hint=longest_hint(hints),
            votes=(*prm, *hints),
            score_source="judge" if stated.score is None else "feedback",
        )
        if self._teacher is not None and self._plan.needs_teacher:
            verdict = await self._with_teacher(self._teacher, turn, verdict)
        verdict = replace(verdict, seconds=time.monotonic() - started)
        return verdict, self._method.samples(turn, verdict)

    async def _with_teacher(self, teacher: TeacherScorer, turn: Turn, verdict: Verdict) -> Verdict:
        try:
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

    def _count(self, votes: list[Vote]) -> None:
        for vote in votes:
            value = "invalid" if vote.value is None else str(vote.value)
            self._metrics.votes.labels(judge=vote.judge, value=value).inc()
        if votes:
            self._metrics.agreement.labels(judge=votes[0].judge).observe(agreement([vote.value for vote in votes]))

    async def _close_sessions(self) -> None:
        """Collect the samples of finished sessions, once each; retry a failed session later."""
        limit = self._settings.concurrency + len(self._unclosed)
        for session_id in await asyncio.to_thread(self._ledger.finished_sessions, limit):
            failures, not_before = self._unclosed.get(session_id, (0, 0.0))
            if time.monotonic() < not_before:
                continue
            try:
                await self._close_session(session_id)
            except Exception as error:
                self._metrics.session_failures.labels(reason=type(error).__name__).inc()
                pause = min(self._settings.longest_pause, self._settings.first_pause * 2 ** min(failures, 16))
                self._unclosed[session_id] = (failures + 1, time.monotonic() + pause)
                if failures == 0:
                    logger.exception("could not close session %s; the worker retries from time to time", session_id)
            else:
                self._unclosed.pop(session_id, None)

    async def _close_session(self, session_id: str) -> None:
        judged = await asyncio.to_thread(self._ledger.judged_turns, session_id)
        samples = self._method.session_samples(judged)
        closed = await asyncio.to_thread(self._ledger.close_session, session_id, samples, self._ledger.clock())
        if closed:
            self._metrics.session_samples.inc(len(samples))
