"""Sandboxes by docker or podman, through their command lines.

Guarantees beyond `agentrl.sandbox.interface`: nobody but the server's settings and a task's spec chooses an image, and no
image is fetched while a lease waits. `stop` returns when the engine confirms that the container is gone, whatever became of
its command line; `Container.sweep` removes what an earlier pool left, found by a label. The engine's log has no copy of what
is said. Programs may write below ``/work``, ``/tmp`` and ``/dev/shm``, which lie in memory and have a half, a quarter and a
quarter of `Limits.disk_mib`; all processes together get ``memory_mib`` plus ``disk_mib``.

One command line per sandbox, ``run``, carries all calls to the supervisor, which the container runs as its first process.
The image needs Python 3.8 and what the commands use.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from asyncio.subprocess import PIPE
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from agentrl.exceptions import InfraError, InvalidError
from agentrl.processes import Processes, ProcessLedger
from agentrl.sandbox.bubblewrap import refuse_nonsense
from agentrl.sandbox.interface import HOME, Door, Limits, Mount, SandboxSpec
from agentrl.sandbox.probe import CHECKED, prove
from agentrl.sandbox.supervised import CODE, CODE_INSIDE, ROOT_INSIDE, SupervisedSandbox, command
from agentrl.sandbox.unix_socket import bound_at

logger = logging.getLogger(__name__)
Engine = Literal["docker", "podman"]
POOL_LABEL = "agentrl.pool"
IMAGE = re.compile(r"[a-z0-9][A-Za-z0-9._/:@-]{0,254}")
RUNTIME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
USER = "1000:1000"
PYTHON = "python3"
FORWARDED = (
    *("PATH", "HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "DBUS_SESSION_BUS_ADDRESS"),
    *("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH", "CONTAINER_HOST"),
)
"""Variables that the engine's command line gets; the container gets none."""
CONTROL_S = 60.0
REMOVED_SECONDS = 60.0
POLL_SECONDS = 0.1
GONE = ("no such container", "no container with")
BUSY = "already in progress"
DOOR_PORT = 20_000
DOOR_ANSWER = b"through the door\n"
THROUGH_DOOR = f"import socket; c = socket.create_connection(('127.0.0.1', {DOOR_PORT}), 20); print(c.makefile().readline(), end='')"


@dataclass(frozen=True, slots=True)
class ContainerSettings:
    """How containers are started.

    Attributes:
        engine: whose command line is used.
        image: if the spec names none; it must be on this machine.
        runtime: of the engine, for example ``runsc``; None for the engine's own.
        environment: of which the command line gets `FORWARDED`.
    """

    engine: Engine
    image: str
    runtime: str | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ), repr=False)


