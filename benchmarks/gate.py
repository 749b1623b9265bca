"""What does the gate add to an update, and what do running requests notice? A real run of the shipped tiny model on the CPU.

`python -m benchmarks.gate [--rollouts N] --json FILE`. Clients stream from the engine all the time; a wait is the time between two
tokens of a stream. Waits are given while the plugin decides, and at all other times; those across a push count as other times.
Figures are recorded, not judged; exit status 1 when a request was refused or broke off.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import httpx

from benchmarks.fault_parts.checks import write_json
from benchmarks.gate_parts.plugin import WINDOWS
from benchmarks.machine import REPOSITORY, describe_machine
from groundwork.command_line import output_file
from groundwork.data_rows import json_objects
from lab.testkit.event_lines import EventLines

MODEL = REPOSITORY / "lab" / "tiny_models" / "shipped"
SECONDS = ("perf/snapshot_time", "perf/probe_time", "perf/update_weights_time")
MAX_TOKENS, START_SECONDS = 200, 300.0


class Client(threading.Thread):
    """Streams one reply after the other and records each wait as (end, seconds)."""

    def __init__(self, url: str, seed: int) -> None:
        super().__init__(daemon=True)
        self.waits: list[tuple[float, float]] = []
        self.refused = 0
        self.stops = threading.Event()
        self._url, self._seed = url, seed

    def run(self) -> None:
        """Go on until ``stops``."""
        limits = {"temperature": 1.0, "max_new_tokens": MAX_TOKENS, "ignore_eos": True}
        body = {"input_ids": [1, 29, 203 + self._seed], "sampling_params": limits, "stream": True}
        with httpx.Client(timeout=60.0, trust_env=False) as client:
            while not self.stops.is_set():
                try:
                    with client.stream("POST", f"{self._url}/generate", json=body) as response:
                        response.raise_for_status()
                        self._read(response)
                except httpx.HTTPError:
                    self.refused += not self.stops.is_set()

    def _read(self, response: httpx.Response) -> None:
        last, lines = None, EventLines()
        for line in (line for part in response.iter_raw() for line in lines.of(part)):
            if not line or self.stops.is_set():
                continue
            now = time.time()
            if last is not None:
                self.waits.append((now, now - last))
            last = now


def start(run_dir: Path, rollouts: int, *flags: str) -> subprocess.Popen[bytes]:
    """Start the run; ``flags`` come last, so they win."""
    prompts = run_dir / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps({"prompt": f"{n} + 1 ="}) for n in range(40)))
    words = f"""--hf-checkpoint {MODEL} --device cpu --actor-num-gpus-per-node 1 --rollout-num-gpus 1 --num-gpus 2
        --run-dir {run_dir} --save {run_dir / "save"} --prompt-data {prompts} --input-key prompt
        --rollout-batch-size 2 --n-samples-per-prompt 4 --rollout-max-response-len 24 --num-rollout {rollouts}
        --custom-rm-path lab.testkit.rewards.prefer_even_ids --use-dynamic-batch-size --max-tokens-per-gpu 4096
        --before-push-path benchmarks.gate_parts.plugin.decide --serve-when-done"""
    paths = os.pathsep.join([str(REPOSITORY / "slime"), str(REPOSITORY)])
    with (run_dir / "driver.log").open("wb") as log:
        command = [sys.executable, str(REPOSITORY / "slime" / "train_async.py"), *words.split(), *flags]
        return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": paths}, stdout=log, stderr=log)


def wait_for(run: subprocess.Popen[bytes], log: Path, words: str) -> str:
    """Return the first line with ``words``.

    Raises:
        RuntimeError: the run ended, or took too long.
    """
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and run.poll() is None:
        for line in log.read_text(errors="replace").splitlines():
            if words in line:
                return line
        time.sleep(0.1)
    raise RuntimeError(f"no {words!r} in {log}:\n{log.read_text(errors='replace')[-3000:]}")


def streamed(run_dir: Path, rollouts: int, count: int, *flags: str) -> tuple[list[tuple[float, float]], int]:
    """Stream with ``count`` clients during a run; return their waits, and how many requests were refused or broke off."""
    run = start(run_dir, rollouts, *flags)
    try:
        url = wait_for(run, run_dir / "driver.log", "policy engine: ").removeprefix("policy engine: ")
        clients = [Client(url, seed) for seed in range(count)]
        for client in clients:
            client.start()
        wait_for(run, run_dir / "driver.log", "serving until")
        for client in clients:
            client.stops.set()
            client.join(10.0)
    finally:
        run.terminate()
        run.wait(60)
    return [wait for client in clients for wait in client.waits], sum(client.refused for client in clients)


def spread(values: list[float]) -> dict[str, float]:
    """Return number, median, 99th percentile and maximum, in seconds."""
    if len(values) < 2:
        return {"count": len(values)}
    found = {"count": len(values), "median": statistics.median(values)}
    found |= {"p99": statistics.quantiles(values, n=100)[98], "max": max(values)}
    return {name: round(value, 4) for name, value in found.items()}


def figures(run_dir: Path, waits: list[tuple[float, float]]) -> dict[str, Any]:
    """Return the seconds of each part, and the waits while the plugin decided and otherwise."""
    windows = [window for _, window in json_objects(run_dir / WINDOWS)]

    def decides(end: float, seconds: float) -> bool:
        return any(end <= window["end"] and end - seconds >= window["start"] for window in windows)

    inside = [seconds for end, seconds in waits if decides(end, seconds)]
    outside = [seconds for end, seconds in waits if not decides(end, seconds)]
    logged = [row for _, row in json_objects(run_dir / "metrics.jsonl")]
    parts = {name: spread([row[name] for row in logged if name in row]) for name in SECONDS}
    return {"seconds": parts, "waits while it decides": spread(inside), "other waits": spread(outside)}


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gate", description=__doc__)
    parser.add_argument("--rollouts", type=int, default=10, help="updates (default: %(default)s)")
    parser.add_argument("--clients", type=int, default=1, help="streams at once (default: %(default)s)")
    parser.add_argument("--json", required=True, type=output_file, help="file for the figures")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gate-") as name:
        run_dir = Path(name)
        waits, refused = streamed(run_dir, arguments.rollouts, arguments.clients)
        found = {"clients": arguments.clients, **figures(run_dir, waits)}
    write_json(arguments.json, {"machine": describe_machine(), "refused": refused, **found})
    print(json.dumps(found, indent=1))
    return int(refused > 0)


if __name__ == "__main__":
    sys.exit(main())
