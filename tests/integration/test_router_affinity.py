"""The real router before two stand-in engines: a session stays on the engine that has its prefix, its pictures arrive, and an engine
that is started again gets no request until it has the weights."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, Request

from groundwork.network import find_available_port
from lab.testkit.engine import serve
from slime.args import Arguments
from slime.backends.sglang_utils.router import serve_behind_one_address
from slime.ray.engine_group import RouterWorkers
from slime.rollout.engine_access import live_weight_version, router_url, routing_headers, worker_urls
from slime.utils import http_utils
from slime.utils.http_utils import post
from slime.utils.types import Sample

SESSIONS, TURNS = 8, 4
SCREENSHOT = "data:image/png;base64," + "A" * 3_000_000


def stand_in(seen: list[dict[str, Any]]) -> FastAPI:
    """What the router asks an engine, and a list of the requests."""
    app = FastAPI()
    facts: dict[str, Any] = {
        "model_path": "none",
        "tp_size": 1,
        "dp_size": 1,
        "weight_version": "3",
        "is_generation": True,
    }
    for path in ("/health", "/health_generate", "/server_info", "/model_info"):
        app.get(path)(lambda: facts)

    @app.post("/generate")
    async def generate(request: Request) -> dict[str, Any]:
        seen.append(await request.json())
        if seen[-1].get("text") == "slow":
            await app.state.release.wait()
        return {"text": "x", "meta_info": {}}

    app.state.release = asyncio.Event()
    return app


async def test_an_engine_that_is_set_apart_finishes_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_utils, "_http_client", None)
    seen: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
    apps = [stand_in(each) for each in seen]
    args = Arguments(run_dir=str(tmp_path), router="auto", sglang_router_request_timeout_secs=60)
    async with serve(apps[0]) as one, serve(apps[1]) as two:
        address = await asyncio.to_thread(serve_behind_one_address, args, "policy", [one, two])
        assert address.router is not None
        try:
            args.sglang_router_ip, args.sglang_router_port = address.host, address.port
            key = routing_headers(Sample(session_id="a"))
            slow = asyncio.create_task(post(f"{router_url(args)}/generate", {"text": "slow"}, 1, key))
            while not any(seen):
                await asyncio.sleep(0.01)
            has, other = (0, 1) if seen[0] else (1, 0)
            workers = RouterWorkers(router_url(args), [one, two])
            assert await asyncio.to_thread(workers.apart, has)
            assert await worker_urls(args) == [[one, two][other]]
            await post(f"{router_url(args)}/generate", {"text": "x"}, 1, key)
            apps[has].state.release.set()
            assert (await slow)["text"] == "x"
            assert [len(each) for each in (seen[has], seen[other])] == [1, 1]
        finally:
            address.router.stop()


async def test_the_address_waits_for_the_last_engine(tmp_path: Path) -> None:
    args = Arguments(run_dir=str(tmp_path), router="auto", sglang_router_request_timeout_secs=60)
    late = f"http://127.0.0.1:{find_available_port()}"
    async with serve(stand_in([])) as one:
        starting = asyncio.create_task(asyncio.to_thread(serve_behind_one_address, args, "policy", [one, late]))
        log = tmp_path / "logs" / "router-policy.log"
        while not (log.is_file() and late in log.read_text()):
            assert not starting.done(), "the address is given before the router has tried the second engine"
            await asyncio.sleep(0.05)
        async with serve(stand_in([]), port=int(late.rpartition(":")[2])):
            address = await starting
            assert address.router is not None
            try:
                args.sglang_router_ip, args.sglang_router_port = address.host, address.port
                assert sorted(await worker_urls(args)) == sorted([one, late])
            finally:
                address.router.stop()


async def test_a_session_stays_on_its_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_utils, "_http_client", None)
    first: list[dict[str, Any]] = []
    second: list[dict[str, Any]] = []
    args = Arguments(run_dir=str(tmp_path), router="auto", sglang_router_request_timeout_secs=60)
    async with serve(stand_in(first)) as one, serve(stand_in(second)) as two:
        address = await asyncio.to_thread(serve_behind_one_address, args, "policy", [one, two])
        assert address.router is not None
        try:
            args.sglang_router_ip, args.sglang_router_port = address.host, address.port
            assert sorted(await worker_urls(args)) == sorted([one, two])
            assert await live_weight_version(args) == "3"
            samples = [Sample(session_id=f"session {n}") if n % 2 else Sample(group_index=n) for n in range(SESSIONS)]
            for turn in range(TURNS):
                for number, sample in enumerate(samples):
                    images = [SCREENSHOT if turn == 0 else "data:,x"]
                    payload = {"input_ids": [turn, number], "sampling_params": {}, "image_data": images}
                    await post(f"{router_url(args)}/generate", payload, 3, routing_headers(sample))
            counts = len(first), len(second)
            workers = RouterWorkers(router_url(args), [one, two])
            await asyncio.to_thread(workers.lost, [0])
            for sample in samples:
                await post(f"{router_url(args)}/generate", {"text": "x"}, 3, routing_headers(sample))
            assert (len(first), len(second)) == (counts[0], counts[1] + SESSIONS)
            del second[counts[1] :]
            await asyncio.to_thread(workers.answers, [0])
            assert sorted(await worker_urls(args)) == sorted([one, two])
        finally:
            address.router.stop()
    places: dict[int, set[int]] = defaultdict(set)
    for place, seen in enumerate((first, second)):
        for request in seen:
            turn, number = request["input_ids"]
            places[number].add(place)
            assert request["image_data"] == [SCREENSHOT if turn == 0 else "data:,x"]
    assert len(first) + len(second) == SESSIONS * TURNS
    assert all(len(found) == 1 for found in places.values()), places
