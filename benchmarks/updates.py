"""What does a weight update cost a waiting client? Real SGLang, real gateway, weights swapped under streams.

`python -m benchmarks.updates [--quick] [--updates N] [--clients 1,4,12] --json FILE`. A model with random weights (a few MB) on the
CPU; a stand-in for trainer rank 0 sends the buckets over gloo with the same calls as the trainer. Figures are recorded, not
judged; exit status 1 when a request was refused or broke off.

Streams replies through the gateway during weight swaps, and measures the wait for each piece.

Guarantees: a wait is the time between two pieces of one reply, or from its request to its first piece. A wait that
overlaps a swap is *held*. Only measures, without a verdict. Stateless apart from one call of `swap_under_load`.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import torch
from prometheus_client import CollectorRegistry
from safetensors.torch import load_file
from transformers import AutoTokenizer

from benchmarks.fault_parts.checks import write_json
from benchmarks.machine import describe_machine
from benchmarks.streams import RefusedError, stream_events
from groundwork.command_line import output_file
from lab.testkit import tiny_random
from lab.testkit.engine import serve
from lab.testkit.live_engine import WeightSender, engine_arguments, live_engine
from openclaw.config.runtime import RuntimeConfig
from openclaw.gateway.app import create_app
from openclaw.gateway.chat import ChatService
from openclaw.ledger.store import Ledger
from slime.backends.sglang_utils.engine import SGLangEngine

REQUEST_SECONDS = 240.0
FIRST_SECONDS = 240.0


@dataclass
class Observed:
    """What clients and trainer saw; times are seconds of the monotonic clock.

    Attributes:
        replies: per finished reply, when it was asked for and when each piece came.
        refused: words of what was no whole reply.
        swaps: begin and end of each weight update.
    """

    replies: list[list[float]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    swaps: list[tuple[float, float]] = field(default_factory=list)

    def waits(self) -> tuple[list[float], list[tuple[float, float]]]:
        """Return the ordinary waits, and for each held one how long it was and how long its swap took, in seconds."""
        ordinary, held = [], []
        for times in self.replies:
            for before, after in itertools.pairwise(times):
                swap = max((end - begin for begin, end in self.swaps if begin < after and end > before), default=None)
                if swap is None:
                    ordinary.append(after - before)
                else:
                    held.append((after - before, swap))
        return ordinary, held

    def summary(self) -> dict[str, Any]:
        """Return counts and milliseconds; ``beyond_swap`` is a held wait less its swap and an ordinary wait."""
        ordinary, held = self.waits()
        usual = statistics.median(ordinary)
        swaps = [end - begin for begin, end in self.swaps]
        beyond = [wait - swap - usual for wait, swap in held]
        return {
            "updates": len(swaps),
            "replies": len(self.replies),
            "refused": len(self.refused),
            "ordinary_wait_ms": _milliseconds(ordinary),
            "swap_ms": _milliseconds(swaps),
            "held_wait_ms": _milliseconds([wait for wait, _ in held]),
            "held_waits": len(held),
            "beyond_swap_ms": _milliseconds(beyond),
            "held_share_within_100_ms": round(sum(value <= 0.1 for value in beyond) / len(beyond), 4),
        }


def _milliseconds(seconds: Sequence[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    picked = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    return {name: round(ordered[round(q * (len(ordered) - 1))] * 1000, 1) for name, q in picked.items()}


async def swap_under_load(
    url: str,
    sender: WeightSender,
    weights: Sequence[Mapping[str, torch.Tensor]],
    *,
    updates: int,
    clients: int,
    max_tokens: int,
    seed: int = 0,
) -> Observed:
    """Update the weights ``updates`` times while ``clients`` conversations stream, and return what was seen.

    Args:
        url: of the gateway.
        sender: joined to the engine behind it.
        weights: update n (from 1) sends ``weights[n % len(weights)]`` as version n.
        updates: how many.
        clients: streams at once.
        max_tokens: of a reply.
        seed: of the moments.
    """
    observed, stop, rng = Observed(), asyncio.Event(), random.Random(seed)
    async with httpx.AsyncClient(base_url=url, timeout=REQUEST_SECONDS, trust_env=False) as client:
        tasks = [asyncio.create_task(_talk(client, f"client-{n}", max_tokens, observed, stop)) for n in range(clients)]
        async with asyncio.timeout(FIRST_SECONDS):
            while len(observed.replies) < clients and not observed.refused:
                await asyncio.sleep(0.02)
        for number in range(1, updates + 1):
            await asyncio.sleep(rng.uniform(0.05, 0.4))
            begin = time.monotonic()
            await asyncio.to_thread(sender.update, dict(weights[number % len(weights)]), str(number))
            observed.swaps.append((begin, time.monotonic()))
        stop.set()
        await asyncio.gather(*tasks)
    return observed


async def _talk(client: httpx.AsyncClient, name: str, max_tokens: int, observed: Observed, stop: asyncio.Event) -> None:
    number = 0
    while not stop.is_set():
        number += 1
        question = {"role": "user", "content": f"{name} asks for the {number}th time: what is 2 + 3?"}
        times = [time.monotonic()]
        try:
            async for event in stream_events(
                client, f"{name}-{number}", {"max_tokens": max_tokens, "messages": [question]}
            ):
                if any(_says_something(choice["delta"]) for choice in event["choices"]):
                    times.append(time.monotonic())
        except (httpx.TransportError, RefusedError) as error:
            observed.refused.append(repr(error))
        else:
            observed.replies.append(times)


def _says_something(delta: dict[str, Any]) -> bool:
    return bool(delta.get("content") or delta.get("reasoning_content") or delta.get("tool_calls"))


MAX_TOKENS = 120


async def measure(engine: SGLangEngine, models: list[Path], folder: Path, clients: int, updates: int) -> dict[str, Any]:
    """Return the summary of one load."""
    config = RuntimeConfig(
        policy_url=engine.url(), tokenizer=str(models[0]), context_length=2048, prm_max_new_tokens=512
    )
    ledger, registry = Ledger(folder / f"{clients}.sqlite"), CollectorRegistry()
    service = ChatService(config, AutoTokenizer.from_pretrained(models[0]), ledger, registry)
    sender = WeightSender(engine, f"updates-{clients}")
    weights = [load_file(model / "model.safetensors") for model in models]
    async with serve(create_app(service, registry)) as url:
        observed = await swap_under_load(
            url, sender, weights, updates=updates, clients=clients, max_tokens=MAX_TOKENS, seed=clients
        )
    sender.close()
    ledger.close()
    return {"clients": clients, **observed.summary(), "words": sorted(set(observed.refused))[:5]}


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.updates", description=__doc__)
    parser.add_argument("--updates", type=int, default=40, help="per load (default: %(default)s)")
    parser.add_argument("--clients", default="1,4,12", help="streams at once, comma-separated (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="one load, five updates: checks that it runs")
    parser.add_argument("--json", required=True, type=output_file, help="file for the figures")
    arguments = parser.parse_args()
    loads = [int(text) for text in arguments.clients.split(",")]
    updates = arguments.updates
    if arguments.quick:
        loads, updates = loads[:1], 5
    with tempfile.TemporaryDirectory(prefix="updates-") as name:
        folder = Path(name)
        models = [tiny_random.build(folder / f"model-{seed}", seed=seed) for seed in (11, 12)]
        with live_engine(engine_arguments(models[0], folder / "run")) as engine:
            results = [asyncio.run(measure(engine, models, folder, clients, updates)) for clients in loads]
    write_json(arguments.json, {"machine": describe_machine(), "loads": results})
    for result in results:
        print(result)
    return int(any(result["refused"] for result in results))


if __name__ == "__main__":
    sys.exit(main())
