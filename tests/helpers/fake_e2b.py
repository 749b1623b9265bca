"""A host of rented machines that speaks the part of E2B's protocol that `agentrl.sandbox.remote` uses, with faults on demand.

A machine is a folder. It knows the programs that the provider starts, word by word, and refuses others; the relay and the
supervisor run as plain processes of this machine, everything else only looks right. `FakeE2B.faults` holds what goes wrong,
in order: the next request whose path ends with the first item's ``path`` gets its ``kind``.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import os
import shutil
import signal
import struct
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from agentrl.sandbox import remote
from lab.testkit.engine import serve

KEY = "e2b_stand_in_key"
LOCAL_SUPERVISOR = Path(__file__).with_name("local_supervisor.py")
ENVELOPE = struct.Struct(">BI")


@dataclass
class Fault:
    """What happens to one request.

    Attributes:
        path: end of its path.
        kind: a status such as ``429``, or ``drop before`` or ``drop after`` it was carried out, or ``hang``, or ``gone``.
        retry_after: of a status.
    """

    path: str
    kind: str
    retry_after: str | None = None


@dataclass
class FakeMachine:
    """A rented machine."""

    id: str
    token: str
    asked: dict[str, Any]
    folder: Path
    extended: list[int] = field(default_factory=list)
    starts: list[list[str]] = field(default_factory=list)
    sizes: list[str] = field(default_factory=list)
    processes: list[asyncio.subprocess.Process] = field(default_factory=list)

    @property
    def metadata(self) -> dict[str, str]:
        return self.asked["metadata"]

    def python(self, *words: str) -> list[str]:
        """Return what starts Python with the programs that were uploaded, and without this machine's variables."""
        return [
            "env",
            "-i",
            f"PYTHONPATH={self.local(remote.PROGRAMS)}",
            "PATH=/usr/bin:/bin",
            sys.executable,
            "-S",
            *words,
        ]

    def local(self, path: str) -> str:
        return str(self.folder) + path if path.startswith(("/opt/", "/run/")) else path


