"""The judge loop: judges every pending turn of the ledger exactly once.

Guarantees:

* The ledger is the only queue, so a restart continues where the last process stopped.
* A technical failure (engine gone, time-out, a bug here) is never a score. The turn stays pending, the failure is
  counted, and the worker retries after a growing pause or when the engine is back (`openclaw.judge.wiring`).
* A person's stated opinion outranks the judge (`openclaw.ledger.feedback`).
* At most ``concurrency`` turns are judged at a time. A session that cannot be closed blocks no other.

The worker's only state is the set of turns that it is judging and the sessions to retry.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from groundwork.tracing import record as record_span
from openclaw.config.runtime import MIN_JUDGE_SECONDS
from openclaw.config.runtime_variables import RuntimeVariables
from openclaw.credit.baseline import record_judged
from openclaw.exceptions import EngineRefusedError, EngineUnavailableError
from openclaw.judge.answers import longest_hint
from openclaw.judge.client import TokenCount, count_tokens, together
from openclaw.judge.hygiene import (
    ASKS_BACK,
    DUPLICATE,
    MALFORMED_CALL,
    Limits,
    asks_back,
    broken_calls,
    defect,
    unpraised,
)
from openclaw.judge.interface import Judge, Question
from openclaw.judge.lessons import LessonWriter
from openclaw.judge.teacher import SupportScorer, TeacherScorer, Teaching
from openclaw.judge.voting import JudgeMetrics, SessionHints, Voting, majority
from openclaw.ledger.exceptions import (
    FeedbackArrivedError,
    LedgerError,
    LedgerUnavailableError,
    TransitionError,
    UnknownRecordError,
)
from openclaw.ledger.feedback import judged_messages, opinion, weighted
from openclaw.ledger.lessons import FORGOTTEN_LESSON, Wish
from openclaw.ledger.records import BLAMED, PROBE, Feedback, PendingTurn, Tokens, Turn, Verdict, Vote
from openclaw.ledger.store import Ledger
from openclaw.lessons.lesson import UNDER_LESSON
from openclaw.method import Method, SampleDecision
from openclaw.owners import owner_of, root

logger = logging.getLogger(__name__)

NO_QUORUM = "no_quorum"
"""Why a turn gives no sample: too few of a judge's answers were votes."""
GAVE_UP = "judge_gave_up"
"""Why a turn gives no sample: judging it failed again and again although the engines answer."""


@dataclass(frozen=True)
class WorkerSettings:
    """Settings of the loop.

    Attributes:
        concurrency: most turns at a time.
        timeout: seconds for all votes and the teacher of a turn.
        vote_threshold: minimum share of the valid votes for a majority.
        quorum: minimum share of valid votes among those asked for; with fewer there is no score, or no hint.
        made_by: what the ledger calls the method (`openclaw.method.maker`); None: unknown.
        trains_lessoned: whether turns whose prompt had lessons are trained on the prompt that was served.
        gate_share: share of the turns that become probes of the gate (`openclaw.ledger.probes`).
        attempts: failed attempts after which a turn is given up, unless an engine is away.
        per_person: whether each person has an adapter, so that rewards are compared with the same person's alone.
        poll_seconds: how often the worker polls the ledger without a call of `JudgeWorker.notify`.
        first_pause: seconds before the first retry of a failed turn, doubled for each further one.
        longest_pause: upper bound of that pause, seconds.
    """

    concurrency: int = RuntimeVariables.judge_concurrency
    timeout: float = MIN_JUDGE_SECONDS
    vote_threshold: float = RuntimeVariables.majority_vote_threshold
    quorum: float = RuntimeVariables.judge_quorum
    made_by: str | None = None
    trains_lessoned: bool = False
    per_person: bool = False
    gate_share: float = 0.0
    attempts: int = RuntimeVariables.judge_attempts
    poll_seconds: float = 0.5
    first_pause: float = 1.0
    longest_pause: float = 60.0


