"""A pool's Prometheus metrics."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SECONDS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 180.0, 600.0, 1800.0)


class PoolMetrics:
    """Registers the metrics of one pool."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self.granted = Counter("agentrl_leases_granted", "Leases granted", registry=registry)
        self.refused = Counter(
            "agentrl_leases_refused", "Leases refused, by the error's code", ["code"], registry=registry
        )
        self.ended = Counter(
            "agentrl_leases_ended",
            "Leases that ended: released, expired, or by the pool's end",
            ["why"],
            registry=registry,
        )
        self.queued = Histogram(
            "agentrl_queue_seconds", "Seconds that granted leases waited", buckets=SECONDS, registry=registry
        )
        self.operations = Counter(
            "agentrl_operations",
            "Calls of environments, by the error's kind or ok",
            ["operation", "outcome"],
            registry=registry,
        )
        self.seconds = Histogram(
            "agentrl_operation_seconds",
            "Seconds of calls of environments",
            ["operation"],
            buckets=SECONDS,
            registry=registry,
        )
        self.replays = Counter(
            "agentrl_replays", "Repeated requests that got the answer of the first", ["operation"], registry=registry
        )
        self.close_failures = Counter(
            "agentrl_close_failures",
            "Attempts to close an environment that failed: it raised, hung, left processes, or blocked a thread",
            ["reason"],
            registry=registry,
        )
        self.leftovers = Counter(
            "agentrl_leftover_groups", "Process groups of an earlier server, ended at the start", registry=registry
        )

    def show_load(
        self, used: Callable[[], int], waiting: Callable[[], int], leases: Callable[[], int], stuck: Callable[[], int]
    ) -> None:
        """Register gauges that ask these functions."""
        for name, text, value in (
            ("agentrl_slots_used", "Slots that are taken, those of environments that are closing too", used),
            ("agentrl_waiting", "Requests in the queue", waiting),
            ("agentrl_leases", "Leases that have not ended", leases),
            ("agentrl_stuck", "Environments that could not be closed yet; their slots stay taken", stuck),
        ):
            Gauge(name, text, registry=self._registry).set_function(value)