class FakeE2B:
    """The host: its machines, those that ended, and what it was asked for."""

    def __init__(self, folder: Path) -> None:
        self.url = ""
        self.machines: dict[str, FakeMachine] = {}
        self.ended: list[FakeMachine] = []
        self.faults: list[Fault] = []
        self.heard: list[str] = []
        self.keys: set[str] = set()
        self.page = 100
        self.unshare_fails = ""
        self._folder = folder
        self._numbers = itertools.count(1)
        self._tasks: set[asyncio.Task[Any]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or break it."""
        if scope["type"] != "http":
            while (await receive())["type"] != "lifespan.shutdown":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        request = Request(scope, receive)
        self.heard.append(f"{request.method} {request.url.path}")
        await request.body()
        fault = self.faults.pop(0) if self.faults and request.url.path.endswith(self.faults[0].path) else None
        if fault is None:
            await (await self._answer(request))(scope, receive, send)
        elif fault.kind == "hang":
            await asyncio.Event().wait()
        elif fault.kind.startswith("drop"):
            if fault.kind == "drop after":
                answer = await self._answer(request)
                if isinstance(answer, StreamingResponse):
                    async for _ in answer.body_iterator:
                        break
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"10")]})
        elif fault.kind == "gone":
            await self.end(request.headers["E2b-Sandbox-Id"])
            await (await self._answer(request))(scope, receive, send)
        else:
            headers = {"Retry-After": fault.retry_after} if fault.retry_after else None
            answer = JSONResponse({"code": int(fault.kind), "message": "a fault"}, int(fault.kind), headers)
            await answer(scope, receive, send)

    async def end(self, machine_id: str) -> None:
        """End a machine with all that runs in it."""
        machine = self.machines.pop(machine_id)
        self.ended.append(machine)
        for process in machine.processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            await process.wait()
        shutil.rmtree(machine.folder)

    async def close(self) -> None:
        """End all machines."""
        for machine_id in list(self.machines):
            await self.end(machine_id)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _answer(self, request: Request) -> Response:
        path = request.url.path
        if path.startswith("/inside/"):
            return await self._inside(request, path.removeprefix("/inside"))
        self.keys.add(request.headers.get("X-API-Key", ""))
        if request.headers.get("X-API-Key") != KEY:
            return refused(401, "Invalid API key")
        match request.method, path.strip("/").split("/"):
            case "POST", ["sandboxes"]:
                return await self._create(await request.json())
            case "GET", ["v2", "sandboxes"]:
                return self._list(request)
            case "DELETE", ["sandboxes", machine_id]:
                if machine_id not in self.machines:
                    return refused(404, "Sandbox not found")
                await self.end(machine_id)
                return Response(status_code=204)
            case "POST", ["sandboxes", machine_id, "timeout"]:
                if machine_id not in self.machines:
                    return refused(404, "Sandbox not found")
                self.machines[machine_id].extended.append((await request.json())["timeout"])
                return Response(status_code=204)
        return refused(400, f"the stand-in knows no {request.method} {path}")

    async def _create(self, asked: dict[str, Any]) -> Response:
        known = {"templateID", "timeout", "autoPause", "secure", "allow_internet_access", "metadata"}
        if set(asked) != known:
            return refused(400, f"unknown or missing fields: {sorted(set(asked) ^ known)}")
        if asked["templateID"] == "missing":
            return refused(404, "template 'missing' not found")
        number = next(self._numbers)
        machine = FakeMachine(f"m{number}", f"token{number}", asked, self._folder / f"m{number}")
        machine.folder.mkdir()
        self.machines[machine.id] = machine
        made = {"sandboxID": machine.id, "templateID": asked["templateID"], "clientID": "c", "envdVersion": "0.6.4"}
        return JSONResponse({**made, "envdAccessToken": machine.token, "domain": None}, 201)

    def _list(self, request: Request) -> Response:
        assert request.query_params["state"] == "running,paused"
        wanted = {
            unquote(name): unquote(values[0]) for name, values in parse_qs(request.query_params["metadata"]).items()
        }
        found = [each.id for each in self.machines.values() if wanted.items() <= each.metadata.items()]
        begin = int(request.query_params.get("nextToken", "0"))
        more = begin + self.page < len(found)
        page: list[dict[str, str]] = [{"sandboxID": each} for each in found[begin : begin + self.page]]
        return JSONResponse(page, headers={"x-next-token": str(begin + self.page)} if more else None)

    async def _inside(self, request: Request, path: str) -> Response:
        machine = self.machines.get(request.headers["E2b-Sandbox-Id"])
        if machine is None:
            return refused(502, "The sandbox was not found")
        assert "X-API-Key" not in request.headers, "the key went to a machine"
        root = "Basic " + base64.b64encode(b"root:").decode()
        if request.headers["X-Access-Token"] != machine.token or request.headers["Authorization"] != root:
            return refused(401, "unauthenticated")
        if path == "/files" and request.query_params["username"] == "root":
            target = Path(machine.local(request.query_params["path"]))
            target.parent.mkdir(parents=True, exist_ok=True)
            async with request.form() as form:
                target.write_bytes(await form["file"].read())  # pyright: ignore[reportAttributeAccessIssue]
            return JSONResponse([{"path": str(target), "name": target.name, "type": "file"}])
        if path == "/process.Process/Start":
            assert request.headers["Content-Type"] == "application/connect+json"
            assert request.headers["Connect-Protocol-Version"] == "1"
            body = await request.body()
            flags, length = ENVELOPE.unpack_from(body)
            assert (flags, length) == (0, len(body) - ENVELOPE.size)
            asked = json.loads(body[ENVELOPE.size :])["process"]
            return await self._start(machine, [asked["cmd"], *asked["args"]])
        return refused(404, f"the stand-in knows no {path}")

    async def _start(self, machine: FakeMachine, argv: list[str]) -> Response:
        machine.starts.append(argv)
        known = len(remote.RELAY)
        if tuple(argv[:known]) != remote.RELAY or argv[known] not in ("serve", "call", "send"):
            return refused(400, f"the stand-in runs no {argv}")
        what, folder, *rest = argv[known:]
        if what == "serve":
            rest = self._supervisor(machine, rest)
            (machine.folder / "run").mkdir(exist_ok=True)
        local = [*machine.python("-m", "agentrl.sandbox.inside.relay"), what, machine.local(folder), *rest]
        process = await asyncio.create_subprocess_exec(
            *local, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        machine.processes.append(process)
        events: asyncio.Queue[bytes | None] = asyncio.Queue()
        task = asyncio.create_task(follow(process, events))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return StreamingResponse(taken(events), media_type="application/connect+json")

    def _supervisor(self, machine: FakeMachine, argv: list[str]) -> list[str]:
        """Check every word that builds the walls; return what runs in its place."""
        walls = ["unshare", *remote.NAMESPACES, "--", "/bin/sh", "-ec", remote.SET_UP, "sh"]
        assert argv[: len(walls)] == walls
        machine.sizes = argv[len(walls) : len(walls) + 5]
        *python, settings = argv[len(walls) + 5 :]
        assert tuple(python) == (*remote.PYTHON, "agentrl.sandbox.inside.supervisor")
        if self.unshare_fails:
            return ["/bin/sh", "-c", f"echo {self.unshare_fails} >&2; exit 1"]
        return [*machine.python(str(LOCAL_SUPERVISOR)), str(machine.folder), settings]


def refused(code: int, message: str) -> Response:
    return JSONResponse({"code": code, "message": message}, code)


def envelope(fields: dict[str, Any], flags: int = 0) -> bytes:
    message = json.dumps(fields).encode()
    return ENVELOPE.pack(flags, len(message)) + message


async def follow(process: asyncio.subprocess.Process, events: asyncio.Queue[bytes | None]) -> None:
    """Put what a program does into the queue; it runs on if nobody listens."""

    async def read(name: str, stream: asyncio.StreamReader | None) -> None:
        assert stream is not None
        while data := await stream.read(1 << 15):
            events.put_nowait(envelope({"event": {"data": {name: base64.b64encode(data).decode()}}}))

    events.put_nowait(envelope({"event": {"start": {"pid": process.pid}}}))
    events.put_nowait(envelope({"event": {"keepalive": {}}}))
    await asyncio.gather(read("stdout", process.stdout), read("stderr", process.stderr))
    code = await process.wait()
    end: dict[str, Any] = {"exited": code >= 0, "status": f"exit status {code}"}
    events.put_nowait(envelope({"event": {"end": {**end, **({"exitCode": code} if code else {})}}}))
    events.put_nowait(envelope({}, 2))
    events.put_nowait(None)


async def taken(events: asyncio.Queue[bytes | None]) -> AsyncIterator[bytes]:
    while (event := await events.get()) is not None:
        yield event


@contextlib.asynccontextmanager
async def fake_e2b() -> AsyncIterator[FakeE2B]:
    """Serve a host without machines on loopback."""
    # The relay's socket lies in a machine's folder, and an address has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="e2b-", dir="/tmp") as folder:
        host = FakeE2B(Path(folder))
        async with serve(host) as url:
            host.url = url
            try:
                yield host
            finally:
                await host.close()
