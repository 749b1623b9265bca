"""Sandboxes without walls, for tests of what runs in them: a folder each, whose parts stand for /work, /tmp and /tests."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from agentrl.exceptions import InvalidError
from agentrl.processes import Processes
from agentrl.sandbox.interface import HOME, ExecResult, SandboxSpec

PLACES = re.compile(r"(?<![\w./])/(work|tmp|tests)\b")


@dataclass
class PlainSandbox:
    """Programs find /work, /tmp and /tests only by arguments and variables, in which the folders' names are replaced."""

    folder: Path
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    groups: list[int] = field(default_factory=list)
    stopped: bool = False

    def here(self, text: str) -> str:
        return PLACES.sub(lambda found: str(self.folder / found[1]), text)

    async def execute(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str = HOME,
        most_output: int = 65_536,
    ) -> ExecResult:
        began = time.monotonic()
        named = {"PATH": os.defpath, "HOME": HOME, "LANG": "C.UTF-8", **self.env, **(env or {})}
        with tempfile.TemporaryFile() as output:
            process = await asyncio.create_subprocess_exec(
                *map(self.here, argv),
                env={name: self.here(text) for name, text in named.items()},
                cwd=self.here(cwd),
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            self.groups.append(process.pid)
            timed_out = False
            try:
                async with asyncio.timeout(timeout_s):
                    await process.communicate(stdin)
            except TimeoutError:
                timed_out = True
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
            size = output.seek(0, os.SEEK_END)
            output.seek(0)
            kept = output.read(most_output)
        code = None if timed_out else process.returncode
        return ExecResult(code, kept, size - len(kept), timed_out, time.monotonic() - began)

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        target = Path(self.here(path))
        if ".." in target.parts or not target.is_relative_to(self.folder):
            raise InvalidError(f"{path} is outside of {HOME} and /tmp", code="invalid_path")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        target.chmod(mode)

    async def read_file(self, path: str, *, most_bytes: int = 1 << 20) -> bytes:
        target = Path(self.here(path))
        if not target.is_file() or target.stat().st_size > most_bytes:
            raise InvalidError(f"{path} is not a file of at most {most_bytes} bytes", code="invalid_path")
        return target.read_bytes()

    async def end_commands(self) -> None:
        for group in self.groups:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        for entry in Path("/proc").iterdir():  # without walls, programs in a session of their own outlive the group
            with suppress(OSError):
                if entry.name.isdigit() and (entry / "cwd").readlink().is_relative_to(self.folder):
                    os.kill(int(entry.name), signal.SIGKILL)

    async def stop(self) -> None:
        self.stopped = True
        await self.end_commands()
        shutil.rmtree(self.folder, ignore_errors=True)


@dataclass
class PlainProvider:
    """Starts `PlainSandbox` es in a folder, and remembers them."""

    folder: Path
    name: str = "plain"
    mounts: bool = True
    started: list[PlainSandbox] = field(default_factory=list)
    specs: list[SandboxSpec] = field(default_factory=list)

    async def check(self) -> None:
        return None

    async def sweep(self, pool: str) -> int:
        return 0

    async def start(self, spec: SandboxSpec, processes: Processes) -> PlainSandbox:
        if spec.mounts and not self.mounts:
            raise InvalidError("these sandboxes have no mounts", code="no_mounts")
        sandbox = PlainSandbox(Path(tempfile.mkdtemp(dir=self.folder)), spec.env)
        for name in ("work", "tmp"):
            (sandbox.folder / name).mkdir()
        for mount in spec.mounts:
            if mount.inside == "/tests":
                shutil.copytree(mount.host, sandbox.folder / "tests")
        self.started.append(sandbox)
        self.specs.append(spec)
        return sandbox
