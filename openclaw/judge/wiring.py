"""Builds the judge loop of a runtime process from its configuration.

Guarantees: the policy engine and the judge engine are one `EngineHttp` each, so their concurrency limits cover votes
and scores together. The returned `JudgeLoop` owns the connections.

`probe` detects the end of an engine outage, so that turns need not wait out their back-off: probes run only after a
failure, every `PROBE_SECONDS`, for one token, until all engines answer. An engine that answers the probe but fails
other requests was not away: its turns keep their back-off. Stateless.

`LogScorer` scores the turns of logs with the policy's engine, so that they can be judged and trained. A turn of a log has a text
only. Its request and reply are rendered once with the model's template, and the engine scores the joined ids under the weights that
are to be trained. The version of these weights is the turn's weight version.

Temperature: the trainer divides logits by ``T``, but an engine scores given tokens at temperature 1. With ``p`` the scores at
1, ``log p_T(v) = log p(v) / T - log sum_u p(u)^(1/T)``. The likeliest tokens settle the sum within `openclaw.judge.teacher.TOLERANCE`
almost everywhere; where they do not, the engine is asked for that token at ``T`` itself.

Nothing is scored while ``ahead`` turns and samples wait for the judge or a batch, so scores are few updates old when they are used.
All numbers of a turn come from the same weights. A conversation is committed as a whole. A failure of the engine is never a reason:
the worker tries again. A turn that the template refuses, or that is too long, ends with a reason.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from prometheus_client import CollectorRegistry

from groundwork.chat_messages import Message
from groundwork.exceptions import ConfigError
from groundwork.processors import load_tokenizer
from openclaw.config.runtime import RuntimeConfig, listed
from openclaw.exceptions import EngineRefusedError, EngineUnavailableError, TeacherMismatchError
from openclaw.judge.client import BaseModel, Engine, EngineHttp, JudgeClient, JudgeSampling, NamedTokenizer, together
from openclaw.judge.endpoint import ClassJudge, EndpointJudge, load_class_judge
from openclaw.judge.group import GroupJudge
from openclaw.judge.hygiene import Limits
from openclaw.judge.interface import Judge, NoJudge
from openclaw.judge.lessons import LessonWriter, Reading
from openclaw.judge.measure import LessonMeter, ReadReply, Rubric
from openclaw.judge.reading import OtherModel, Render
from openclaw.judge.teacher import (
    VERSION_TRIES,
    SupportScorer,
    TeacherScorer,
    log_normaliser,
    next_token_log_probs,
    score,
)
from openclaw.judge.voting import JudgeMetrics
from openclaw.judge.worker import JudgeWorker, WorkerSettings
from openclaw.ledger.exceptions import LedgerUnavailableError
from openclaw.ledger.logs import ReplyScores
from openclaw.ledger.records import TopK, Turn
from openclaw.ledger.store import Ledger
from openclaw.method import JudgePlan, load_method, maker
from openclaw.owners import owner_of

logger = logging.getLogger(__name__)

PROBE_SECONDS = 1.0
LOOK_SECONDS = 10.0
"""How long a start waits for the first answer of a teacher that is another model."""


class Probed(Protocol):
    """An engine with a probe, such as `openclaw.judge.client.EngineHttp`."""

    async def answers(self) -> bool: ...


async def watch_outages(
    engines: Sequence[Probed],
    failed: asyncio.Event,
    came_back: Callable[[], Awaitable[None]],
    probe_seconds: float = PROBE_SECONDS,
) -> None:
    """Call ``came_back`` whenever all engines answer after an outage; run until cancelled.

    Args:
        engines: all engines that a turn may need.
        failed: set on a failed request, after its turn was postponed.
        came_back: makes postponed turns due; called once more if a request failed during the return.
        probe_seconds: pause between two probes.
    """
    while True:
        await failed.wait()
        failed.clear()
        if not await _were_away(engines, probe_seconds):
            continue
        logger.info("the engines answer again; postponed turns are due")
        await came_back()
        await asyncio.sleep(probe_seconds)
        if failed.is_set():
            failed.clear()
            await came_back()


async def _were_away(engines: Sequence[Probed], probe_seconds: float) -> bool:
    """Wait until all engines answer; return whether any did not at first."""
    away = False
    while not all(await asyncio.gather(*(engine.answers() for engine in engines))):
        away = True
        await asyncio.sleep(probe_seconds)
    return away


SCORES_PER_TURN = 2
REQUESTS_IN_TIME = 3
"""A request's share of a turn's time-out, so that a hanging request is retried before the turn times out."""


class Asked(Probed, Protocol):
    """An engine or judge with connections."""

    async def close(self) -> None: ...


@dataclass(frozen=True)
class JudgeLoop:
    """A worker, and what it asks: the judge or its engine, the policy's engine, and a teacher that is no engine of the run.

    ``student_topk`` is how many of the policy's likeliest tokens its method needs at each position of a reply. ``scorer``
    scores the turns of logs in a run that trains from them. ``meter`` measures lessons after updates, and ``rubric`` scores
    replies against them.
    """

    worker: JudgeWorker
    engines: tuple[Asked, ...]
    student_topk: int = 0
    scorer: LogScorer | None = None
    meter: LessonMeter | None = None
    rubric: Rubric | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Judge until ``stop`` is set, then close the connections."""
        worker = self.worker
        watch = asyncio.create_task(watch_outages(self.engines, worker.missed_engine, worker.retry_postponed))
        beside = [asyncio.create_task(each.run(stop)) for each in (self.scorer, self.meter) if each is not None]
        try:
            await worker.run(stop)
        finally:
            watch.cancel()
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            for engine in self.engines:
                await engine.close()

    def notify(self) -> None:
        """Wake the worker: a turn became pending or a session ended."""
        self.worker.notify()


