"""What the gateway costs: the same load through it and straight at the engine, side by side.

`python -m benchmarks.gateway [--quick] --json FILE [--connections 1,16,64,190] [--peer litellm --peer-python PATH]`. A
stand-in engine answers with a token per decode step, the gateway is the real runtime with its ledger on, the load client
is a third process. Per number of connections: time to first token (direct, through the gateway, and buffered), added
latency, throughput ratio, `/healthz` under load. Then the ceiling without a pace, stalls as long as a weight update's,
and memory per session held. Exit status 1 when something fails; figures are recorded, not judged.

Other gateways, measured in the same run as ours when they are installed; only started here, never a dependency.

LiteLLM: `python -m venv DIR && DIR/bin/python -m pip install "litellm[proxy]"`, then `--peer litellm --peer-python DIR/bin/python`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event, Thread

from benchmarks.gateway_runs import (
    Run,
    Server,
    Workload,
    build_workload,
    get,
    measure,
    milliseconds,
    send,
    start_engine,
    start_gateway,
    sync_milliseconds,
)
from benchmarks.load import Spec
from benchmarks.machine import describe_machine
from groundwork.command_line import output_file
from lab.testkit.tiny_random import build_tokenizer
from openclaw.runtime.process import free_port


def start_litellm(python: str, engine: Server, folder: Path) -> Server:
    """Start LiteLLM's proxy before the engine's OpenAI route, one worker, nothing logged.

    Raises:
        RuntimeError: when it is not installed or does not start.
    """
    port = free_port("127.0.0.1", 0)
    backend = {"model": "openai/policy", "api_base": f"http://127.0.0.1:{engine.port}/v1", "api_key": "none"}
    config = {"model_list": [{"model_name": "policy", "litellm_params": backend}]}
    (folder / "litellm.yaml").write_text(json.dumps(config))  # JSON is YAML
    program = Path(python).parent / "litellm"
    if not program.exists():
        raise RuntimeError(f"{program} does not exist; install litellm[proxy] there, or leave --peer out")
    command = [str(program), "--config", str(folder / "litellm.yaml"), "--host", "127.0.0.1", "--port", str(port)]
    environment = {
        "PYTHONPATH": "",
        "LITELLM_LOG": "ERROR",
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",  # on loopback, for a measurement; ours has no key either
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "PATH": os.environ["PATH"],
    }
    return Server([*command, "--num_workers", "1"], port, "/health/liveliness", folder / "litellm.log", environment)


STEP_MS = 10.0
TOKENS = 64
CHAT = "/v1/chat/completions"
STALL_MS = 50.0
STALL_EVERY_SECONDS = 0.5
IDLE_SECONDS = 1.0


def pooled(runs: list[Run]) -> dict:
    """Return the figures of several runs of the same load: quantiles over all requests, medians over runs."""
    result = {
        "requests": sum(len(run.totals) for run in runs),
        "first_token_ms": milliseconds([value for run in runs for value in run.firsts]),
        "total_ms": milliseconds([value for run in runs for value in run.totals]),
        "tokens_per_second": round(statistics.median(run.tokens_per_second for run in runs), 1),
        "load_average": round(max(run.load_average for run in runs), 2),
    }
    if health := [value * 1e9 for run in runs for value in run.health]:
        result["healthz_ms"] = milliseconds(health)
    if cpu := [run.cpu_us_per_token for run in runs if run.cpu_us_per_token is not None]:
        result["cpu_us_per_token"] = round(statistics.median(cpu), 1)
    return result


def added(runs: list[Run], direct: list[Run]) -> dict:
    """Return what a way to the engine adds to the median of the direct way, engine time taken off both."""
    base = statistics.median(value for run in direct for value in run.overheads)
    base_first = statistics.median(value for run in direct for value in run.first_overheads)
    ratios = [ours.tokens_per_second / theirs.tokens_per_second for ours, theirs in zip(runs, direct, strict=True)]
    return {
        "added_latency_ms": milliseconds([value - base for run in runs for value in run.overheads]),
        "added_first_token_ms": milliseconds([value - base_first for run in runs for value in run.first_overheads]),
        "throughput_ratio": round(statistics.median(ratios), 4),
        "throughput_ratio_min": round(min(ratios), 4),
    }


def compare(
    workload: Workload, engine: Server, gateway: Server, peer: Server | None, load: tuple[int, float, int], folder: Path
) -> dict:
    """Measure one number of connections: direct, through the gateway streamed and buffered, through the peer.

    Args:
        workload: the conversation.
        engine: the stand-in.
        gateway: before it.
        peer: another gateway before the same engine, or None.
        load: connections, seconds a run, rounds.
        folder: where the ledger lies, to say how fast its disk was meanwhile.
    """
    connections, seconds, rounds = load
    ways: dict[str, tuple[Server | None, Spec]] = {
        "direct": (None, Spec(engine.port, "/generate", connections, seconds, workload.engine, workload.texts)),
        "gateway": (
            gateway,
            Spec(gateway.port, CHAT, connections, seconds, workload.chat, workload.texts, health=True),
        ),
        "buffered": (
            gateway,
            Spec(gateway.port, CHAT, connections, seconds, workload.chat, workload.texts, stream=False),
        ),
    }
    if peer:
        ways["peer"] = (peer, Spec(peer.port, CHAT, connections, seconds, workload.chat, workload.texts))
        ways["peer_direct"] = (None, Spec(engine.port, CHAT, connections, seconds, workload.chat, workload.texts))
    runs: dict[str, list[Run]] = {name: [] for name in ways}
    sync = sync_milliseconds(folder)
    for _ in range(rounds):
        for name, (server, spec) in ways.items():
            runs[name].append(measure(spec, engine, server))
            time.sleep(IDLE_SECONDS)
    figures: dict = {"connections": connections, **{name: pooled(runs[name]) for name in ways}, "disk_sync_ms": sync}
    figures["gateway"] |= added(runs["gateway"], runs["direct"])
    if peer:
        # A proxy may rename the replies, so its requests cannot be joined with the engine's records.
        base = figures["peer_direct"]
        figures["peer"]["added_total_p50_ms"] = round(figures["peer"]["total_ms"]["p50"] - base["total_ms"]["p50"], 3)
        ratios = [
            a.tokens_per_second / b.tokens_per_second for a, b in zip(runs["peer"], runs["peer_direct"], strict=True)
        ]
        figures["peer"]["throughput_ratio"] = round(statistics.median(ratios), 4)
    return figures


@contextmanager
def stalls(engine: Server) -> Iterator[list[float]]:
    """Stall the engine again and again while the body runs; gives the pauses in milliseconds."""
    over, pauses = Event(), []

    def work() -> None:
        while not over.wait(STALL_EVERY_SECONDS):
            pauses.append(get(engine.port, f"/stall?ms={STALL_MS}", method="POST")["ms"])

    thread = Thread(target=work)
    thread.start()
    try:
        yield pauses
    finally:
        over.set()
        thread.join()


def stall_figures(workload: Workload, engine: Server, gateway: Server, load: tuple[int, float, int]) -> dict:
    """Measure what requests wait beyond the engine's own pauses."""
    connections, seconds, rounds = load
    runs, direct, pauses = [], [], []
    for _ in range(rounds):
        with stalls(engine) as made:
            direct.append(
                measure(Spec(engine.port, "/generate", connections, seconds, workload.engine, workload.texts), engine)
            )
            runs.append(
                measure(Spec(gateway.port, CHAT, connections, seconds, workload.chat, workload.texts), engine, gateway)
            )
        pauses += made
    beyond = [value for run in runs for value in run.overheads]
    return {
        "connections": connections,
        "pauses": len(pauses),
        "pause_ms_median": round(statistics.median(pauses), 2),
        "beyond_the_pause_max_ms": round(max(beyond) / 1e6, 3),
        **added(runs, direct),
    }


