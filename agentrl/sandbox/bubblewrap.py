"""Sandboxes by bubblewrap: namespaces of an unprivileged user, without a daemon and without images.

Guarantees: those of `agentrl.sandbox.interface`, proved by `check` before the first sandbox starts; there is no fallback
without a sandbox. Programs see the system's ``/usr`` and a minimal ``/etc``, both read-only. They may write below ``/work``,
``/tmp`` and ``/dev/shm``, which lie in memory and have a half, a quarter and a quarter of `Limits.disk_mib`. All processes
together get ``memory_mib`` plus ``disk_mib`` of memory where control groups can be made. `Bubblewrap.weaker` says what
bounds are weaker without. A server that runs as root gives each sandbox an unprivileged user of its own.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import secrets
import shutil
import signal
from asyncio.subprocess import PIPE
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from agentrl.exceptions import InfraError, InvalidError
from agentrl.processes import Processes
from agentrl.sandbox import cgroups
from agentrl.sandbox.interface import HOME, SandboxSpec
from agentrl.sandbox.seccomp import filter_file
from agentrl.sandbox.self_test import MAX_TERMINALS, prove
from agentrl.sandbox.supervised import CODE, CODE_INSIDE, ENVIRONMENT, ROOT_INSIDE, SupervisedSandbox, command

logger = logging.getLogger(__name__)
BWRAP = "bwrap"
PYTHON = "/usr/bin/python3"
UIDS = range(65_000, 65_534)
"""Debian's policy reserves these for nobody; containers map them."""
STAGE = Path("/run/agentrl-stage")
ETC = Path(__file__).resolve().parent / "etc"
ETC_OF_HOST = ("alternatives", "fonts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "ssl/certs")
RESERVED = ("/proc", "/dev", "/sys", "/usr", "/etc", ROOT_INSIDE)
HIDDEN = tuple(Path("/proc", name) for name in ("keys", "key-users", "timer_list", "kallsyms", "kcore"))
"""What `/proc` tells of the whole machine beyond its size."""
MIN_PORT = 1024
FLAGS = (
    *("--unshare-all", "--unshare-user", "--uid", "1000", "--gid", "1000", "--disable-userns", "--cap-drop", "ALL"),
    *("--die-with-parent", "--new-session", "--clearenv", "--as-pid-1", "--hostname", "sandbox"),
)
GROUPS = range(100, 103)
"""Descriptors that lead commands into their control groups; the supervisor has them, and no command. No other may have these numbers."""
# Gives up the keyring of whoever started the server, and opens the way into the groups.
JOIN = f"""
import ctypes, os, platform, sys
number = {{"x86_64": 250, "aarch64": 219}}.get(platform.machine(), -1)
ctypes.CDLL(None).syscall(number, 1, None)
divider = sys.argv.index("--")
for at, path in zip(range({GROUPS.start}, {GROUPS.stop}), sys.argv[1:divider]):
    try:
        opened = os.open(path, os.O_WRONLY)
    except OSError as error:
        sys.exit(f"control group {{path}}: {{error.strerror}}")
    os.dup2(opened, at)
    os.close(opened)
try:
    os.execvp(sys.argv[divider + 1], sys.argv[divider + 1:])
except OSError as error:
    sys.exit(f"exec: {{sys.argv[divider + 1]}}: not found ({{error.strerror}})")
"""
TERMINALS = f"mount -t devpts -o newinstance,ptmxmode=0666,mode=620,max={MAX_TERMINALS} agentrl"
# Root makes what it may read reachable for the unprivileged user, in a mount namespace that ends with the sandbox.
SHOW = f"""set -e
stage=$1; shift; number=0
mount -t tmpfs -o mode=755,size=256k agentrl "$stage"
mkdir "$stage/terminals"; {TERMINALS} "$stage/terminals"
while [ "$1" != -- ]; do
    if [ -d "$1" ]; then mkdir "$stage/$number"; else : >"$stage/$number"; fi
    mount --bind -- "$1" "$stage/$number"
    number=$((number + 1)); shift
done
shift; exec "$@"
"""
# Others become root of a namespace of their own for that, since nobody else may bound the number of terminals.
OWN = (
    *("--unshare-user", "--uid", "0", "--gid", "0", "--cap-add", "CAP_SYS_ADMIN", "--cap-add", "CAP_SETFCAP"),
    *("--die-with-parent", "--dev-bind", "/", "/"),
)
OWN_SHOW = f'{TERMINALS} /dev/pts && exec "$@"'
HINTS = {
    "exec: bwrap: not found": "install bubblewrap with scripts/setup_bubblewrap.sh",
    "Unknown option": "this bubblewrap is older than 0.8; install a newer one",
    f"{PYTHON}: No such file": "install the system's Python 3.8 or newer with scripts/setup_bubblewrap.sh",
    "No permissions to creat": "user namespaces are forbidden; see 'Needs' in instructions/sandbox.md",
    "setting up uid map": "AppArmor forbids user namespaces; see 'Needs' in instructions/sandbox.md",
    "Unknown option --seccomp": "this bubblewrap is built without seccomp; install the system's own",
    "mount: /dev/pts": "terminals cannot be bounded; see 'Needs' in instructions/sandbox.md",
    "loopback": "AppArmor forbids user namespaces; see 'Needs' in instructions/sandbox.md",
    "Creating new namespace failed": "user namespaces are forbidden; see 'Needs' in instructions/sandbox.md",
    "unshare: ": "as root in a container, run it as an ordinary user, or with the capability SYS_ADMIN",
    "Can't mount proc": "the container masks /proc; see 'Needs' in instructions/sandbox.md",
    "setpriv: ": "this root cannot change its user; run the server as an ordinary user",
    "Can't find source path": "a mount or the checkout is not readable for the user that runs the sandbox",
}


class Bubblewrap:
    """The provider; make one for each process, since each checks the machine once."""

    name = "bubblewrap"

    def __init__(self) -> None:
        self.places = cgroups.find()
        self._uids = itertools.cycle(UIDS)
        # Servers side by side begin at different users, so that their sandboxes rarely share one.
        for _ in range(secrets.randbelow(len(UIDS))):
            next(self._uids)
        self._checking = asyncio.Lock()
        self._checked = False

    def weaker(self) -> list[str]:
        """Return what is bounded less than `Limits` says on this machine, one sentence each."""
        sentences = {
            "memory": "memory is bounded for each process (RLIMIT_DATA), not for all together, and shared memory is not",
            "pids": "processes are bounded by RLIMIT_NPROC, which before Linux 5.14 counts all of this user",
            "cpu": "cores are not bounded",
        }
        return [text for name, text in sentences.items() if name not in self.places.parents]

    async def check(self) -> None:
        """Prove on this machine that the promises hold; see `agentrl.sandbox.interface.Provider.check`."""
        async with self._checking:
            if self._checked:
                return
            if left := await cgroups.sweep(self.places):
                logger.warning("removed %d control groups of sandboxes that an earlier server left", left)
            for text in self.weaker():
                logger.warning("no control group here: %s", text)
            broken = [promise for promise in await prove(self) if not promise.holds]
            if broken:
                result = "; ".join(f"{promise.text}: {promise.found}" for promise in broken)
                raise InfraError(f"sandboxes do not hold on this machine: {result}", code="sandbox_leaks")
            self._checked = True

    async def sweep(self, pool: str) -> int:
        """Return 0: all that a sandbox is made of is in the ledger of processes; see the interface."""
        return 0

    async def start(self, spec: SandboxSpec, processes: Processes) -> SupervisedSandbox:
        """Start a sandbox, after `check`; see `agentrl.sandbox.interface.Provider.start`."""
        refuse_nonsense(spec)
        await self.check()
        return await self.start_unchecked(spec, processes)

    async def start_unchecked(self, spec: SandboxSpec, processes: Processes) -> SupervisedSandbox:
        """Start a sandbox for the self-test.

        Raises:
            InfraError: it does not start, with what to do about it.
        """
        if shutil.which(BWRAP) is None:
            raise InfraError(f"there is no bubblewrap; {HINTS['exec: bwrap: not found']}", code="no_bubblewrap")
        uid = next(self._uids) if os.geteuid() == 0 else None
        if uid is not None:
            for door in spec.doors:
                os.chown(door.socket, uid, uid)
        rules = filter_file(GROUPS.stop)
        try:
            group = cgroups.make(self.places, spec.limits)
        except BaseException:
            os.close(rules)
            raise

        async def end() -> None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            await group.remove()

        try:
            process = await processes.spawn(
                self._argv(spec, uid, group, rules),
                env={"PATH": ENVIRONMENT["PATH"]},
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                pass_fds=(rules,),
            )
        except BaseException:
            await group.remove()
            raise
        finally:
            os.close(rules)
        sandbox = SupervisedSandbox(process, spec.env, end)
        try:
            await sandbox.begin()
        except InfraError as error:
            await sandbox.stop()
            hint = next((hint for text, hint in HINTS.items() if text in error.message), None)
            raise InfraError(f"{error.message}{f'; {hint}' if hint else ''}", code=error.code) from error
        except BaseException:
            await sandbox.stop()
            raise
        return sandbox

    def _argv(self, spec: SandboxSpec, uid: int | None, group: cgroups.Group, rules: int) -> list[str]:
        """Return the command line: open the groups, show the mounts, become unprivileged, bubblewrap, supervisor."""
        shown = [CODE, ETC, *(mount.host.resolve() for mount in spec.mounts), *(door.socket for door in spec.doors)]
        entrances = group.entrances()
        join = [PYTHON, "-I", "-S", "-B", "-c", JOIN, *entrances, "--"]
        supervisor = self._supervisor(spec, GROUPS[: len(entrances)])
        if uid is None:
            show = [BWRAP, *OWN, "--", "/bin/sh", "-c", OWN_SHOW, "show"]
            return [*join, *show, *_bwrap(spec, [str(path) for path in shown], "/dev/pts", rules), *supervisor]
        STAGE.mkdir(mode=0o755, exist_ok=True)
        show = ["unshare", "--mount", "--propagation", "private", "/bin/sh", "-c", SHOW, "show", str(STAGE)]
        drop = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--inh-caps=-all"]
        staged = [f"{STAGE}/{number}" for number in range(len(shown))]
        bwrap = _bwrap(spec, staged, f"{STAGE}/terminals", rules)
        return [*join, *show, *map(str, shown), "--", *drop, *bwrap, *supervisor]

    def _supervisor(self, spec: SandboxSpec, groups: Sequence[int]) -> list[str]:
        limits = {"RLIMIT_NOFILE": spec.limits.open_files}
        if "memory" not in self.places.parents:
            limits["RLIMIT_DATA"] = spec.limits.memory_mib * 2**20
        if "pids" not in self.places.parents:
            limits["RLIMIT_NPROC"] = spec.limits.processes
        doors = {door.port: _door_inside(door.port) for door in spec.doors}
        return command(PYTHON, limits, doors, groups)


def refuse_nonsense(spec: SandboxSpec) -> None:
    """Refuse a spec that makes no sense here.

    Raises:
        InvalidError: says why.
    """
    limits = spec.limits
    if spec.image is not None:
        raise InvalidError("bubblewrap has no images; leave the image out, or use a container", code="bad_spec")
    if min(limits.memory_mib, limits.processes, limits.disk_mib, limits.open_files) < 4 or limits.cpus <= 0:
        raise InvalidError(f"{limits} leaves no room for a program; give at least 4 of each", code="bad_spec")
    ports = [door.port for door in spec.doors]
    if len(set(ports)) < len(ports) or any(not MIN_PORT <= port < 65_536 for port in ports):
        raise InvalidError(f"the doors' ports {ports} must differ, and be {MIN_PORT} to 65535", code="bad_spec")
    for door in spec.doors:
        if not door.socket.is_socket():
            raise InvalidError(f"{door.socket} is not a socket; open the door on the host first", code="bad_spec")
    for mount in spec.mounts:
        inside = os.path.normpath(mount.inside)
        if inside != mount.inside or not inside.startswith("/") or inside in ("/", HOME, "/tmp"):
            raise InvalidError(f"{mount.inside} is not an absolute path of a mount's own", code="bad_spec")
        if any(inside == item or inside.startswith(f"{item}/") for item in RESERVED):
            raise InvalidError(f"{mount.inside} lies in a folder of the sandbox itself", code="bad_spec")
        if not mount.host.exists():
            raise InvalidError(f"there is no {mount.host} to mount", code="bad_spec")


def _bwrap(spec: SandboxSpec, shown: Sequence[str], terminals: str, rules: int) -> list[str]:
    """Return bubblewrap's command line up to the program.

    Args:
        spec: of the sandbox.
        shown: the host's paths, as `Bubblewrap._argv` has them.
        terminals: of the host, a file system for this sandbox alone.
        rules: descriptor of the filter of system calls.
    """
    code, etc, *rest = shown
    mounts, doors = rest[: len(spec.mounts)], rest[len(spec.mounts) :]
    disk = spec.limits.disk_mib * 2**20
    argv = [BWRAP, *FLAGS, "--seccomp", str(rules), "--ro-bind", "/usr", "/usr"]
    for name in ("bin", "lib", "lib32", "lib64", "libx32", "sbin"):
        path = Path("/", name)
        if path.is_symlink():
            argv += ["--symlink", os.readlink(path), f"/{name}"]
        elif path.is_dir():
            argv += ["--ro-bind", f"/{name}", f"/{name}"]
    for name in ("passwd", "group", "hosts", "nsswitch.conf"):
        argv += ["--ro-bind", f"{etc}/{name}", f"/etc/{name}"]
    for name in ETC_OF_HOST:
        argv += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    argv += [
        "--proc",
        "/proc",
        *(word for path in HIDDEN if path.exists() for word in ("--ro-bind", "/dev/null", str(path))),
        "--dev",
        "/dev",
        "--dev-bind",
        terminals,
        "/dev/pts",
        "--size",
        str(disk // 4),
        "--tmpfs",
        "/dev/shm",
        "--remount-ro",
        "/dev",
    ]
    argv += ["--perms", "1777", "--size", str(disk // 4), "--tmpfs", "/tmp", "--size", str(disk // 2), "--tmpfs", HOME]
    argv += ["--ro-bind", code, CODE_INSIDE]
    for mount, host in zip(spec.mounts, mounts, strict=True):
        argv += ["--ro-bind", host, mount.inside]
    for door, host in zip(spec.doors, doors, strict=True):
        argv += ["--ro-bind", host, _door_inside(door.port)]
    return [*argv, "--chdir", HOME, "--remount-ro", "/", "--"]


def _door_inside(port: int) -> str:
    return f"{ROOT_INSIDE}/doors/{port}"