async def _all_answer(engines: tuple[Asked, ...]) -> bool:
    """Return whether every engine gives a token, so that a failed turn is not the fault of an outage."""
    return all(await asyncio.gather(*(engine.answers() for engine in engines)))


def build_judge_loop(
    config: RuntimeConfig,
    ledger: Ledger,
    render: Render,
    registry: CollectorRegistry,
    render_reply: RenderReply | None = None,
    read_reply: ReadReply | None = None,
) -> JudgeLoop:
    """Return the judge loop that ``config`` describes.

    Args:
        config: of the runtime.
        ledger: of the run.
        render: renders messages, tools and template keywords to prompt ids, as the gateway does.
        registry: where metrics are registered.
        render_reply: renders a request and a reply that came as text; for a run that trains from logs.
        read_reply: reads the text of a sampled reply; for a run that measures lessons.

    Raises:
        ConfigError: if an engine that the method needs, the judge's tokenizer or the method is not configured.
    """
    config.require("policy_url", "method")
    method = load_method(config.method or "", config)
    plan = method.judges()
    scores = config.opd_teacher_lp_max_concurrency * SCORES_PER_TURN
    patience = config.judge_seconds / REQUESTS_IN_TIME
    policy = EngineHttp(
        config.policy_url or "", timeout=patience, concurrency=scores, per_person=config.adapter_per_person
    )
    judge, engine = build_judge(config, plan, patience, scores)
    asked: tuple[Asked, ...] = (judge if engine is None else engine, policy)
    taught_by: Engine = policy if engine is None or config.opd_teacher == "policy" else engine
    other = other_model(config, plan, render)
    if config.teacher_url and other is not None:
        taught_by = teacher_elsewhere(config, patience, scores)
        asked += (taught_by,)
    if other is not None:
        logger.info("teacher %s, %s", config.teacher_url or config.judge_tokenizer, other.mode)
    teacher = build_teacher(config, plan, policy, taught_by, render, other)
    metrics = JudgeMetrics(registry)
    worker = JudgeWorker(
        ledger,
        method,
        judge,
        teacher,
        Limits(
            config.temperature,
            config.min_response_tokens,
            config.train_token_limit,
            frozenset(listed(config.hygiene)),
            config.max_tool_turns,
        ),
        metrics,
        partial(_all_answer, asked),
        WorkerSettings(
            concurrency=config.judge_concurrency,
            timeout=config.judge_seconds,
            vote_threshold=config.majority_vote_threshold,
            quorum=config.judge_quorum,
            made_by=maker(config.method or "", config.distill_topk),
            trains_lessoned=config.lesson_turns == "served",
            gate_share=config.gate_share,
            attempts=config.judge_attempts,
            per_person=config.adapter_per_person,
        ),
        build_writer(config, ledger, judge, metrics),
    )
    scorer = None
    if config.offline and render_reply is not None:
        settings = ScorerSettings(config.temperature, config.score_ahead, config.train_token_limit, plan.student_topk)
        scorer = LogScorer(ledger, policy, render_reply, settings, worker.notify)
    meter = rubric = None
    if read_reply is not None and not (config.offline or config.eval_mode):
        base = BaseModel(policy)
        group = build_group_judge(config, judge)
        rubric = Rubric(
            *(base, (judge, read_reply) if follows_prompts(config, judge) else None),
            group=None if group is None else (group, read_reply),
        )
        meter = LessonMeter(
            *(ledger, policy, base, render, metrics),
            temperature=config.temperature,
            default=config.lessons,
            rubric=rubric,
            on_moved=lambda person: worker.on_lessons(person),
            per_person=config.adapter_per_person,
        )
    return JudgeLoop(worker, asked, plan.student_topk, scorer, meter, rubric)


