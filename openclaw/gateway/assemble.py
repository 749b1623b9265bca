"""Builds the gateway's service from a configuration."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry

from chat_codec.detokenize import MARKERS, Vocabulary
from chat_codec.formats import reply_format
from chat_codec.renderer import Renderer
from openclaw.config.runtime import RuntimeConfig
from openclaw.credit.episodes import EpisodeRules
from openclaw.engine.canary import ShareReader
from openclaw.engine.client import EngineClient
from openclaw.gateway.chat import ChatService
from openclaw.gateway.episodes import EpisodeDesk
from openclaw.gateway.feedback import FeedbackDesk
from openclaw.gateway.metrics import GatewayMetrics
from openclaw.gateway.outcomes import OutcomeDesk
from openclaw.gateway.pictures import PictureReader
from openclaw.gateway.rollouts import RolloutDesk
from openclaw.gateway.served import ServedReplies
from openclaw.ledger.store import Ledger
from openclaw.owners import owner_of
from openclaw.sessions import Sessions


def build_service(
    config: RuntimeConfig,
    tokenizer: Any,
    ledger: Ledger,
    registry: CollectorRegistry,
    *,
    renderer: Renderer | None = None,
    processor: Any | None = None,
    on_pending: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.time,
    topk: int = 0,
    trains_rewards: bool = True,
) -> ChatService:
    """Return the service that answers chat completions.

    Args:
        config: with ``policy_url``.
        tokenizer: the policy's.
        ledger: records the turns.
        registry: takes the metrics.
        renderer: of ``tokenizer``, if the runtime already has one.
        processor: of a policy that sees pictures; None: it sees none.
        on_pending: called when a turn gets its next state or a session ends.
        clock: seconds since the epoch.
        topk: how many of the policy's most likely tokens a turn keeps at each position, for the method.
        trains_rewards: whether the method learns from rewards, so that episodes give samples.
    """
    config.require("policy_url")
    metrics = GatewayMetrics(registry)
    form = reply_format(
        getattr(tokenizer, "chat_template", None) or "",
        reasoning_parser=config.reasoning_parser,
        tool_call_parser=config.tool_call_parser,
        reasoning_tags=config.reasoning_tags,
    )
    own_renderer, large_renderer = renderer or Renderer(tokenizer), Renderer(tokenizer)
    pictures = PictureReader(processor)
    served = ServedReplies(ledger.turns, form, pictures.placeholders)

    engine = EngineClient(
        config.policy_url or "",
        wait_seconds=config.engine_wait_seconds,
        on_retry=lambda kind: metrics.engine_retries.labels(kind=kind).inc(),
        on_death=lambda outcome: metrics.engine_deaths.labels(outcome=outcome).inc(),
        canary=ShareReader(config.run_dir) if config.run_dir else None,
    )

    def forget(session_id: str) -> None:
        own_renderer.forget()
        served.forget()
        large_renderer.forget()
        pictures.forget()
        engine.cache_keys.renew(owner_of(session_id))

    sessions = Sessions(
        ledger,
        idle_seconds=config.session_idle_seconds,
        max_sessions=config.max_sessions,
        clock=clock,
        regenerated=config.regenerated,
        on_event=lambda name: metrics.session_events.labels(event=name).inc(),
        on_pending=on_pending,
        on_forgotten=forget,
    )
    rules = EpisodeRules(
        config.temperature, config.train_token_limit, trains_rewards, config.prm_step_coef, config.baseline
    )
    tags = (form.reasoning.open, form.reasoning.close) if form.reasoning else ()
    return ChatService(
        config,
        renderer=own_renderer,
        large_renderer=large_renderer,
        vocabulary=Vocabulary(tokenizer, MARKERS | set(tags)),
        reply_format=form,
        engine=engine,
        sessions=sessions,
        episodes=EpisodeDesk(ledger, sessions, metrics, rules, clock=clock),
        served=served,
        pictures=pictures,
        rollouts=RolloutDesk(ledger.transfer, enabled=config.serve_rollouts),
        feedback=FeedbackDesk(ledger, metrics, clock=clock, on_pending=on_pending),
        outcomes=OutcomeDesk(ledger),
        metrics=metrics,
        clock=clock,
        topk=topk,
    )