class JudgeWorker:
    """Judges pending turns until stopped.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from lab.testkit.ledger_records import make_turn
        >>> from prometheus_client import CollectorRegistry
        >>> from openclaw.ledger.store import Ledger
        >>> from openclaw.method import JudgePlan
        >>> class Praise:
        ...     async def votes(self, kind, question, count):
        ...         return [Vote(kind, "It helped.", 1)] * count
        >>> class ScoresOnly:
        ...     name = "scores-only"
        ...     def judges(self):
        ...         return JudgePlan(prm_votes=3)
        ...     def samples(self, turn, verdict):
        ...         return SampleDecision(reason="only_a_score")
        >>> folder = TemporaryDirectory()
        >>> ledger = Ledger(f"{folder.name}/ledger.sqlite")
        >>> _ = ledger.turns.record(make_turn("chatcmpl-1"))
        >>> _ = ledger.turns.record_next_state("chatcmpl-1", [{"role": "user", "content": "thanks"}], at=3.0)
        >>> async def engines_answer():
        ...     return True
        >>> limits = Limits(temperature=0.6, min_response_tokens=1, max_tokens=4096)
        >>> async def judge_until_done():
        ...     metrics = JudgeMetrics(CollectorRegistry())
        ...     worker = JudgeWorker(ledger, ScoresOnly(), Praise(), None, limits, metrics, engines_answer)
        ...     stop = asyncio.Event()
        ...     running = asyncio.create_task(worker.run(stop))
        ...     while ledger.views.outcome("chatcmpl-1").state != "judged":
        ...         await asyncio.sleep(0.01)
        ...     stop.set()
        ...     await running
        >>> asyncio.run(judge_until_done())
        >>> outcome = ledger.views.outcome("chatcmpl-1")
        >>> outcome.reason
        'only_a_score'
        >>> ledger.close()
        >>> folder.cleanup()
    """

    def __init__(
        self,
        ledger: Ledger,
        method: Method,
        judge: Judge,
        teacher: TeacherScorer | SupportScorer | None,
        limits: Limits,
        metrics: JudgeMetrics,
        engines_answer: Callable[[], Awaitable[bool]],
        settings: WorkerSettings | None = None,
        writer: LessonWriter | None = None,
    ) -> None:
        """Create the worker.

        Args:
            ledger: holds the pending turns and takes the verdicts.
            method: chooses the judges and turns verdicts into samples.
            judge: casts the votes.
            teacher: scores replies; required if the method's plan needs a teacher: a `SupportScorer` if it has
                ``student_topk``.
            limits: decide which turns can be trained at all.
            metrics: counters of the loop.
            engines_answer: whether all engines answer now; asked before a turn is given up.
            settings: of the loop.
            writer: of lessons; None: complaints give none.
        """
        self._plan = method.judges()
        if self._plan.needs_teacher and teacher is None:
            raise ValueError(f"method {method.name} needs a teacher; pass a TeacherScorer")
        if self._plan.student_topk and not isinstance(teacher, SupportScorer):
            raise ValueError(f"method {method.name} needs a teacher of the policy's top K; pass a SupportScorer")
        self._ledger = ledger
        self._method = method
        self._limits = limits
        self._metrics = metrics
        self._writer = writer
        self._engines_answer = engines_answer
        self._settings = settings or WorkerSettings()
        self._voting = Voting(judge, self._plan, self._settings.quorum, metrics)
        self._teaching = Teaching(teacher, self._plan, metrics)
        self._sessions = SessionHints(ledger, self._plan.session, self._voting.hints) if self._plan.session else None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._unclosed: dict[str, tuple[int, float]] = {}
        self._wake = asyncio.Event()
        self.on_lessons: Callable[[str], None] = lambda person: None
        """Called in the worker's event loop with a person whose lessons may have changed."""
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
            if self._sessions is not None:
                self._sessions.forget()

    async def _start_pending(self) -> None:
        free = self._settings.concurrency - len(self._tasks)
        if free <= 0:
            return
        wait = None if self._plan.session is None else self._plan.session.longest_wait
        pending = await asyncio.to_thread(self._ledger.judging.pending, free, tuple(self._tasks), wait)
        if self._sessions is not None and not pending and not self._tasks:
            self._sessions.forget()
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
        turn, asked = item.turn, count_tokens()
        try:
            async with asyncio.timeout(self._settings.timeout):
                verdict, decision = await self._decide(turn, item.feedback, item.kept)
            if decision.samples and not self._trains(turn):
                decision = SampleDecision(reason=UNDER_LESSON)
            weight = opinion(item.feedback, turn if item.kept is None else None).weight / item.choices
            samples = weighted(decision.samples, verdict, weight)
            wish = None
            if self._writer is not None and item.kept is None:
                wish = await self._writer.read(turn, verdict, item.feedback)
            decision = await self._record(item, verdict, replace(decision, samples=samples), wish, asked)
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
            record_span(
                "judge",
                time.time() - verdict.seconds,
                verdict.seconds,
                turn=turn.id,
                outcome=decision.reason or "sample",
                votes=len(verdict.votes),
            )
        finally:
            await self._meter(turn, asked)

    async def _meter(self, turn: Turn, asked: TokenCount) -> None:
        """Commit what judging took that no verdict was committed with."""
        if not asked.tokens:
            return
        tokens = Tokens(judged=asked.tokens)
        try:
            await asyncio.to_thread(self._ledger.usage.add_to_turn, turn.id, owner_of(turn.session_id), tokens)
        except LedgerError as error:
            self._metrics.failures.labels(kind="ledger").inc()
            logger.error("%d judged tokens of turn %s are not metered: %s", tokens.judged, turn.id, error)

    async def _record(
        self,
        item: PendingTurn,
        verdict: Verdict,
        decision: SampleDecision,
        wish: Wish,
        asked: TokenCount,
    ) -> SampleDecision:
        """Commit a verdict with the tokens that it took; return the decision as committed; retry while the ledger is unavailable.

        So no judge is asked twice.
        """
        turn_id, pause = item.turn.id, self._settings.first_pause
        while True:
            took, asked.tokens = asked.tokens, 0  # before the commit, which goes on if this task is cancelled
            try:
                decision, outcome = await asyncio.to_thread(self._commit, item, verdict, decision, wish, took)
                if self._writer is not None:
                    self._writer.count(outcome)
                if outcome is not None or item.turn.plain is not None:
                    self.on_lessons(root(owner_of(item.turn.session_id)))
                return decision
            except LedgerError as error:
                asked.tokens += took
                if not isinstance(error, LedgerUnavailableError):
                    raise
                self._metrics.failures.labels(kind="ledger").inc()
                logger.error("cannot store the verdict of turn %s; next try in %.1f s: %s", turn_id, pause, error)
            await asyncio.sleep(pause)
            pause = min(self._settings.longest_pause, 2 * pause)

    def _commit(
        self, item: PendingTurn, verdict: Verdict, decision: SampleDecision, wish: Wish, took: int
    ) -> tuple[SampleDecision, str | None]:
        """Commit a verdict with its samples, the tokens it took and what it means for lessons; return decision and wish's outcome.

        No sample is committed whose prompt has a lesson that was deleted while the turn was judged.
        """
        turn_id = item.turn.id
        with self._ledger.transaction() as connection:
            if decision.samples and self._lost_lesson(item.turn):
                decision = SampleDecision(reason=FORGOTTEN_LESSON)
            record_judged(
                *(self._ledger, turn_id, verdict, decision.samples, decision.reason),
                *(len(item.feedback), item.turn.next_state, self._settings.made_by),
                alone=self._settings.per_person,
            )
            owner = owner_of(item.turn.session_id)
            if took:
                self._ledger.usage.add(owner, Tokens(judged=took))
            person = root(owner)
            return decision, self._ledger.lessons.settle(connection, turn_id, person, wish)

    def _lost_lesson(self, turn: Turn) -> bool:
        """Return whether a lesson that the prompt of ``turn`` has was deleted since it was read from the ledger."""
        return turn.plain is not None and not self._ledger.lessons.still_has(turn)

    def _trains(self, turn: Turn) -> bool:
        """Return whether a turn may give samples: its prompt had no lessons, or those that it had may be trained with it."""
        if turn.plain is None:
            return True
        return self._settings.trains_lessoned and turn.student_ids != turn.prompt_ids

    async def _postpone(self, item: PendingTurn, kind: str, error: str) -> None:
        self._metrics.failures.labels(kind=kind).inc()
        if item.attempts + 1 >= self._settings.attempts and await self._engines_answer():
            logger.error("turn %s is given up after %d attempts: %s", item.turn.id, item.attempts + 1, error)
            await self._give_up(item)
            return
        pause = min(self._settings.longest_pause, self._settings.first_pause * 2 ** min(item.attempts, 16))
        logger.warning("turn %s stays pending (%s), next try in %.1f s: %s", item.turn.id, kind, pause, error)
        not_before = self._ledger.database.clock() + pause
        try:
            await asyncio.to_thread(self._ledger.judging.postpone, item.turn.id, error, not_before)
        except Exception:
            self._metrics.failures.labels(kind="postpone").inc()
            logger.exception("could not postpone turn %s; it stays pending and is retried at once", item.turn.id)
        if kind in ("unavailable", "timeout"):
            self.missed_engine.set()

    async def _give_up(self, item: PendingTurn) -> None:
        """Record that a turn could not be judged, so that its session can close."""
        try:
            await self._record(item, Verdict(), SampleDecision(reason=GAVE_UP), None, TokenCount())
        except (FeedbackArrivedError, TransitionError, UnknownRecordError) as error:
            logger.info("turn %s was not given up: %s", item.turn.id, error)
        else:
            self._metrics.judged.labels(outcome=GAVE_UP).inc()

    async def retry_postponed(self) -> None:
        """Make the postponed turns due now, because an engine is back."""
        try:
            await asyncio.to_thread(self._ledger.judging.retry)
        except LedgerUnavailableError as error:
            self._metrics.failures.labels(kind="ledger").inc()
            logger.error("could not make postponed turns due; they wait out their pause: %s", error)
        self.notify()

    async def _decide(
        self, turn: Turn, feedback: Sequence[Feedback], kept: Verdict | None
    ) -> tuple[Verdict, SampleDecision]:
        """Return a turn's verdict and samples; skip the judge for a turn that cannot be trained.

        A person's stated score is final, also if it is a thumb in place of words. Judges see only feedback in words. They
        are not asked about a turn whose log ``kept`` a verdict; only the teacher reads it again. Of a reply that must not be
        praised only a -1 is trained, and no teacher reads it.
        """
        reason = defect(turn, self._limits)
        if reason is not None:
            return Verdict(), SampleDecision(reason=reason)
        if DUPLICATE in self._limits.rules and await asyncio.to_thread(self._ledger.turns.gave_sample_before, turn):
            return Verdict(), SampleDecision(reason=DUPLICATE)
        started = time.monotonic()
        stated = opinion(feedback, turn if kept is None else None)
        rule = unpraised(turn, self._limits)
        if rule and stated.score is None and kept is None and not self._plan.prm_votes:
            return Verdict(), SampleDecision(reason=rule)
        if broken_calls(turn, self._limits) and stated.score is None and not rule:
            verdict = Verdict(score=-1, score_source="rule")
            decision = self._method.samples(turn, verdict) if self._plan.prm_votes else None
            return verdict, decision or SampleDecision(reason=MALFORMED_CALL)
        messages = judged_messages(turn, stated)
        turn = replace(turn, next_state=messages)
        if kept is not None and stated.score is None:
            verdict = replace(kept, hint=None) if rule else await self._teaching.taught(turn, kept)
            return verdict, await self._unless_probe(turn, verdict, self._samples(turn, verdict, rule))
        question = Question.about(turn.messages, turn.response_message, messages)
        try:
            prm, hints = await together(
                self._voting.scores(question, stated=stated.score is not None),
                self._hints(turn, question, rule),
            )
        except EngineRefusedError as error:
            logger.error("turn %s cannot be judged: %s", turn.id, error)
            return Verdict(seconds=time.monotonic() - started), SampleDecision(reason="judge_refused")
        scored, hinted = self._voting.enough(prm), self._voting.enough(hints)
        score = (
            majority([vote.value for vote in prm], self._settings.vote_threshold) if scored and prm else stated.score
        )
        answered = score == 1 and stated.score is None and asks_back(turn, self._limits)
        verdict = Verdict(
            score=0 if answered else score,
            hint=longest_hint(hints) if hinted else None,
            votes=(*prm, *hints),
            score_source="rule" if answered else "judge" if stated.score is None else "feedback",
        )
        if not rule and self._trains(turn):
            verdict = await self._teaching.taught(turn, verdict)
        verdict = replace(verdict, seconds=time.monotonic() - started)
        decision = self._samples(turn, verdict, rule)
        if not decision.samples and not (scored and hinted):
            decision = SampleDecision(reason=NO_QUORUM)
            found = Counter(f"{vote.judge} {vote.invalid or 'valid'}" for vote in verdict.votes)
            counts = ", ".join(f"{name}: {count}" for name, count in sorted(found.items()))
            logger.warning("turn %s trains nothing, too few of the judge's answers are votes (%s)", turn.id, counts)
        elif not decision.samples and answered:
            decision = SampleDecision(reason=ASKS_BACK)
        return verdict, await self._unless_probe(turn, verdict, decision)

    async def _hints(self, turn: Turn, question: Question, rule: str | None) -> list[Vote]:
        """Return the votes on the hint; none on a reply that ``rule`` keeps from praise."""
        if rule:
            return []
        return await self._voting.hints(question) if self._sessions is None else await self._sessions.votes(turn)

    def _samples(self, turn: Turn, verdict: Verdict, rule: str | None) -> SampleDecision:
        """Return the method's decision; of a reply that ``rule`` keeps from praise only a -1 has samples."""
        if rule is None:
            return self._method.samples(turn, verdict)
        decision = self._method.samples(turn, verdict) if verdict.score == -1 else SampleDecision(reason=rule)
        for sample in decision.samples:
            sample.metadata[BLAMED] = rule
        return decision if decision.samples else SampleDecision(reason=rule)

    async def _unless_probe(self, turn: Turn, verdict: Verdict, decision: SampleDecision) -> SampleDecision:
        """Return a decision about a turn; without its samples if the gate keeps the turn as a probe, also one under lessons."""
        probes, share = self._ledger.probes, self._settings.gate_share
        if decision.samples and verdict.score and await asyncio.to_thread(probes.becomes_probe, turn, share):
            return SampleDecision(reason=PROBE)
        return decision

    async def _close_sessions(self) -> None:
        """Collect the samples of finished sessions, once each; retry a failed session later."""
        limit = self._settings.concurrency + len(self._unclosed)
        for session_id in await asyncio.to_thread(self._ledger.judging.finished_sessions, limit):
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
        judged = await asyncio.to_thread(self._ledger.judging.judged, session_id)
        probes = any(each.turn.reason == PROBE for each in judged)  # of such a session nothing more is trained
        plain = {each.turn.id for each in judged if self._trains(each.turn)}
        samples = [] if probes else [each for each in self._method.session_samples(judged) if each[0] in plain]
        turns = {each.turn.id: each.turn for each in judged}

        def commit() -> int | None:
            with self._ledger.transaction():
                kept = [each for each in samples if not self._lost_lesson(turns[each[0]])]
                now, made_by = self._ledger.database.clock(), self._settings.made_by
                return len(kept) if self._ledger.judging.close_session(session_id, kept, now, made_by) else None

        self._metrics.session_samples.inc(await asyncio.to_thread(commit) or 0)
