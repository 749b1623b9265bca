"""The gateway's Prometheus metrics, under the names of the metrics page."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class QuickCounter(Counter):
    """A counter whose `labels` looks up a child that it knows, which costs a tenth of finding it."""

    def __init__(self, *given: Any, **named: Any) -> None:
        """Take a counter's arguments."""
        self._known: dict[tuple[tuple[str, Any], ...], Counter] = {}
        super().__init__(*given, **named)

    def labels(self, **labels: Any) -> Counter:  # type: ignore[override]
        """Return the child with these labels."""
        key = tuple(labels.items())
        child = self._known.get(key)
        if child is None:
            child = self._known[key] = super().labels(**labels)
        return child


class GatewayMetrics:
    """Registers the gateway's metrics in the runtime's registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = QuickCounter(
            "openclaw_requests",
            "Completions of chats and texts by HTTP status (499: the client went away)",
            ["code"],
            registry=registry,
        )
        self.refused = Counter("openclaw_refused", "Completions refused with 503; must stay 0", registry=registry)
        self.in_flight = Gauge("openclaw_requests_in_flight", "Completions under way", registry=registry)
        self.first_token = Histogram(
            "openclaw_ttft_seconds", "Seconds from request to first token", buckets=SECONDS, registry=registry
        )
        self.request_seconds = Histogram(
            "openclaw_request_seconds", "Seconds from request to last byte", buckets=SECONDS, registry=registry
        )
        self.prompt_tokens = Counter("openclaw_prompt_tokens", "Prompt tokens of answered requests", registry=registry)
        self.generated_tokens = Counter("openclaw_generated_tokens", "Response tokens", registry=registry)
        self.replayed_replies = QuickCounter(
            "openclaw_replayed_replies",
            "Earlier replies in prompts whose rendering gives other ids than were sampled, by the ids used",
            ["ids"],
            registry=registry,
        )
        self.lessons = QuickCounter(
            "openclaw_lessons",
            "Requests with their person's lessons in the prompt (served), or why they were served without: overflow, refused, ledger",
            ["outcome"],
            registry=registry,
        )
        self.turns = QuickCounter(
            "openclaw_turns",
            "Turns recorded, by kind and finish reason",
            ["kind", "outcome"],
            registry=registry,
        )
        self.session_events = QuickCounter(
            "openclaw_session_events", "What happened to sessions and next states", ["event"], registry=registry
        )
        self.sessions = Gauge("openclaw_sessions", "Sessions in memory", registry=registry)
        self.training_paused = Gauge(
            "openclaw_training_paused", "1 while a fuse has paused the run's training, else 0", registry=registry
        )
        self.people_paused = Gauge("openclaw_people_paused", "People whose training is paused", registry=registry)
        self.training_waits = Gauge(
            "openclaw_training_waits", "1 while a step waits for OPENCLAW_TRAIN_WHEN, else 0", registry=registry
        )
        self.engine_retries = Counter(
            "openclaw_engine_retries",
            "Requests sent again: away before the first token, resumed after it, canary from the engine that has a candidate",
            ["kind"],
            registry=registry,
        )
        self.engine_deaths = Counter(
            "openclaw_engine_deaths",
            "Requests that lost their engine, by what became of them: resent, or refused as the likely cause",
            ["outcome"],
            registry=registry,
        )
        self.adapter_fallbacks = Counter(
            "openclaw_adapter_fallbacks",
            "Replies by an older adapter of the person, because the newest could not be loaded",
            registry=registry,
        )
        self.malformed_tool_calls = Counter("openclaw_malformed_tool_calls", "Unreadable tool calls", registry=registry)
        self.mixed_versions = Counter(
            "openclaw_mixed_version_replies", "Replies sampled by more than one weight version", registry=registry
        )
        self.ledger_failures = Counter("openclaw_ledger_failures", "Failed commits to the ledger", registry=registry)
        self.key_requests = QuickCounter(
            "openclaw_key_requests", "Requests by name of the key and HTTP status", ["key", "code"], registry=registry
        )
        self.key_tokens = QuickCounter(
            "openclaw_key_tokens",
            "Tokens by name of the key: of the prompt, generated",
            ["key", "kind"],
            registry=registry,
        )
        self.usage_tokens = Gauge(
            "openclaw_usage_tokens",
            "Tokens of all owners, by meter: prefill, cached, sampled, judged, trained, stale",
            ["kind"],
            registry=registry,
        )
        self.rate_limited = Counter(
            "openclaw_rate_limited", "Requests refused with 429, by key and limit", ["key", "limit"], registry=registry
        )
        self.limit_hits = Counter(
            "openclaw_limit_hits", "Requests that reached a bound of the limits page", ["limit"], registry=registry
        )
        self.unauthorized = Counter("openclaw_unauthorized", "Requests without a known key", registry=registry)
        self.worker_restarts = Counter(
            "openclaw_worker_restarts",
            "Workers of the gateway that died or were frozen, and were started again",
            registry=registry,
        )
        self.reload_failures = Counter(
            "openclaw_reload_failures", "Changed keys or certificates that were unusable", registry=registry
        )
        self.feedback = Counter(
            "openclaw_feedback",
            "Explicit feedback by stated score (or words alone) and outcome: applied, kept, repeated",
            ["value", "outcome"],
            registry=registry,
        )
        self.episodes = Counter(
            "openclaw_episodes",
            "Episodes: created, closed with a reward, and settled by what became of them (samples, or the reason for none)",
            ["event"],
            registry=registry,
        )
        self.episode_segments = Counter(
            "openclaw_episode_segments", "Samples that episodes gave: segments of merged turns", registry=registry
        )
        self.episode_merged_turns = Counter(
            "openclaw_episode_merged_turns",
            "Turns of episodes that share a sample with an earlier turn",
            registry=registry,
        )
