"""The policy engines as a rollout function sees them: one address, one engine per conversation, and an abort.

Guarantee: when `abort_until_idle` returns, no engine runs or holds a request.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import httpx

from slime.args import Arguments
from slime.exceptions import HttpStatusError
from slime.utils.http_utils import get, post
from slime.utils.types import Sample

logger = logging.getLogger(__name__)

ROUTING_HEADER = "X-SMG-Routing-Key"
ABORT_INTERVAL_SECONDS = 0.5
_WORD_SECONDS = 10.0
_TRIES = 3


def router_url(args: Arguments) -> str:
    """Return the base URL of the policy engines."""
    return f"http://{args.sglang_router_ip}:{args.sglang_router_port}"


def routing_headers(sample: Sample) -> dict[str, str] | None:
    """Return headers that send a session's requests, or else a group's, to the engine that cached their prefix."""
    if sample.session_id is not None:
        return {ROUTING_HEADER: str(sample.session_id)}
    if sample.group_index is not None:
        return {ROUTING_HEADER: f"group-{sample.group_index}"}
    return None


async def worker_urls(args: Arguments) -> list[str]:
    """Return the engines' URLs from the router, or the URL itself if it is a single engine."""
    try:
        workers = await get(f"{router_url(args)}/workers")
    except HttpStatusError as error:
        if error.status == 404:
            return [router_url(args)]
        raise
    return [worker["url"] for worker in workers["workers"]]


async def live_weight_version(args: Arguments) -> str:
    """Return the weight version that the engines report for new tokens."""
    urls = await worker_urls(args)
    return str((await get(f"{urls[0]}/model_info"))["weight_version"])


async def abort_until_idle(args: Arguments, finished: Callable[[], bool]) -> None:
    """Abort every request on every engine repeatedly, until ``finished`` holds and all engines are idle.

    Once is not enough, because an abort can overtake a request on its way to an engine.
    """
    urls = await worker_urls(args)
    next_word = time.monotonic() + _WORD_SECONDS
    while True:
        await asyncio.gather(*(_abort(url) for url in urls))
        deadline = time.monotonic() + ABORT_INTERVAL_SECONDS
        while True:
            await asyncio.sleep(0)
            if finished() and all(await asyncio.gather(*(_is_idle(url) for url in urls))):
                return
            if time.monotonic() >= deadline:
                break
            await asyncio.sleep(ABORT_INTERVAL_SECONDS / 50)
        if time.monotonic() >= next_word:
            next_word += _WORD_SECONDS
            logger.warning("still aborting requests on %s", ", ".join(urls))


async def _abort(url: str) -> None:
    try:
        await post(f"{url}/abort_request", {"abort_all": True}, max_retries=_TRIES)
    except httpx.TransportError as error:
        logger.warning("%s did not answer the abort (%s); assuming that it is down and runs nothing", url, error)


async def _is_idle(url: str) -> bool:
    try:
        answer: dict[str, Any] = await get(f"{url}/v1/loads?include=core", max_retries=_TRIES)
    except httpx.TransportError:
        return True
    except HttpStatusError as error:
        if error.status == 404:  # an engine without this route; this process's requests to it are finished
            return True
        raise
    return all(not load["num_running_reqs"] and not load["num_waiting_reqs"] for load in answer["loads"])
