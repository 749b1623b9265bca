"""Builds the practice of a runtime process from its configuration."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from chat_codec.renderer import Renderer
from groundwork.paused import paused_people
from openclaw.config.runtime import RuntimeConfig
from openclaw.judge.client import EngineHttp
from openclaw.judge.measure import Rubric
from openclaw.ledger.store import Ledger
from openclaw.method import maker
from openclaw.practice.loop import PracticeLoop, PracticeMetrics, PracticeSettings

CONCURRENCY = 8
"""Most replies drawn or scored at a time, so that people's requests keep most of the engine."""


def build_practice(
    config: RuntimeConfig,
    ledger: Ledger,
    renderer: Renderer,
    registry: CollectorRegistry,
    rubric: Rubric | None = None,
) -> PracticeLoop | None:
    """Return the loop, or None: practice is off, no method trains, or the run evaluates or trains from logs.

    ``rubric`` scores replies where ``OPENCLAW_PRACTICE_RUBRIC`` asks for groups.
    """
    if config.practice == "off" or not config.method or config.offline or config.eval_mode:
        return None
    settings = PracticeSettings(
        lessons=config.practice,
        most_lessons=config.most_lessons,
        budget=config.practice_tokens,
        rounds=config.practice_rounds,
        replay=config.practice_replay,
        topk=config.distill_topk,
        temperature=config.temperature,
        reply_tokens=config.max_tokens,
        context=min(config.context_length, config.train_token_limit),
        default=config.lessons,
        made_by=maker(config.method, config.distill_topk),
    )
    engine = EngineHttp(
        config.policy_url or "",
        timeout=config.judge_seconds,
        concurrency=CONCURRENCY,
        per_person=config.adapter_per_person,
    )
    metrics = PracticeMetrics(registry)
    run_dir = config.run_dir
    return PracticeLoop(
        *(ledger, engine, renderer.render, lambda text: len(renderer.encode_text(text)), settings, metrics),
        paused=(lambda: paused_people(run_dir)) if run_dir else tuple,
        rubric=rubric if config.practice_rubric != "0" else None,
    )