def follows_prompts(config: RuntimeConfig, judge: Judge) -> bool:
    """Return whether a judge follows a prompt of its own, as an instruction-tuned model does."""
    return config.judge_prompts == "full" and not isinstance(judge, ClassJudge | NoJudge)


def build_group_judge(config: RuntimeConfig, judge: Judge) -> GroupJudge | None:
    """Return the judge of groups, or None where ``OPENCLAW_PRACTICE_RUBRIC`` asks for none.

    Raises:
        ConfigError: the run's judge cannot compare replies.
    """
    if config.practice_rubric != "group":
        return None
    if isinstance(judge, ClassJudge) and not judge.compares:
        raise ConfigError(
            f"OPENCLAW_PRACTICE_RUBRIC=group: OPENCLAW_JUDGE_CLASS={config.judge_class} lacks: def score_group(self, prompt, replies, "
            "rubric)"
        )
    if not isinstance(judge, ClassJudge | JudgeClient | EndpointJudge):
        raise ConfigError(
            "OPENCLAW_PRACTICE_RUBRIC=group needs a judge, and the method asks none; set OPENCLAW_JUDGE_URL"
        )
    return GroupJudge(judge, config.prm_m or 1, config.judge_quorum)


def build_writer(config: RuntimeConfig, ledger: Ledger, judge: Judge, metrics: JudgeMetrics) -> LessonWriter | None:
    """Return what writes lessons, or None: a run on logs and an evaluation learn none, nor does one without a judge for it."""
    if config.offline or config.eval_mode:
        return None
    if isinstance(judge, NoJudge) or (isinstance(judge, ClassJudge) and not judge.gives_hints):
        if config.lessons != "off":
            logger.warning(
                "OPENCLAW_LESSONS=%s, but there is no judge that gives hints, so complaints give no lessons; name one with "
                "OPENCLAW_JUDGE_URL or OPENCLAW_JUDGE_BASE_URL, or add def hint() to OPENCLAW_JUDGE_CLASS",
                config.lessons,
            )
        return None
    reads: Reading = (
        "prompt" if follows_prompts(config, judge) else "hint" if isinstance(judge, ClassJudge) else "quote"
    )
    return LessonWriter(ledger, judge, metrics, default=config.lessons, reads=reads, timeout=config.judge_seconds)


def other_model(config: RuntimeConfig, plan: JudgePlan, render: Render) -> OtherModel | None:
    """Return how the teacher reads turns if it is another model than the policy; else None.

    Raises:
        ConfigError: the teacher has no use or no usable tokenizer, or the plan compares tokens that only one of the two has.
    """
    if not plan.needs_teacher:
        if config.teacher_url:
            raise ConfigError("OPENCLAW_TEACHER_URL has no effect: the method has no teacher; unset it")
        return None
    if not config.teacher_url and config.opd_teacher == "policy":
        return None
    config.require("tokenizer")
    own, (variable, name) = config.tokenizer or "", _teacher_tokenizer(config)
    policy, teacher = _tokenizer("OPENCLAW_TOKENIZER", own), _tokenizer(variable, name)
    try:
        other = OtherModel(policy, teacher, render)
    except ValueError as error:
        raise ConfigError(f"{variable}={name}: {error}") from error
    if (plan.student_topk or config.distill_topk) and not other.token_by_token:
        raise ConfigError(
            f"the method compares the likeliest tokens of teacher and policy (--distill-topk {config.distill_topk}), but "
            f"{variable}={name} has another tokenizer than {own}, or ends replies with another token; use --method combine "
            "or --method opd, or a teacher with the policy's tokenizer"
        )
    return other


