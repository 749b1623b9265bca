"""Sandboxes in rented virtual machines, at E2B or another host that speaks its protocol.

Guarantees beyond `agentrl.sandbox.interface`: a machine ends by itself, a bounded time after its last use, even if nobody
is left to end it; `E2BProvider.sweep` ends what an earlier pool left. Programs run as user 1000 in namespaces of their own
inside the machine, with no capability and no way to one, a control group that bounds memory, cores and processes, a file
system that is read-only but for a bounded one under `HOME`, /tmp and /dev/shm, and only the loopback network. A command runs at most
once, however often the connection breaks.

What it refuses: `SandboxSpec.doors`, since a socket of this host is out of reach, and mounts. It needs a template with
Python, util-linux (``unshare``, ``setpriv``) and version 2 of control groups; the machine must have at least the memory of
the limits. What it cannot prove is what the host of the machines does.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import logging
import math
import re
import secrets
import time
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrl.exceptions import AgentError, InfraError, InvalidError
from agentrl.processes import Processes
from agentrl.sandbox.e2b_api import E2BApi, Machine, RetryBudget, gone
from agentrl.sandbox.inside.relay import GONE
from agentrl.sandbox.inside.wire import MAX_BODY, Frames, frame
from agentrl.sandbox.interface import HOME, Limits, SandboxSpec
from agentrl.sandbox.probe import CHECKED, prove
from agentrl.sandbox.supervised import SupervisorCalls
from groundwork.exceptions import ConfigError

logger = logging.getLogger(__name__)
KEY_VARIABLE = "E2B_API_KEY"
DOMAIN_VARIABLE = "E2B_DOMAIN"
TEMPLATE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,127}")
POOL_LABEL, SANDBOX_LABEL = "agentrl-pool", "agentrl-sandbox"
PROGRAMS = "/opt/agentrl/inside.zip"
FOLDER = "/run/agentrl"
USER = 1000
START_S = 120.0
CONTROL_S = 60.0
PYTHON = ("env", "-i", f"PYTHONPATH={PROGRAMS}", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "python3", "-S", "-m")
RELAY = (*PYTHON, "agentrl.sandbox.inside.relay")
BASIC_ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": HOME, "LANG": "C.UTF-8"}
NAMESPACES = ("--mount", "--pid", "--fork", "--mount-proc", "--net", "--ipc", "--uts", "--kill-child")
SET_UP = """
group=/sys/fs/cgroup/agentrl
mkdir "$group"
echo '+cpu +memory +pids' > /sys/fs/cgroup/cgroup.subtree_control
echo "$1" > "$group/memory.max"
echo "$2" > "$group/cpu.max"
echo "$3" > "$group/pids.max"
if [ -e "$group/memory.swap.max" ]; then echo 0 > "$group/memory.swap.max"; fi
echo 0 > "$group/cgroup.procs"
python3 -S -c 'import fcntl, socket, struct
fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sH14x", b"lo", 0x49))'
mkdir -p /work /mnt /dev/shm
mount -t tmpfs -o "size=$4,mode=0755,nosuid,nodev" tmpfs /mnt
mkdir -m 0755 /mnt/work
mkdir -m 1777 /mnt/tmp /mnt/shm
chown "$5:$5" /mnt/work
mount --bind /mnt/work /work
mount --bind /mnt/tmp /tmp
mount --bind /mnt/shm /dev/shm
mount -o remount,bind,ro /
for each in /mnt /run /dev/mqueue /sys/fs/cgroup; do
  if [ -d "$each" ]; then mount -t tmpfs -o ro,mode=0755,size=4k tmpfs "$each"; fi