class Container:
    """Implements `agentrl.sandbox.interface.Provider`."""

    def __init__(self, settings: ContainerSettings) -> None:
        self.name = settings.engine
        self._settings = settings
        self._env = {name: settings.environment[name] for name in FORWARDED if name in settings.environment}

    async def check(self) -> None:
        """Prove that the engine serves, that the image is here, and that a container's walls and limits hold."""
        name, image, runtime = self.name, self._settings.image, self._settings.runtime
        self._program()
        _check_name(IMAGE, image, "an image", "sandbox image")
        asked = (
            ("version", "--format", "{{.Server.Version}}") if name == "docker" else ("info", "--format", "{{.Host.Os}}")
        )
        code, said = await self._engine(*asked)
        if code != 0:
            raise InfraError(
                f"{name} does not serve: {_last(said)}; start it, or choose another provider", code="no_engine"
            )
        if runtime is not None and name == "docker":
            _check_name(RUNTIME, runtime, "a runtime", "sandbox runtime")
            code, said = await self._engine("info", "--format", "{{json .Runtimes}}")
            if code != 0 or runtime not in json.loads(said):
                raise InfraError(
                    f"docker knows no runtime {runtime}; register it in its daemon.json and restart it",
                    code="no_runtime",
                )
        code, said = await self._engine("image", "inspect", "--format", "{{.Id}}", image)
        if code != 0:
            raise InfraError(f"image {image} is not here; fetch it with: {name} pull {image}", code="no_image")
        with tempfile.TemporaryDirectory(prefix="agentrl-check-") as folder:
            await self._attack(Path(folder))

    async def sweep(self, pool: str) -> int:
        """Remove the containers that an earlier server of this pool left; return how many there were."""
        code, said = await self._engine(
            "ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={POOL_LABEL}={pool}"
        )
        if code != 0:
            raise InfraError(f"{self.name} does not list containers: {_last(said)}", code="engine_failed")
        parts = said.split()
        for part in parts:
            await self._remove(part)
        return len(parts)

    async def start(self, spec: SandboxSpec, processes: Processes) -> SupervisedSandbox:
        """Start a container; see `agentrl.sandbox.interface.Provider.start`."""
        refuse_nonsense(replace(spec, image=None))
        name = f"agentrl-{secrets.token_hex(12)}"
        argv = self._argv(spec, name, processes.pool)
        try:
            process = await processes.spawn(argv, env=self._env, stdin=PIPE, stdout=PIPE, stderr=PIPE)
        except BaseException:
            await asyncio.shield(self._remove(name))
            raise

        async def end() -> None:
            try:
                await self._remove(name)
            finally:
                if process.returncode is None:
                    process.kill()
                await process.wait()

        sandbox = SupervisedSandbox(process, spec.env, end)
        try:
            await sandbox.begin()
        except BaseException:
            await asyncio.shield(sandbox.stop())
            raise
        return sandbox

    def _program(self) -> str:
        """Return where the engine's command line is.

        Raises:
            InfraError: it is not installed.
        """
        if (program := shutil.which(self.name, path=self._env.get("PATH", os.defpath))) is None:
            raise InfraError(
                f"there is no {self.name} on PATH; install it, or choose another provider", code="no_engine"
            )
        return program

    def _argv(self, spec: SandboxSpec, name: str, pool: str) -> list[str]:
        """Return the command line that starts a container with the supervisor in it.

        Raises:
            InvalidError: a name or a path in the spec cannot be passed on.
        """
        limits = spec.limits
        argv = [self._program(), "run", "--rm", "--interactive", "--name", name, "--label", f"{POOL_LABEL}={pool}"]
        argv += ["--pull", "never", "--log-driver", "none", "--no-healthcheck", "--network", "none"]
        argv += ["--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--user", USER, "--read-only"]
        argv += [*_bounds(limits), "--workdir", HOME, "--hostname", "sandbox", "--entrypoint", PYTHON]
        if self._settings.runtime is not None:
            _check_name(RUNTIME, self._settings.runtime, "a runtime", "sandbox runtime")
            argv += ["--runtime", self._settings.runtime]
        mounts = [Mount(CODE, CODE_INSIDE), *spec.mounts]
        mounts += [Mount(_opened(door), _door_inside(door.port)) for door in spec.doors]
        for mount in mounts:
            argv += [
                "--mount",
                f"type=bind,source={_plain(mount.host.resolve())},target={_plain(mount.inside)},readonly",
            ]
        image = spec.image or self._settings.image
        _check_name(IMAGE, image, "an image", "image")
        supervisor = command(
            PYTHON, {"RLIMIT_NOFILE": limits.open_files}, {door.port: _door_inside(door.port) for door in spec.doors}
        )
        # Neither engine's `run` needs more to tell the image from an option than that an image begins with a letter or digit.
        return [*argv, "--", image, *supervisor[1:]]

    async def _remove(self, container: str) -> None:
        """Remove a container by its name or id, and wait until it is gone.

        Raises:
            InfraError: the engine does not confirm it; call again.
        """
        deadline = time.monotonic() + REMOVED_SECONDS
        while True:
            code, said = await self._engine("rm", "--force", "--volumes", container)
            if any(text in said.lower() for text in GONE) or (code == 0 and BUSY not in said.lower()):
                return
            if BUSY not in said.lower() or time.monotonic() > deadline:
                raise InfraError(
                    f"{self.name} does not remove container {container}: {_last(said)}", code="engine_failed"
                )
            await asyncio.sleep(POLL_SECONDS)

    async def _engine(self, *argv: str) -> tuple[int, str]:
        """Run a short command of the engine; return its exit code and what it printed."""
        process = await asyncio.create_subprocess_exec(
            self._program(), *argv, env=self._env, stdin=asyncio.subprocess.DEVNULL, stdout=PIPE, stderr=PIPE
        )
        try:
            async with asyncio.timeout(CONTROL_S):
                output, errors = await process.communicate()
        except TimeoutError as error:
            raise InfraError(f"{self.name} {argv[0]} does not end; look at the engine", code="engine_failed") from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode is not None
        return process.returncode, output.decode(errors="replace") if process.returncode == 0 else (
            output + errors
        ).decode(errors="replace")

    async def _attack(self, folder: Path) -> None:
        """Start a container and try its walls, its limits and a door; remove it."""
        path = folder / "door"
        server = await asyncio.start_unix_server(_greet, sock=bound_at(path))
        ledger = ProcessLedger(folder / "check.sqlite")
        processes = Processes(ledger)
        try:
            sandbox = await self.start(SandboxSpec(CHECKED, doors=[Door(DOOR_PORT, path)]), processes)
            try:
                result = await sandbox.execute([PYTHON, "-c", THROUGH_DOOR], timeout_s=CONTROL_S)
                if result.output != DOOR_ANSWER:
                    raise InfraError(
                        f"{self.name}: a door does not lead to its socket; with runsc, register it with"
                        f" --host-uds=open. It said: {_last(result.output.decode(errors='replace'))}",
                        code="check_failed",
                    )
                await prove(sandbox, CHECKED, self.name)
            finally:
                await sandbox.stop()
            if await self.sweep(processes.pool):
                raise InfraError(f"{self.name}: a stopped container was still there", code="check_failed")
        finally:
            await processes.end()
            ledger.close()
            server.close()