def _teacher_tokenizer(config: RuntimeConfig) -> tuple[str, str]:
    """Return the name of the tokenizer of a teacher that is another model, after the variable that says so."""
    if not config.teacher_url:
        return "OPENCLAW_JUDGE_TOKENIZER", config.judge_tokenizer or ""
    if config.teacher_tokenizer:
        return "OPENCLAW_TEACHER_TOKENIZER", config.teacher_tokenizer
    return "OPENCLAW_TOKENIZER", config.tokenizer or ""


def _tokenizer(variable: str, name: str) -> Any:
    try:
        return load_tokenizer(name)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{variable}={name}: no such folder with a tokenizer ({str(error)[:200]}); name one"
        ) from error


def teacher_elsewhere(config: RuntimeConfig, patience: float, scores: int) -> NamedTokenizer:
    """Return the engine at ``OPENCLAW_TEACHER_URL``, which takes ``scores`` requests at a time."""
    engine = EngineHttp(config.teacher_url or "", timeout=patience, concurrency=scores, key=config.teacher_api_key)
    variable, name = _teacher_tokenizer(config)
    return NamedTokenizer(engine, _tokenizer(variable, name), f"{variable}={name}")


async def look_at_teacher(config: RuntimeConfig, plan: JudgePlan) -> str | None:
    """Return a line about a teacher that is another model: which, how it scores, whether it answers; None if there is none.

    Raises:
        ConfigError: see `other_model`.
    """

    def render(messages: Sequence[Message], tools: list[dict[str, Any]] | None, keywords: dict[str, Any]) -> list[int]:
        raise NotImplementedError  # nothing is read yet

    other = other_model(config, plan, render)
    if other is None:
        return None
    if not config.teacher_url:
        return f"teacher {config.judge_tokenizer}, {other.mode}"
    engine = teacher_elsewhere(config, LOOK_SECONDS, 1)
    try:
        async with asyncio.timeout(LOOK_SECONDS):
            await engine.check()
        found = "it answers"
    except (EngineUnavailableError, TimeoutError) as error:
        found = f"turns wait until it answers: {str(error) or 'it was silent'}"
    finally:
        await engine.close()
    return f"teacher {config.teacher_url}, {other.mode}; {found}"


def build_teacher(
    config: RuntimeConfig,
    plan: JudgePlan,
    policy: EngineHttp,
    teacher: Engine,
    render: Render,
    other: OtherModel | None = None,
) -> TeacherScorer | SupportScorer:
    """Return what scores replies for the plan: the policy's own top K, or the sampled tokens.

    Raises:
        ConfigError: if the teacher reports fewer tokens than the policy's top K has.
    """
    concurrency = config.opd_teacher_lp_max_concurrency
    if not plan.student_topk:
        return TeacherScorer(
            policy=policy,
            teacher=teacher,
            render=render,
            concurrency=concurrency,
            topk=config.distill_topk,
            other=other,
        )
    if config.distill_topk < plan.student_topk:
        raise ConfigError(
            f"OPENCLAW_DISTILL_TOPK={config.distill_topk} is less than the policy's top {plan.student_topk}, which the "
            "teacher scores; add --distill-topk 64"
        )
    return SupportScorer(
        teacher=teacher,
        render=render,
        choice=plan.hint_choice,
        rows=config.distill_topk,
        concurrency=concurrency,
        teaches_itself=teacher is policy,
        other=other,
    )


def build_judge(
    config: RuntimeConfig, plan: JudgePlan, patience: float, scores: int
) -> tuple[Judge, EngineHttp | None]:
    """Return the judge, and its engine if it is one of the run's; the engine then also takes ``scores`` requests."""
    votes = config.judge_concurrency * (plan.prm_votes + plan.hint_votes)
    sampling = JudgeSampling(
        config.prm_temperature, max_new_tokens=config.prm_max_new_tokens, grammar=config.judge_grammar
    )
    if not plan.asks_judge and not config.judge_url:
        return NoJudge(), None
    if config.judge_class:
        return load_class_judge(config.judge_class, plan), None
    if config.judge_base_url:
        judge = EndpointJudge(
            config.judge_base_url,
            model=config.judge_model or "",
            key=config.judge_api_key,
            variant=config.judge_prompts,
            sampling=sampling,
            timeout=patience,
            concurrency=max(1, votes),
        )
        return judge, None
    config.require("judge_url", "judge_tokenizer")
    engine = EngineHttp(config.judge_url or "", timeout=patience, concurrency=votes + scores)
    tokenizer = load_tokenizer(config.judge_tokenizer or "")
    return JudgeClient(engine, tokenizer, config.judge_prompts, sampling), engine


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
