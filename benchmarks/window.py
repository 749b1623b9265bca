"""Seconds of the window's pages on a run of many turns, and what people who look at them cost a reply.

`python -m benchmarks.window [--full] [--kib N] [--wait] [--json FILE]`. The run is that of `benchmarks.report`: 20,000 turns, with
``--full`` 100,000. With ``--kib 16`` each request has 16 KiB more, as those of agents have; with ``--wait`` no step has taken a
sample, so that all of them wait. A gateway with a stand-in engine serves it in a process of its own. A page's time is that of its
request, the first one from a fresh process of the window. Then a client asks for streamed replies, in blocks by turns with and
without five people, each of whom loads a page every second from another process; the figure is the median of the differences of
the blocks' medians. So it is with five people whose open pages follow the run by server-sent events, and load themselves when they
are told to.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import httpx
from prometheus_client import CollectorRegistry

from benchmarks.machine import describe_machine
from benchmarks.report import FULL, QUICK, text, write_run
from groundwork.command_line import output_file
from groundwork.network import find_available_port
from lab.testkit.engine import mock_engine
from lab.testkit.tiny_random import build_tokenizer
from openclaw.config.runtime import RuntimeConfig
from openclaw.gateway.app import create_app
from openclaw.gateway.chat import ChatService
from openclaw.ledger.store import Ledger
from openclaw.runtime.serve import GatewayServer
from openclaw.runtime.window import WindowProcess

VIEWS = ("learning", "health", "conversations", "mine", "queue", "machine", "chat")
PEOPLE = 5
BLOCKS, REPLIES = 8, 40
RUNS = 5
SECONDS = 120


def serve(folder: str, port: int) -> None:
    """Serve the run in ``folder`` until the process is ended."""

    async def serving() -> None:
        tokenizer = build_tokenizer()
        reply = [*tokenizer.encode("Hello you.", add_special_tokens=False), tokenizer.eos_token_id]
        async with mock_engine(lambda _: reply) as engine:
            config = RuntimeConfig(
                policy_url=engine.url,
                tokenizer="tiny",
                ledger=f"{folder}/ledger.sqlite",
                run_dir=folder,
                context_length=32768,
                port=port,
            )
            registry = CollectorRegistry()
            service = ChatService(config, tokenizer, Ledger(config.ledger or ""), registry)
            app = create_app(service, registry, views=WindowProcess(config))
            await GatewayServer(app, config, service.metrics).serve()

    asyncio.run(serving())


def look_on(url: str) -> None:
    """Load a page every second for each of `PEOPLE`, until the process is ended."""
    with httpx.Client(base_url=url, trust_env=False, timeout=SECONDS) as client:
        for number in range(10**9):
            started = time.monotonic()
            for person in range(PEOPLE):
                client.get(f"/window/{VIEWS[(number + person) % len(VIEWS)]}").raise_for_status()
            time.sleep(max(0.0, 1.0 - (time.monotonic() - started)))


def follow(url: str) -> None:
    """Keep a page of each of `PEOPLE` as the run is, until the process is ended."""

    async def keep(client: httpx.AsyncClient, view: str) -> None:
        revision = ""
        while True:
            words = {"view": view, "revision": revision}
            async with client.stream("GET", "/window/events", params=words) as answer:
                async for line in answer.aiter_lines():
                    if line.startswith("data: "):
                        revision = line.split('"')[3]
                        (await client.get(f"/window/{view}")).raise_for_status()

    async def keep_all() -> None:
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=SECONDS) as client:
            await asyncio.gather(*(keep(client, VIEWS[number]) for number in range(PEOPLE)))

    asyncio.run(keep_all())


@contextmanager
def beside(target: Any, *given: Any) -> Iterator[None]:
    """Run a function in a process of its own until the block ends."""
    process = multiprocessing.get_context("spawn").Process(target=target, args=given)
    process.start()
    try:
        yield
    finally:
        process.terminate()
        process.join()


def timed(client: httpx.Client, path: str) -> float:
    """Return the seconds that a page takes."""
    started = time.perf_counter()
    client.get(path).raise_for_status()
    return time.perf_counter() - started


def first_token(client: httpx.Client) -> float:
    """Return the seconds until a streamed reply begins."""
    body = {"messages": [{"role": "user", "content": "Hello?"}], "stream": True}
    started = time.perf_counter()
    seconds = 0.0
    with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        for line in answer.iter_lines():
            if not seconds and '"content":"' in line:
                seconds = time.perf_counter() - started
    return seconds


def measure(folder: Path) -> dict[str, Any]:
    """Return the seconds of each page, and the milliseconds that people who look cost."""
    port = find_available_port()
    url = f"http://127.0.0.1:{port}"
    with (
        beside(serve, str(folder), port),
        httpx.Client(base_url=url, trust_env=False, timeout=SECONDS, follow_redirects=True) as client,
    ):
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            try:
                client.get("/healthz")
                break
            except httpx.TransportError:
                time.sleep(0.05)
        first = timed(client, "/window/")
        pages = {view: min(timed(client, f"/window/{view}") for _ in range(RUNS)) for view in VIEWS}
        turn = client.get("/window/json/conversations").json()["conversations"][0]["session"]
        pages["conversation"] = min(timed(client, f"/window/conversation?id={turn}") for _ in range(RUNS))
        for _ in range(REPLIES):
            first_token(client)
        blocks: dict[Any, list[float]] = {None: [], look_on: [], follow: []}
        for _ in range(BLOCKS):
            for people, medians in blocks.items():
                with beside(people, url) if people else nullcontext():
                    time.sleep(2.0 if people else 0.0)  # until the process has begun
                    medians.append(statistics.median(first_token(client) for _ in range(REPLIES)))

    def later(people: Any) -> float:
        between = zip(blocks[None], blocks[people], strict=True)
        return round(1000 * statistics.median(b - a for a, b in between), 2)

    return {
        "first_page_seconds": round(first, 3),
        "page_seconds": {view: round(seconds, 3) for view, seconds in pages.items()},
        "first_token_ms": round(1000 * statistics.median(blocks[None]), 2),
        "first_token_later_ms": later(look_on),
        "first_token_later_following_ms": later(follow),
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.window", description=__doc__)
    parser.add_argument("--full", action="store_true", help=f"{FULL:,} turns instead of {QUICK:,}")
    parser.add_argument("--kib", type=int, default=0, metavar="N", help="begin each request with so many KiB of text")
    parser.add_argument("--wait", action="store_true", help="let all samples wait for a step")
    parser.add_argument("--json", type=output_file, metavar="FILE", help="also write the numbers to this file")
    options = parser.parse_args()
    count = FULL if options.full else QUICK
    with tempfile.TemporaryDirectory() as folder:
        prompt = text(random.Random(1), 256 * options.kib)[: 1024 * options.kib]
        run = write_run(Path(folder), count, prompt, trains=not options.wait)
        with closing(Ledger(run / "ledger.sqlite")) as ledger:
            ready = ledger.samples.ready_count()
        found = measure(run)
    print(json.dumps(found, indent=1))
    if options.json:
        report = {"machine": describe_machine(), "turns": count, "kib": options.kib, "ready": ready, **found}
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