def _bounds(limits: Limits) -> list[str]:
    """Return the options that hold a container within its limits."""
    quarter = limits.disk_mib * 2**20 // 4
    memory = f"{limits.memory_mib + limits.disk_mib}m"
    files = limits.open_files
    owner = USER.replace(":", ",gid=")
    return [
        *("--memory", memory, "--memory-swap", memory, "--cpus", f"{limits.cpus:g}"),
        *("--pids-limit", str(limits.processes), "--ulimit", f"nofile={files}:{files}", "--ulimit", "core=0:0"),
        *("--tmpfs", f"{HOME}:rw,exec,nosuid,nodev,size={2 * quarter},mode=0755,uid={owner}"),
        *("--tmpfs", f"/tmp:rw,exec,nosuid,nodev,size={quarter},mode=1777", "--shm-size", f"{quarter}b"),
    ]


def _check_name(pattern: re.Pattern[str], text: str, what: str, setting: str) -> None:
    """Refuse a name that an engine could take for something else.

    Raises:
        InvalidError: it is none.
    """
    if not pattern.fullmatch(text):
        raise InvalidError(f"{text!r} is not a name of {what}; correct the {setting}", code="bad_image")


def _opened(door: Door) -> Path:
    """Return a door's socket, to which the container's user may connect from now on.

    Raises:
        InvalidError: other users of this machine could connect, too.
    """
    folder = door.socket.parent
    if folder.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise InvalidError(
            f"other users can enter {folder}; put the socket of a door into a folder of mode 0700", code="bad_spec"
        )
    door.socket.chmod(0o666)
    return door.socket


def _door_inside(port: int) -> str:
    return f"{ROOT_INSIDE}/doors/{port}"


def _plain(path: Path | str) -> str:
    """Return a path that can stand in an option of comma-separated fields.

    Raises:
        InvalidError: it cannot.
    """
    text = str(path)
    if any(item in text for item in ',"\n'):
        raise InvalidError(f"the path {text!r} has a comma, a quote or a newline; rename it", code="bad_spec")
    return text


def _last(said: str) -> str:
    """Return the last line of what an engine printed, which is its error."""
    lines = [line for line in said.splitlines() if line.strip()]
    return lines[-1][-300:] if lines else "it printed nothing"


async def _greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(DOOR_ANSWER)
    await writer.drain()
    writer.close()
