"""Builds the judge loop of a runtime process from its configuration.

Guarantees: the policy engine and the judge engine are one `EngineHttp` each, so their concurrency limits cover votes
and scores together. The returned `JudgeLoop` owns the connections.

`probe` detects the end of an engine outage, so that turns need not wait out their back-off: probes run only after a
failure, every `PROBE_SECONDS`, for one token, until all engines answer. An engine that answers the probe but fails
other requests was not away: its turns keep their back-off. Stateless.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from prometheus_client import CollectorRegistry

from groundwork.exceptions import ConfigError
from groundwork.processors import load_tokenizer
from openclaw.config.runtime import RuntimeConfig, listed
from openclaw.judge.client import EngineHttp, JudgeClient, JudgeSampling
from openclaw.judge.endpoint import EndpointJudge, load_class_judge
from openclaw.judge.hygiene import Limits
from openclaw.judge.interface import Judge, NoJudge
from openclaw.judge.log_scoring import LogScorer, RenderReply, ScorerSettings
from openclaw.judge.teacher import Render, SupportScorer, TeacherScorer
from openclaw.judge.voting import JudgeMetrics
from openclaw.judge.worker import JudgeWorker, WorkerSettings
from openclaw.ledger.store import Ledger
from openclaw.method import JudgePlan, load_method, maker

logger = logging.getLogger(__name__)

PROBE_SECONDS = 1.0


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
    """A worker, and the judge or its engine and the policy's engine, which it asks.

    ``student_topk`` is how many of the policy's likeliest tokens its method needs at each position of a reply. ``scorer``
    scores the turns of logs in a run that trains from them.
    """

    worker: JudgeWorker
    engines: tuple[Asked, ...]
    student_topk: int = 0
    scorer: LogScorer | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Judge until ``stop`` is set, then close the connections."""
        worker = self.worker
        watch = asyncio.create_task(watch_outages(self.engines, worker.missed_engine, worker.retry_postponed))
        scoring = asyncio.create_task(self.scorer.run(stop)) if self.scorer else None
        try:
            await worker.run(stop)
        finally:
            watch.cancel()
            if scoring is not None:
                scoring.cancel()
                await asyncio.gather(scoring, return_exceptions=True)
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
) -> JudgeLoop:
    """Return the judge loop that ``config`` describes.

    Args:
        config: of the runtime.
        ledger: of the run.
        render: renders messages, tools and template keywords to prompt ids, as the gateway does.
        registry: where metrics are registered.
        render_reply: renders a request and a reply that came as text; for a run that trains from logs.

    Raises:
        ConfigError: if an engine that the method needs, the judge's tokenizer or the method is not configured.
    """
    config.require("policy_url", "method")
    method = load_method(config.method or "", config)
    plan = method.judges()
    scores = config.opd_teacher_lp_max_concurrency * SCORES_PER_TURN
    patience = config.judge_seconds / REQUESTS_IN_TIME
    policy = EngineHttp(config.policy_url or "", timeout=patience, concurrency=scores)
    judge, engine = build_judge(config, plan, patience, scores)
    teacher = build_teacher(
        config, plan, policy, policy if engine is None or config.opd_teacher == "policy" else engine, render
    )
    asked = (judge if engine is None else engine, policy)
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
        JudgeMetrics(registry),
        partial(_all_answer, asked),
        WorkerSettings(
            concurrency=config.judge_concurrency,
            timeout=config.judge_seconds,
            vote_threshold=config.majority_vote_threshold,
            quorum=config.judge_quorum,
            made_by=maker(config.method or "", config.distill_topk),
            gate_share=config.gate_share,
            attempts=config.judge_attempts,
        ),
    )
    scorer = None
    if config.offline and render_reply is not None:
        settings = ScorerSettings(config.temperature, config.score_ahead, config.train_token_limit, plan.student_topk)
        scorer = LogScorer(ledger, policy, render_reply, settings, worker.notify)
    return JudgeLoop(worker, asked, plan.student_topk, scorer)


def build_teacher(
    config: RuntimeConfig, plan: JudgePlan, policy: EngineHttp, teacher: EngineHttp, render: Render
) -> TeacherScorer | SupportScorer:
    """Return what scores replies for the plan: the policy's own top K, or the sampled tokens.

    Raises:
        ConfigError: if the teacher reports fewer tokens than the policy's top K has.
    """
    concurrency = config.opd_teacher_lp_max_concurrency
    if not plan.student_topk:
        return TeacherScorer(
            policy=policy, teacher=teacher, render=render, concurrency=concurrency, topk=config.distill_topk
        )
    if config.distill_topk < plan.student_topk:
        raise ConfigError(
            f"OPENCLAW_DISTILL_TOPK={config.distill_topk} is less than the policy's top {plan.student_topk}, which the "
            "teacher scores; add --distill-topk 64"
        )
    return SupportScorer(
        teacher=teacher, render=render, choice=plan.hint_choice, rows=config.distill_topk, concurrency=concurrency
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
