"""``python -m agentrl.router``: one address for the pools of several machines, as one lease service.

Guarantees: a lease goes to the worker with the least load, or to the next one if that is full or gone. A lease id starts
with its worker's name, so a changed list of workers misroutes nothing, and a restarted router needs no memory. The same
``request_id`` gets the same lease. Used from one event loop; owns nothing but the leases that are being asked for. Errors of the
command are one line, with exit status 2 for bad input.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence

import httpx
from prometheus_client import CollectorRegistry, Counter

from agentrl.client import HttpLeases
from agentrl.exceptions import AgentError, CapacityError, InfraError, NotFoundError
from agentrl.leases.lease import Outcome, joined
from agentrl.protocol import (
    ROUTER_MARGIN_S,
    ROUTER_ROUTE_MARGIN_S,
    EvaluateRequest,
    Leased,
    LeaseRequest,
    LeaseService,
    Observation,
    PoolStatus,
    Released,
    Renewed,
    RenewRequest,
    ResetRequest,
    StepRequest,
    StepResult,
    Verdict,
)
from agentrl.web.app import create_app
from agentrl.web.options import KEY_VARIABLE, add_server_options, listen, read_key
from agentrl.web.serve import serve
from groundwork.command_line import CommandLine
from groundwork.exceptions import ConfigError
from groundwork.process import watch_lifeline

NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")
SEPARATOR = "."
STATUS_S = 2.0
"""How long a worker may take to tell its load before it counts as gone."""
KEPT_S = 60.0
"""How long a granted lease is remembered for a repeated request."""
PROG = "python -m agentrl.router"
PORT = 30210
CONFIG_EXIT = 2
UNREACHABLE_S = 5.0
"""How long a worker that cannot be reached is tried before the next one is."""


class Router:
    """Implements `agentrl.protocol.LeaseService` over workers by name."""

    def __init__(self, workers: Mapping[str, LeaseService], registry: CollectorRegistry) -> None:
        """Prepare; ``workers`` are those of `agentrl.protocol.LeaseService` by a name of `NAME`."""
        self._workers = dict(workers)
        self._promised = dict.fromkeys(workers, 0)
        self._requests: dict[str, asyncio.Task[Outcome[Leased]]] = {}
        self.granted = Counter("agentrl_router_leases", "Leases granted, by worker", ["worker"], registry=registry)
        self.passed_on = Counter(
            "agentrl_router_passed_on",
            "Leases that a worker could not grant, by the error's kind",
            ["worker", "kind"],
            registry=registry,
        )

    async def lease(self, request: LeaseRequest) -> Leased:
        """See `agentrl.protocol.LeaseService.lease`."""
        task = self._requests.get(request.request_id)
        if task is None:
            task = asyncio.create_task(self._grant(request), name=f"lease for {request.request_id}")
            self._requests[request.request_id] = task
            task.add_done_callback(lambda task: self._keep(request.request_id, task))
        ending = InfraError("the request was withdrawn, or the router is shutting down", code="withdrawn")
        return await joined(task, request.wait_s + ROUTER_ROUTE_MARGIN_S, ending)

    async def renew(self, lease_id: str, request: RenewRequest) -> Renewed:
        """See `agentrl.protocol.LeaseService.renew`."""
        worker, inner = self._find(lease_id)
        return await worker.renew(inner, request)

    async def reset(self, lease_id: str, request: ResetRequest) -> Observation:
        """See `agentrl.protocol.LeaseService.reset`."""
        worker, inner = self._find(lease_id)
        return await worker.reset(inner, request)

    async def step(self, lease_id: str, request: StepRequest) -> StepResult:
        """See `agentrl.protocol.LeaseService.step`."""
        worker, inner = self._find(lease_id)
        return await worker.step(inner, request)

    async def evaluate(self, lease_id: str, request: EvaluateRequest) -> Verdict:
        """See `agentrl.protocol.LeaseService.evaluate`."""
        worker, inner = self._find(lease_id)
        return await worker.evaluate(inner, request)

    async def release(self, lease_id: str) -> Released:
        """See `agentrl.protocol.LeaseService.release`."""
        if (request := self._requests.get(lease_id)) is not None:
            if not request.done():
                request.cancel()
                return Released(found=True)
            outcome = None if request.cancelled() else request.result()
            lease_id = outcome.lease_id if isinstance(outcome, Leased) else lease_id
        worker, inner = self._find(lease_id)
        return await worker.release(inner)

    async def status(self) -> PoolStatus:
        """Return the sums over all workers, and the status of each."""
        workers = await self._loads()
        known = [status for status in workers.values() if status is not None]
        sums = {
            name: sum(getattr(status, name) for status in known)
            for name in PoolStatus.model_fields
            if name not in ("accepting", "workers")
        }
        return PoolStatus(**sums, accepting=any(status.ready for status in known), workers=workers)

    async def _grant(self, request: LeaseRequest) -> Outcome[Leased]:
        """Ask every worker for a lease at once, then wait where the queue is shortest; return the lease or an error."""
        asked = time.monotonic()
        refusal: AgentError = InfraError("no worker answers; start one", code="no_worker", retryable=True)
        names = _by_load(await self._loads(), self._promised)
        for waits in (False, True):
            for name in list(names):
                left = max(0.0, request.wait_s - (time.monotonic() - asked)) if waits else 0.0
                if waits and not left:
                    break
                try:
                    return await self._ask(name, request, left, asked)
                except AgentError as error:
                    self.passed_on.labels(worker=name, kind=error.kind).inc()
                    if not _is_full(error):
                        names.remove(name)
                    refusal = min(refusal, error, key=_rank)
        return refusal

    async def _ask(self, name: str, request: LeaseRequest, wait_s: float, asked: float) -> Leased:
        self._promised[name] += 1
        try:
            leased = await self._workers[name].lease(request.model_copy(update={"wait_s": wait_s}))
        finally:
            self._promised[name] -= 1
        self.granted.labels(worker=name).inc()
        found = {"lease_id": f"{name}{SEPARATOR}{leased.lease_id}", "queued_s": time.monotonic() - asked}
        return leased.model_copy(update=found)

    async def _loads(self) -> dict[str, PoolStatus | None]:
        """Return the status of every worker; None for one that does not answer."""

        async def load(worker: LeaseService) -> PoolStatus | None:
            try:
                async with asyncio.timeout(STATUS_S):
                    return await worker.status()
            except (AgentError, TimeoutError):
                return None

        found = await asyncio.gather(*map(load, self._workers.values()))
        return dict(zip(self._workers, found, strict=True))

    def _find(self, lease_id: str) -> tuple[LeaseService, str]:
        name, _, inner = lease_id.partition(SEPARATOR)
        if name not in self._workers:
            raise NotFoundError(f"this router has no worker {name!r}; take a new lease", code="unknown_worker")
        return self._workers[name], inner

    def _keep(self, request_id: str, task: asyncio.Task[Outcome[Leased]]) -> None:
        """Remember a granted lease for a while; forget a refusal, so that the request may be sent again."""
        granted = not task.cancelled() and task.exception() is None and isinstance(task.result(), Leased)
        forget = asyncio.get_running_loop().call_later
        forget(KEPT_S if granted else 0.0, self._requests.pop, request_id, None)


def _by_load(loads: Mapping[str, PoolStatus | None], promised: Mapping[str, int]) -> list[str]:
    """Return the names of the workers that answer and grant leases, the least loaded first."""
    ready = {name: status for name, status in loads.items() if status is not None and status.ready}

    def load(name: str) -> tuple[float, str]:
        status = ready[name]
        return (status.used + status.waiting + promised[name]) / status.slots, name

    return sorted(ready, key=load)


def _is_full(error: AgentError) -> bool:
    """Return whether a wait can cure the error."""
    return isinstance(error, CapacityError) and error.retryable


def _rank(error: AgentError) -> int:
    """Return how much an error says about the whole: full pools most, a pool that failed least."""
    if _is_full(error):
        return 0
    return {"capacity": 1, "not_found": 2}.get(error.kind, 4 if error.code == "no_worker" else 3)


def build_parser() -> CommandLine:
    """Return the parser of the command line."""
    parser = CommandLine(
        prog=PROG,
        description=f"Route leases to several pools. Workers that need a key must have the router's own, {KEY_VARIABLE}.",
    )
    parser.add_argument(
        "--worker",
        action="append",
        required=True,
        type=worker,
        metavar="NAME=URL",
        help="a pool; its name becomes a part of its lease ids, so keep it; repeat the option for more pools",
    )
    add_server_options(parser, PORT)
    return parser


def worker(text: str) -> tuple[str, str]:
    """Parse ``NAME=URL``.

    Raises:
        argparse.ArgumentTypeError: the text is something else.
    """
    name, _, url = text.partition("=")
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        parsed = httpx.URL()
    if not NAME.fullmatch(name) or parsed.scheme not in ("http", "https") or not parsed.host:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=URL; write for example gpu1=http://10.0.0.1:30200")
    return name, url


def main(argv: Sequence[str] | None = None) -> int:
    """Run the router with the options ``argv``; return the exit status."""
    watch_lifeline()
    options = build_parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        asyncio.run(run(options))
    except ConfigError as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return CONFIG_EXIT
    return 0


async def run(options: argparse.Namespace) -> None:
    """Serve until a signal.

    Raises:
        ConfigError: an option is wrong.
    """
    key = read_key(options.host, os.environ)
    if len(names := [name for name, _ in options.worker]) > len(set(names)):
        raise ConfigError(f"--worker: a name is used twice in {', '.join(names)}; give each pool its own")
    listening = listen(options.host, options.port)
    workers = {
        name: HttpLeases(url, key, margin_s=ROUTER_MARGIN_S, unreachable_s=UNREACHABLE_S)
        for name, url in options.worker
    }
    registry = CollectorRegistry()

    async def end() -> None:
        for item in workers.values():
            await item.close()

    try:
        app = create_app(Router(workers, registry), registry, key=key, most_body_bytes=options.max_body_bytes)
        await serve(app, listening, PROG.removeprefix("python -m "), end)
    finally:
        listening.close()


if __name__ == "__main__":
    sys.exit(main())
