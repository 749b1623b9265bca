"""The workers of the runtime process: processes that answer requests for replies, beside the one that leads.

Guarantees: each worker has a socket of its own on the gateway's port, and the kernel spreads the connections over them. A
worker that dies, or answers nothing for ``OPENCLAW_FROZEN_SECONDS``, is started again, at once and then less and less often.
Until it serves, at the start too, the leading process accepts its connections, so that none waits. A worker ends at once when the leading
process does. On a stop the workers end first, as a runtime process does, and the leading process answers them until
then. Their counts outlive them: `SummedMetrics` is what all processes have counted since the leading one began.

`openclaw.gateway.shared` says what the processes share, and `openclaw.runtime.worker` is a worker.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import socket
import sys
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.multiprocess import MultiProcessCollector

from groundwork.private_files import private_folder
from groundwork.process import ChildProcess, spawn
from groundwork.start_timeline import GATEWAY, Step, mark
from openclaw.config.runtime import RuntimeConfig
from openclaw.gateway import under_way
from openclaw.gateway.app import GuardedApp
from openclaw.gateway.auth import Client, Keyring
from openclaw.gateway.channel import Channel, ChannelLostError
from openclaw.gateway.chat import CLOSE_SECONDS, ChatService
from openclaw.gateway.shared import Lead, announce
from openclaw.runtime.process import PORT_PATIENCE_SECONDS, free_port, write_stack
from openclaw.runtime.where import own_import_paths, requests_path

if TYPE_CHECKING:
    from openclaw.runtime.serve import GatewayServer

logger = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.1, 30.0
LONG_LIFE_SECONDS = 60.0
"""A worker that lived this long is started again at once."""
START_SECONDS = 60.0
"""For which workers that are ready wait for the others at the first start; the leading process serves meanwhile."""
LOOKS = 4
"""At a worker that does not answer, before it counts as frozen."""
POLL_SECONDS = 0.02
END_SECONDS = 5.0
PROGRAM = "openclaw.runtime.worker"
METRICS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"


def workers_folder(ledger: str) -> Path:
    """Return the folder in which the workers beside ``ledger`` count."""
    return Path(f"{ledger}.workers")


class Worker:
    """One process, and the leading process's end of the channel to it."""

    def __init__(self, number: int, child: ChildProcess, lead: Lead, channel: Channel, gone: asyncio.Event) -> None:
        self.number = number
        self.child = child
        self.lead = lead
        self.channel = channel
        self.gone = gone
        self.ready = False


