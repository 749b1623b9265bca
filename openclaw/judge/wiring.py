"""Builds the judge loop of a runtime process from its configuration.

Guarantees: the policy engine and the judge engine are one `EngineHttp` each, so their concurrency limits cover votes
and scores together. The returned `JudgeLoop` owns the connections.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from openclaw.config.runtime import RuntimeConfig
from openclaw.judge.client import EngineHttp, JudgeClient, JudgeSampling
from openclaw.judge.hygiene import Limits
from openclaw.judge.metrics import JudgeMetrics
from openclaw.judge.outage import watch_outages
from openclaw.judge.teacher import Render, TeacherScorer
from openclaw.judge.worker import JudgeWorker, WorkerSettings
from openclaw.ledger.store import Ledger
from openclaw.method import load_method
from slime.utils.processing_utils import load_tokenizer

SCORES_PER_TURN = 2
REQUESTS_IN_TIME = 3
"""A request's share of a turn's time-out, so that a hanging request is retried before the turn times out."""


@dataclass(frozen=True)
class JudgeLoop:
    """A worker and the connections it uses."""

    worker: JudgeWorker
    engines: tuple[EngineHttp, ...]

    async def run(self, stop: asyncio.Event) -> None:
        """Judge until ``stop`` is set, then close the connections."""
        worker = self.worker
        watch = asyncio.create_task(watch_outages(self.engines, worker.missed_engine, worker.retry_postponed))
        try:
            await worker.run(stop)
        finally:
            watch.cancel()
            for engine in self.engines:
                await engine.close()

    def notify(self) -> None:
        """Wake the worker: a turn became pending or a session ended."""
        self.worker.notify()


def build_judge_loop(config: RuntimeConfig, ledger: Ledger, render: Render, registry: CollectorRegistry) -> JudgeLoop:
    """Return the judge loop that ``config`` describes.

    Args:
        config: of the runtime.
        ledger: of the run.
        render: renders messages, tools and template keywords to prompt ids, as the gateway does.
        registry: where metrics are registered.

    Raises:
        ConfigError: if an engine, the judge's tokenizer or the method is not configured.
    """
    config.require("policy_url", "judge_url", "judge_tokenizer", "method")
    method = load_method(config.method or "", config)
    plan = method.judges()
    votes = config.judge_concurrency * (plan.prm_votes + plan.hint_votes)
    scores = config.opd_teacher_lp_max_concurrency * SCORES_PER_TURN
    patience = config.judge_timeout / REQUESTS_IN_TIME
    judge = EngineHttp(config.judge_url or "", timeout=patience, concurrency=votes + scores)
    policy = EngineHttp(config.policy_url or "", timeout=patience, concurrency=scores)
    client = JudgeClient(
        judge,
        load_tokenizer(config.judge_tokenizer or ""),
        config.judge_prompts,
        JudgeSampling(config.prm_temperature, max_new_tokens=config.prm_max_new_tokens),
    )
    teacher = TeacherScorer(
        policy=policy,
        teacher=policy if config.opd_teacher == "policy" else judge,
        render=render,
        concurrency=config.opd_teacher_lp_max_concurrency,
        topk=config.distill_topk,
    )
    worker = JudgeWorker(
        ledger,
        method,
        client,
        teacher,
        Limits(config.temperature, config.min_response_tokens, config.train_token_limit),
        JudgeMetrics(registry),
        WorkerSettings(
            concurrency=config.judge_concurrency,
            timeout=config.judge_timeout,
            vote_threshold=config.majority_vote_threshold,
        ),
    )
    return JudgeLoop(worker, (judge, policy))