def session_figures(workload: Workload, gateway: Server, counts: list[int]) -> list[dict]:
    """Hold more and more sessions; return the memory after each count."""
    rows = [{"sessions": get(gateway.port, "/healthz")["sessions"], "rss_mib": round(gateway.memory_mib(), 1)}]
    for count in counts:
        send(
            Spec(gateway.port, CHAT, 16, 0.0, workload.chat[:1], workload.texts, sessions=count - rows[-1]["sessions"])
        )
        rows.append({"sessions": get(gateway.port, "/healthz")["sessions"], "rss_mib": round(gateway.memory_mib(), 1)})
    return rows


def run_all(arguments: argparse.Namespace, folder: Path, stack: ExitStack) -> dict:
    """Take every measurement and return the figures."""
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(folder / "tokenizer")

    def keep(server: Server) -> Server:
        stack.callback(server.stop)
        return server

    seconds, rounds = (3.0, 1) if arguments.quick else (arguments.seconds, arguments.rounds)
    connections = [1, 16] if arguments.quick else [int(word) for word in arguments.connections.split(",")]
    workload, brief = build_workload(tokenizer, TOKENS), build_workload(tokenizer, 8)
    engine = keep(start_engine(workload, STEP_MS, folder))
    gateway = keep(start_gateway(engine, folder / "tokenizer", folder))
    peer = keep(start_litellm(arguments.peer_python, engine, folder)) if arguments.peer else None
    measure(Spec(gateway.port, CHAT, 4, 1.0, workload.chat, workload.texts), engine)  # warm

    figures: dict = {"step_ms": STEP_MS, "reply_tokens": TOKENS, "seconds": seconds, "rounds": rounds, "paced": []}
    for count in connections:
        figures["paced"].append(compare(workload, engine, gateway, peer, (count, seconds, rounds), folder))
        print(json.dumps(figures["paced"][-1]), flush=True)
    figures["stalls"] = stall_figures(workload, engine, gateway, (16, seconds, rounds))
    print(json.dumps({"stalls": figures["stalls"]}), flush=True)

    long = build_workload(tokenizer, TOKENS, history=arguments.history)
    figures["long_history"] = compare(long, engine, gateway, None, (16, seconds, rounds), folder)
    figures["long_history"]["prompt_tokens"] = len(long.engine[0]["input_ids"])
    print(json.dumps({"long_history": figures["long_history"]}), flush=True)

    fast = keep(start_engine(workload, 0.0, folder))
    ceiling = keep(start_gateway(fast, folder / "tokenizer", folder))
    figures["unpaced"] = compare(workload, fast, ceiling, None, (16, seconds, rounds), folder)
    print(json.dumps({"unpaced": figures["unpaced"]}), flush=True)

    small = keep(start_engine(brief, 0.0, folder))
    holder = keep(start_gateway(small, folder / "tokenizer", folder))
    figures["sessions"] = session_figures(brief, holder, [200] if arguments.quick else [1000, 5000])
    print(json.dumps({"sessions": figures["sessions"]}), flush=True)
    return figures


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gateway", description=__doc__)
    parser.add_argument("--connections", default="1,16,64,190", help="comma-separated (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each run (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each kind, alternating (default: %(default)s)")
    parser.add_argument(
        "--history", type=int, default=40, help="exchanges before a long conversation (default: %(default)s)"
    )
    parser.add_argument("--peer", choices=("litellm",), default=None, help="another gateway to measure in the same run")
    parser.add_argument(
        "--peer-python", default=sys.executable, help="interpreter that has the peer (default: this one)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="1 and 16 connections, one short round: checks that it runs"
    )
    parser.add_argument("--json", required=True, type=output_file, help="file for the figures")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gateway-") as folder, ExitStack() as stack:
        figures = run_all(arguments, Path(folder), stack)
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps({"machine": describe_machine(), **figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