class Workers:
    """Owns the workers, their sockets, and the folder of their counts."""

    def __init__(self, config: RuntimeConfig, registry: CollectorRegistry, program: str = PROGRAM) -> None:
        """Prepare for the workers of ``config``; ``registry`` has the leading process's own metrics, ``program`` is a worker's module."""
        self._config = config
        self._program = program
        self._folder = workers_folder(config.ledger or "")
        self.metrics = SummedMetrics(registry, self._folder)
        self._workers: dict[int, Worker] = {}
        self._sockets: list[list[socket.socket]] = []
        self._deputies: dict[int, list[asyncio.Server]] = {}
        self._all_ready = asyncio.Event()
        self._stopping = False

    def alive(self) -> int:
        """Return how many workers serve."""
        return sum(worker.ready for worker in self._workers.values())

    def bind(self) -> None:
        """Take the port.

        Raises:
            OSError: another process has it.
        """
        host = self._config.host
        port = free_port(host, self._config.port, PORT_PATIENCE_SECONDS)  # or it would be shared with another run
        self._sockets = [bound(host, port) for _ in range(self._config.workers)]

    async def run(
        self,
        server: GatewayServer,
        app: GuardedApp,
        service: ChatService,
        keyring: Keyring,
        topk: int,
        stop: asyncio.Event,
    ) -> None:
        """Keep the workers serving until ``stop``, then end them and ``server``.

        Args:
            server: of this process.
            app: its application.
            service: which leads.
            keyring: with the keys of episodes.
            topk: see `ChatService`.
            stop: set when all are to end.
        """
        announce(service, self._tell)
        app.reloader.on_reloaded = lambda: self._tell("reload")
        app.desk.elsewhere = self._stop_response
        shutil.rmtree(self._folder, ignore_errors=True)
        private_folder(self._folder)
        await self._until(lambda: server.started or server.should_exit)
        for number in range(len(self._sockets)):
            await self._stand_in(number, server)
        mark(self._config.run_dir, GATEWAY, Step.LISTENS)
        keepers = [
            asyncio.create_task(self._keep(number, server, lambda: Lead(service, app, keyring), topk))
            for number in range(len(self._sockets))
        ]
        asyncio.get_running_loop().call_later(START_SECONDS, self._all_ready.set)
        try:
            stopped = asyncio.create_task(stop.wait())
            await asyncio.wait({stopped, *keepers}, return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            self._end()
            await asyncio.gather(*keepers)
        finally:
            server.should_exit = True
            shutil.rmtree(self._folder, ignore_errors=True)

    async def _stop_response(self, turn: str, client: Client) -> dict[str, Any] | None:
        for worker in list(self._workers.values()):
            with suppress(ChannelLostError):
                if stopped := await worker.channel.ask("stop_response", turn, client):
                    return stopped
        return None

    def _tell(self, name: str, *args: Any) -> None:
        for worker in self._workers.values():
            worker.channel.tell(name, *args)

    def _end(self) -> None:
        """Let nobody connect any more, and end the workers."""
        self._stopping = True
        self._all_ready.set()
        for number in list(self._deputies):
            self._dismiss(number)
        for sock in [sock for sockets in self._sockets for sock in sockets]:
            sock.close()
        patience = self._config.grace_seconds + CLOSE_SECONDS
        for worker in self._workers.values():
            if worker.ready:
                worker.channel.tell("stop")
                asyncio.get_running_loop().call_later(patience, worker.channel.close)
            else:
                worker.channel.close()

    async def _keep(self, number: int, server: GatewayServer, lead: Callable[[], Lead], topk: int) -> None:
        """Keep one worker alive until `_end`."""
        loop = asyncio.get_running_loop()
        pause = 0.0
        while not self._stopping:
            begun = loop.time()
            worker = await self._start(number, lead(), topk)
            why = await self._until_gone(worker)
            del self._workers[number]
            self._all_ready.set()  # the others do not wait for one that cannot start
            if not self._stopping:
                await self._stand_in(number, server)
            await self._reap(worker)
            if self._stopping:
                return
            lived = loop.time() - begun
            pause = 0.0 if lived > LONG_LIFE_SECONDS else min(MAX_PAUSE_SECONDS, max(FIRST_PAUSE_SECONDS, pause * 2))
            server.metrics.worker_restarts.inc()
            logger.error(
                "worker %d %s (status %s); starting it again in %.1f s; requests under way: %s",
                *(number, why, worker.child.returncode, pause, self._lost_requests(number)),
            )
            with suppress(TimeoutError):
                await asyncio.wait_for(self._until(lambda: self._stopping), pause)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await asyncio.sleep(POLL_SECONDS)

    async def _start(self, number: int, lead: Lead, topk: int) -> Worker:
        """Start a worker; it serves once it says that it is ready."""
        ours, theirs = socket.socketpair()
        descriptors = [theirs.fileno(), *(sock.fileno() for sock in self._sockets[number])]
        command = [sys.executable, "-m", self._program, str(number), str(topk), *map(str, descriptors)]
        paths = os.pathsep.join(own_import_paths())
        count = RuntimeConfig.declared("gateway_workers").setting(len(self._sockets))
        environment = {**os.environ, **count, "PYTHONPATH": paths, METRICS_VARIABLE: str(self._folder)}
        try:
            child = spawn(command, env=environment, name=f"worker {number}", keeps=descriptors)
        finally:
            theirs.close()
        gone = asyncio.Event()
        functions = lead.functions()
        channel = lead.channel = Channel(functions, gone.set)
        worker = self._workers[number] = Worker(number, child, lead, channel, gone)
        functions["ready"] = lambda: self._ready(worker)
        await channel.open(ours)
        if self._stopping:
            channel.close()
        return worker

    async def _ready(self, worker: Worker) -> None:
        """Let a worker listen: at the first start once all are ready, so that each gets its share of the connections."""
        worker.ready = True
        if self.alive() == len(self._sockets):
            self._all_ready.set()
        await self._all_ready.wait()
        self._dismiss(worker.number)

    async def _until_gone(self, worker: Worker) -> str:
        """Return once a worker is gone, or has not answered for too long, and how that is called."""
        bound = self._config.frozen_seconds
        while not worker.gone.is_set():
            answered = asyncio.ensure_future(worker.channel.ask("ping")) if worker.ready else None
            for _ in range(LOOKS):
                with suppress(TimeoutError):
                    await asyncio.wait_for(worker.gone.wait(), bound / LOOKS)
                if worker.gone.is_set() or answered is None or answered.done():
                    break
            else:
                if not self._stopping:
                    await asyncio.to_thread(write_stack, worker.child.pid, Path(os.devnull))
                    worker.channel.close()
                    return f"was frozen: it has given no answer for {bound:g} s"
        return "ended"

    async def _reap(self, worker: Worker) -> None:
        """End the process of a worker that is gone, and give back what it held."""
        deadline = asyncio.get_running_loop().time() + END_SECONDS
        while self._stopping and worker.ready and worker.child.alive() and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(POLL_SECONDS)
        await asyncio.to_thread(worker.child.kill)
        await worker.lead.give_back()

    async def _stand_in(self, number: int, server: GatewayServer) -> None:
        """Accept the connections of a worker that is not there, until it serves."""
        if number not in self._deputies and server.started:
            self._deputies[number] = [await server.listen(sock=sock.dup()) for sock in self._sockets[number]]

    def _dismiss(self, number: int) -> None:
        for deputy in self._deputies.pop(number, ()):
            deputy.close()

    def _lost_requests(self, number: int) -> str:
        path = under_way.of_worker(requests_path(self._config.ledger or ""), number)
        names = [request.id for request in under_way.read(path)]
        under_way.delete(path)
        return ", ".join(names) or "none"


def bound(host: str, port: int) -> list[socket.socket]:
    """Return sockets that share a port with others of this user, one for each address of ``host``; none listens yet.

    Raises:
        OSError: another program has the port.
    """
    result = []
    for family, kind, protocol, _, address in socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    ):
        sock = socket.socket(family, kind, protocol)
        result.append(sock)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
    return result


class SummedMetrics(CollectorRegistry):
    """What all processes of the gateway have counted since the leading one began; gauges are this process's own."""

    def __init__(self, own: CollectorRegistry, folder: Path) -> None:
        """Add the counts in the workers' ``folder`` to this process's ``own``."""
        super().__init__()
        self._own = own
        self._folder = folder

    def collect(self) -> Iterable[Metric]:
        """Return the metrics."""
        families = {family.name: family for family in self._own.collect()}
        for family in MultiProcessCollector.merge([str(file) for file in self._folder.glob("*.db")]):
            if family.type != "gauge" and family.name in families:
                _add(families[family.name], family)
        return families.values()


def _add(family: Metric, other: Metric) -> None:
    """Add the values of another process's metric; labels that this process has not seen come last."""
    values: dict[tuple[str, Collection[tuple[str, str]]], float] = {
        (sample.name, frozenset(sample.labels.items())): sample.value for sample in other.samples
    }
    family.samples = [
        sample._replace(value=sample.value + values.pop((sample.name, frozenset(sample.labels.items())), 0.0))
        for sample in family.samples
    ]
    for (name, labels), value in values.items():
        family.add_sample(name, dict(labels), value)
