"""Spans of OpenTelemetry: a request, a judged turn, a step and a push.

OpenTelemetry's own variables say where they go: ``OTEL_EXPORTER_OTLP_ENDPOINT`` or ``OTEL_EXPORTER_OTLP_TRACES_ENDPOINT``, and
``OTEL_EXPORTER_OTLP_HEADERS`` for a key. Without one of the first two nothing is imported, and `record` returns at once.

Guarantees: `record` only queues, and a thread of the library sends; what its queue cannot hold is dropped, and a collector that is
away costs the end of a process a few seconds at most. Attributes are numbers, ids and names of states, never a word of a
conversation, a person's name or a key.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from groundwork.exceptions import ConfigError

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
SEND_SECONDS = 3.0
NANOSECONDS = 1_000_000_000

_tracer: Any = None
_provider: Any = None


def start(service: str, environment: Mapping[str, str] = os.environ) -> None:
    """Send what this process records from now on, as the service ``service``; a no-op if no variable says where.

    Raises:
        ConfigError: the library is missing.
    """
    global _tracer, _provider
    named = next((name for name in ENDPOINTS if environment.get(name)), None)
    if named is None or _tracer is not None:
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ConfigError(
            f"{named} is set, but the library is missing ({error.name}); type: pip install opentelemetry-exporter-otlp-proto-http, "
            "or unset it"
        ) from error
    _provider = TracerProvider(resource=Resource.create({"service.name": f"openclaw-rl-{service}"}))
    _provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(timeout=SEND_SECONDS)))
    _tracer = _provider.get_tracer("openclaw-rl")


def record(name: str, began: float, seconds: float, **attributes: str | int | float | bool) -> None:
    """Record a span that is over.

    Args:
        name: of the span.
        began: seconds since the epoch.
        seconds: how long it took.
        attributes: numbers, ids and names of states.
    """
    if _tracer is None:
        return
    span = _tracer.start_span(name, start_time=int(began * NANOSECONDS), attributes=attributes)
    span.end(int((began + max(0.0, seconds)) * NANOSECONDS))


def stop() -> None:
    """Send what waits, for some times `SEND_SECONDS` at most, and record nothing more."""
    global _tracer, _provider
    provider, _tracer, _provider = _provider, None, None
    if provider is not None:
        provider.force_flush(int(SEND_SECONDS * 1000))
        provider.shutdown()