done
cd /work
user=$5
shift 5
exec setpriv --reuid="$user" --regid="$user" --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all "$@"
"""


@dataclass(frozen=True, slots=True)
class E2BSettings:
    """Where the machines are rented.

    Attributes:
        key: of the account; only in memory, and in no message.
        domain: of the host.
        template: that a machine is started from, if the spec names no image.
        lifetime_s: seconds that a machine lives after its last use.
        url: of the interface, if it is not ``https://api.DOMAIN``.
        inside_url: of the service in every machine, if it is not ``https://PORT-ID.DOMAIN``.
        retry_budget: of failing requests.
    """

    key: str = field(repr=False)
    domain: str = "e2b.app"
    template: str = "base"
    lifetime_s: int = 1800
    url: str | None = None
    inside_url: str | None = None
    retry_budget: RetryBudget = field(default_factory=RetryBudget)

    @classmethod
    def read(cls, environment: Mapping[str, str], template: str | None = None) -> E2BSettings:
        """Return the settings of the variables ``E2B_API_KEY`` and ``E2B_DOMAIN``.

        Raises:
            ConfigError: there is no key.
        """
        if not (key := environment.get(KEY_VARIABLE)):
            raise ConfigError(f"sandboxes of e2b need a key; set {KEY_VARIABLE}, or choose another provider")
        return cls(key, environment.get(DOMAIN_VARIABLE) or "e2b.app", template or "base")


class E2BProvider:
    """Implements `agentrl.sandbox.interface.Provider`; `close` it."""

    name = "e2b"

    def __init__(self, settings: E2BSettings) -> None:
        self._settings = settings
        self._api = E2BApi(
            settings.key,
            settings.domain,
            url=settings.url,
            inside_url=settings.inside_url,
            retry_budget=settings.retry_budget,
        )

    async def close(self) -> None:
        """Close the connections to the host, which the provider's sandboxes need, too: stop them first.

        A machine that was not stopped runs until its lifetime is over.
        """
        await self._api.close()

    async def check(self) -> None:
        """Start a machine, and prove inside it that the limits and walls hold.

        It cannot prove how the host separates machines, and what it keeps of them.

        Raises:
            InfraError: the key is wrong, a machine does not start, or a promise does not hold.
        """
        sandbox = await self._start(SandboxSpec(), {SANDBOX_LABEL: secrets.token_hex(16)}, CHECKED)
        try:
            await prove(sandbox, CHECKED, self.name)
        finally:
            await sandbox.stop()
        logger.info("e2b: limits and walls inside a machine are proven; those between machines are the host's word")

    async def sweep(self, pool: str) -> int:
        """End the machines that an earlier server of this pool left; return how many there were.

        Raises:
            InfraError: the host does not answer.
        """
        found = await self._api.find({POOL_LABEL: pool})
        for item in found:
            await self._api.end(item)
        return len(found)

    async def start(self, spec: SandboxSpec, processes: Processes) -> E2BSandbox:
        """Start a machine and the supervisor in it; see `agentrl.sandbox.interface.Provider.start`."""
        if spec.doors:
            raise InvalidError(
                "an e2b sandbox cannot reach a socket of this host; use bubblewrap, docker or podman for doors",
                code="no_doors",
            )
        if spec.mounts:
            raise InvalidError(
                "an e2b sandbox has no mounts; build the files into its template, or write them with write_file",
                code="no_mounts",
            )
        labels = {POOL_LABEL: processes.pool, SANDBOX_LABEL: secrets.token_hex(16)}
        return await self._start(spec, labels, spec.limits)

    async def _start(self, spec: SandboxSpec, labels: dict[str, str], limits: Limits) -> E2BSandbox:
        template = spec.image or self._settings.template
        if not TEMPLATE.fullmatch(template):
            raise InvalidError(f"{template!r} is not a name of a template", code="bad_image")
        try:
            began = time.monotonic()
            machine = await self._api.create(template, lifetime_s=self._settings.lifetime_s, metadata=labels)
            sandbox = E2BSandbox(self._api, machine, spec.env, self._settings.lifetime_s, began)
            await self._api.upload(machine, PROGRAMS, programs())
            await self._api.start(machine, [*RELAY, "serve", FOLDER, *_isolated(limits)])
            await sandbox.ready()
            return sandbox
        except BaseException:
            await asyncio.shield(self._forget(labels))
            raise

    async def _forget(self, labels: dict[str, str]) -> None:
        """End a machine that is not needed; if the host does not answer, its lifetime ends it."""
        try:
            for item in await self._api.find({SANDBOX_LABEL: labels[SANDBOX_LABEL]}):
                await self._api.end(item)
        except AgentError as error:
            logger.warning("an e2b sandbox that did not start is left to its lifetime: %s", error)


class E2BSandbox(SupervisorCalls):
    """A machine with a supervisor; implements `agentrl.sandbox.interface.Sandbox`."""

    def __init__(self, api: E2BApi, machine: Machine, env: Mapping[str, str], lifetime_s: int, began: float) -> None:
        """Take over a machine that was created with ``lifetime_s`` at ``began`` (monotonic seconds)."""
        self._api = api
        self._machine = machine
        self.env = {**BASIC_ENV, **env}
        self._lifetime_s = lifetime_s
        self._ends = began + lifetime_s
        self._numbers = itertools.count(1)
        self._done: list[int] = []
        self._stopped = False
        self._stopping = asyncio.Lock()

    async def ready(self) -> None:
        """Wait until the supervisor serves.

        Raises:
            InfraError: it does not; with what it said.
        """
        await self._answer(0, START_S)

    async def stop(self) -> None:
        """End the machine; see `agentrl.sandbox.interface.Sandbox.stop`.

        Raises:
            InfraError: the host did not confirm it; call again.
        """
        async with self._stopping:
            if not self._stopped:
                self._ends = -math.inf
                await self._api.end(self._machine.id)
                self._stopped = True

    async def _ask(self, fields: dict[str, Any], body: bytes, seconds: float) -> tuple[dict[str, Any], bytes]:
        """See `SupervisorCalls._ask`."""
        if len(body) > MAX_BODY:
            raise InvalidError(f"{len(body)} bytes are more than the {MAX_BODY} of a call", code="too_large")
        number = next(self._numbers)
        try:
            await self._hand_over(number, fields, body, seconds)
            answer, data = await self._answer(number, seconds + CONTROL_S)
        except asyncio.CancelledError:
            if fields["do"] == "execute":
                await asyncio.shield(self._cancel(number))
            raise
        if (error := answer.get("error")) is not None:
            raise InvalidError(error, code="refused")
        return answer, data

    async def _hand_over(self, number: int, fields: dict[str, Any], body: bytes, seconds: float) -> None:
        """Upload a call, to a machine that lives long enough for it."""
        now = time.monotonic()
        if self._ends == -math.inf:
            raise gone()
        if self._ends - now < seconds + self._lifetime_s / 2:
            lifetime = math.ceil(seconds) + self._lifetime_s
            await self._api.extend(self._machine, lifetime)
            self._ends = now + lifetime
        await self._api.upload(self._machine, f"{FOLDER}/{number}", frame({**fields, "id": number}, body))

    async def _answer(self, number: int, seconds: float) -> tuple[dict[str, Any], bytes]:
        done = list(self._done)
        ended = await self._api.run(
            self._machine, [*RELAY, "call", FOLDER, str(number), *map(str, done)], seconds=seconds
        )
        self._done = [item for item in self._done if item not in done] + [number]
        if ended.exit_code == GONE:
            said = ended.stderr.decode(errors="replace").strip()
            raise InfraError(f"the supervisor of the e2b sandbox ended: {said}", code="sandbox_gone")
        frames = Frames().feed(ended.stdout) if ended.exit_code == 0 else []
        if len(frames) != 1:
            said = ended.stderr.decode(errors="replace").strip()[-500:]
            raise InfraError(f"the e2b sandbox cannot run its relay ({ended.exit_code}): {said}", code="e2b_failed")
        return frames[0]

    async def _cancel(self, of: int) -> None:
        """End a command that nobody waits for any more."""
        number = next(self._numbers)
        try:
            await self._hand_over(number, {"do": "cancel", "of": of}, b"", 0.0)
            await self._api.run(self._machine, [*RELAY, "send", FOLDER, str(number)], seconds=CONTROL_S)
        except AgentError as error:
            logger.warning("a cancelled command runs on to its time limit: %s", error)


def programs() -> bytes:
    """Return what runs inside, `agentrl.sandbox.inside`, as an archive that Python imports from."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in ("agentrl", "agentrl/sandbox"):
            archive.writestr(f"{package}/__init__.py", "")
        for program in sorted((Path(__file__).parent / "inside").glob("*.py")):
            archive.write(program, f"agentrl/sandbox/inside/{program.name}")
    return packed.getvalue()


def _isolated(limits: Limits) -> list[str]:
    """Return the words that start the supervisor behind walls."""
    settings = {"limits": {"RLIMIT_NOFILE": limits.open_files}, "doors": {}, "groups": []}
    sizes = (
        str(limits.memory_mib + limits.disk_mib << 20),
        f"{round(limits.cpus * 100_000)} 100000",
        str(limits.processes),
        str(limits.disk_mib << 20),
        str(USER),
    )
    supervisor = (*PYTHON, "agentrl.sandbox.inside.supervisor", json.dumps(settings))
    return ["unshare", *NAMESPACES, "--", "/bin/sh", "-ec", SET_UP, "sh", *sizes, *supervisor]
