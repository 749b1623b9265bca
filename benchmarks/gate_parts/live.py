"""What the gate costs a real run on the tiny model: seconds per update, and the waits of requests while it probes.

Runs a demo (SGLang, Ray, FSDP2, gateway) with the gate on. Meanwhile a client sends a short request a few times per second. A
decision is in the ledger with its time and length, so each request is known to have met a probe or not.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
import threading
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.machine import REPOSITORY
from openclaw.ledger.store import Ledger
from openclaw.runtime.where import find_ledger
from slime.utils.http_utils import find_available_port

PAUSE_SECONDS = 0.2
SHORT = {"model": "tiny", "messages": [{"role": "user", "content": "2 + 3?"}], "max_tokens": 1}
SIDE = {"X-Turn-Type": "side", "X-Session-Done": "1"}


@dataclass(frozen=True)
class Request:
    """When a request began, and how long its reply of one token took, in seconds."""

    began: float
    seconds: float


def ask_until(stop: threading.Event, url: str, found: list[Request]) -> None:
    """Send short requests until ``stop`` is set; those that fail before the server is up do not count."""
    with httpx.Client(timeout=60.0, trust_env=False) as client:
        while not stop.wait(PAUSE_SECONDS):
            began = time.time()
            try:
                reply = client.post(url, json=SHORT, headers={**SIDE, "X-Session-Id": f"wait-{began}"})
            except httpx.TransportError:
                continue
            if reply.status_code == httpx.codes.OK:
                found.append(Request(began, time.time() - began))


def measure_live(updates: int, seed: int) -> dict:
    """Run one demo and return seconds per update and waits."""
    stop, requests = threading.Event(), list[Request]()
    with tempfile.TemporaryDirectory(prefix="gate-live-") as folder:
        run_dir, port = Path(folder) / "run", find_available_port()
        client = threading.Thread(
            target=ask_until, args=(stop, f"http://127.0.0.1:{port}/v1/chat/completions", requests)
        )
        client.start()
        try:
            script = str(REPOSITORY / "openclaw-rl" / "run_tiny_cpu.sh")
            words = ["--updates", str(updates), "--seed", str(seed), "--run-dir", str(run_dir)]
            subprocess.run(
                ["bash", script, *words, "--report", str(Path(folder) / "report.json")],
                env={**os.environ, "PORT": str(port), "GATE": "1"},
                check=True,
                stdout=subprocess.DEVNULL,
            )
        finally:
            stop.set()
            client.join()
        report = json.loads((Path(folder) / "report.json").read_text())
        found = find_ledger(run_dir)
        assert found is not None
        with closing(Ledger(found)) as ledger:
            decisions = [each for each in ledger.decisions() if "gate/seconds" in each.metrics]
        records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    spans = [(each.decided_at - each.metrics["gate/seconds"], each.decided_at) for each in decisions]
    met = [
        each for each in requests if any(each.began < end and each.began + each.seconds > start for start, end in spans)
    ]
    others = [each.seconds for each in requests if each not in met and each.began > spans[0][0]]
    added = [
        record["perf/probe_time"] + record["perf/snapshot_time"] for record in records if "perf/probe_time" in record
    ]
    return {
        "updates": len(decisions),
        "refused": sum(each.kind == "refused" for each in decisions),
        "seconds_added_first": round(added[0], 3),
        "seconds_added_median": round(statistics.median(added[1:]), 3),
        "seconds_added_longest": round(max(added[1:]), 3),
        "requests_during_probes": len(met),
        "wait_during_probes_median": round(statistics.median(each.seconds for each in met), 4),
        "wait_during_probes_longest": round(max(each.seconds for each in met), 4),
        "wait_otherwise_median": round(statistics.median(others), 4),
        "wait_otherwise_longest": round(max(others), 4),
        "rule_rate_before": report["rule_rate_before"],
        "rule_rate_after": report["rule_rate_after"],
    }
