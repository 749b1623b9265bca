"""Spans: what a collector gets, and that without one, or without the library, nothing is held up."""

from __future__ import annotations

import http.server
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from groundwork import tracing
from groundwork.exceptions import ConfigError

TRACES, ALL = tracing.ENDPOINTS


@pytest.fixture
def collector() -> Iterator[tuple[str, list[ExportTraceServiceRequest]]]:
    """The address of a collector, and what it got."""
    got: list[ExportTraceServiceRequest] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *words: object) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1/traces", got
        server.shutdown()


@pytest.fixture(autouse=True)
def _stopped() -> Iterator[None]:
    yield
    tracing.stop()


def test_a_collector_gets_the_spans(
    collector: tuple[str, list[ExportTraceServiceRequest]], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, got = collector
    monkeypatch.setenv(TRACES, address)
    tracing.start("gateway")
    tracing.start("gateway")  # again in a process that has begun
    tracing.record("request", 1000.5, 0.25, turn="chatcmpl-1", tokens=7)
    tracing.record("push", 1001.0, -1.0, version="3")  # a clock was set back
    tracing.stop()
    tracing.record("request", 1002.0, 1.0)
    spans = [
        span for request in got for part in request.resource_spans for each in part.scope_spans for span in each.spans
    ]
    assert [(span.name, span.start_time_unix_nano, span.end_time_unix_nano) for span in spans] == [
        ("request", 1_000_500_000_000, 1_000_750_000_000),
        ("push", 1_001_000_000_000, 1_001_000_000_000),
    ]
    values = {item.key: item.value.string_value or item.value.int_value for item in spans[0].attributes}
    assert values == {"turn": "chatcmpl-1", "tokens": 7}
    names = {item.value.string_value for item in got[0].resource_spans[0].resource.attributes}
    assert "openclaw-rl-gateway" in names


def test_without_an_address_nothing_is_imported() -> None:
    program = (
        "import sys; from groundwork import tracing; tracing.start('x', {}); tracing.record('request', 1.0, 1.0); "
        "tracing.stop(); print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_missing_library_is_told_before_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError, match=f"{ALL} is set, but the library is missing .*pip install"):
        tracing.start("trainer", {ALL: "http://127.0.0.1:9"})


def test_a_collector_that_is_away_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TRACES, "http://127.0.0.1:9/v1/traces")
    monkeypatch.setattr(tracing, "SEND_SECONDS", 0.2)
    tracing.start("gateway")
    began = time.monotonic()
    for number in range(5000):
        tracing.record("request", 1000.0, 0.1, turn=str(number))
    assert time.monotonic() - began < 3.0
    tracing.stop()
    assert time.monotonic() - began < 15.0
