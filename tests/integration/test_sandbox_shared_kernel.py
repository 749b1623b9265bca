"""What one kernel keeps for all: no program in a real sandbox reaches it, takes it up, or ends what serves the sandbox."""

from __future__ import annotations

import ctypes
import platform
import shutil
from pathlib import Path

import pytest

from agentrl.sandbox.bubblewrap import Bubblewrap
from agentrl.sandbox.seccomp import FORBIDDEN
from agentrl.sandbox.self_test import MAX_TERMINALS
from agentrl.sandbox.supervised import SupervisedSandbox
from tests.helpers.sandboxes import REASON, installed, line, python, sandbox
from tests.helpers.shell_agents import MEMORY_OF_NOBODY

REPOSITORY = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not installed(REPOSITORY), reason=REASON)
COLUMN = 0 if platform.machine() == "x86_64" else 1
ADD_KEY, KEYCTL = (FORBIDDEN[name][COLUMN] for name in ("add_key", "keyctl"))
SESSION, JOIN, SEARCH = -3, 1, 10
TERMINALS = """
import os
kept = []
def more():
    try:
        while True:
            kept.append(os.openpty())
    except OSError:
        return len(kept)
print(more(), flush=True)
"""


def call(*words: object) -> int:
    """Make a system call in this process."""
    return ctypes.CDLL(None).syscall(*words)


async def test_the_keys_of_the_server_and_of_other_sandboxes_are_out_of_reach(
    provider: Bubblewrap, tmp_path: Path
) -> None:
    call(KEYCTL, JOIN, None)
    if call(ADD_KEY, b"user", b"agentrl-test", b"hunter2", 7, SESSION) < 0:
        pytest.skip("this kernel has no keyrings")
    assert call(KEYCTL, SEARCH, SESSION, b"user", b"agentrl-test", 0) > 0
    async with sandbox(provider, tmp_path) as box:
        result = await python(
            box,
            f"""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for words in (
    *((({KEYCTL}), {SEARCH}, keyring, b"user", b"agentrl-test", 0) for keyring in range(-8, 0)),
    ({KEYCTL}, {JOIN}, None), ({ADD_KEY}, b"user", b"left", b"for another", 11, {SESSION}),
):
    print(libc.syscall(*words), ctypes.get_errno())
try:
    print(open("/proc/keys").read())
except OSError:
    print("no list")
""",
        )
    assert set(result.output.decode().splitlines()) == {"-1 1", "no list"}


async def test_sockets_of_hypervisors_and_of_the_kernel_do_not_open(box: SupervisedSandbox) -> None:
    """For example AF_VSOCK, AF_ALG, AF_PACKET, AF_CAN, AF_TIPC, AF_BLUETOOTH, AF_QIPCRTR, AF_XDP and NETLINK_KOBJECT_UEVENT."""
    result = await python(
        box,
        """
import socket
for family, kind, protocol in (
    (40, 1, 0), (40, 2, 0), (38, 5, 0), (17, 3, 0), (29, 3, 1), (30, 5, 0), (31, 3, 0), (42, 2, 0), (44, 3, 0), (16, 3, 15),
):
    try:
        socket.socket(family, kind, protocol)
        print("opened", family)
    except OSError as error:
        print(error.errno)
""",
    )
    assert set(result.output.split()) == {b"1"}


async def test_one_sandbox_leaves_terminals_for_the_others(provider: Bubblewrap, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    async with sandbox(provider, tmp_path) as one, sandbox(provider, tmp_path / "other") as other:
        holding = f"{TERMINALS}\nimport time; time.sleep(3600)"
        held = await line(
            one,
            'for i in 1 2 3; do python3 -Ic "$HOLD" >$i & done; until [ -s 1 -a -s 2 -a -s 3 ]; do :; done; cat ?',
            env={"HOLD": holding},
        )
        assert sum(map(int, held.output.split())) == MAX_TERMINALS
        assert (await line(one, "python3 -Ic 'import os; os.openpty()'")).exit_code == 1
        assert int((await python(other, TERMINALS)).output) == MAX_TERMINALS


async def test_memory_of_no_process_ends_commands_and_not_the_sandbox(
    provider: Bubblewrap, box: SupervisedSandbox
) -> None:
    if "memory" not in provider.places.parents:
        pytest.skip("no control group bounds memory here")
    for why, command in MEMORY_OF_NOBODY.items():
        assert (await line(box, command)).exit_code == -9, why
        await box.write_file("/work/file", b"data")
        assert await box.read_file("/work/file") == b"data"


async def test_no_command_bounds_or_slows_what_serves_the_sandbox(box: SupervisedSandbox) -> None:
    """A supervisor without processor time or memory would end, and the episode be played again."""
    result = await python(
        box,
        """
import os, resource
for work in (
    *(lambda which=which: resource.prlimit(1, which, (0, 0)) for which in range(16)),
    lambda: os.setpriority(os.PRIO_PROCESS, 1, 19),
    lambda: os.sched_setaffinity(1, {0}),
    lambda: os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0)),
):
    try:
        print("changed", work())
    except PermissionError as error:
        print(error.errno)
""",
    )
    assert result.output.split() == [b"1"] * 19
    own = await line(
        box, "nice -n 1 taskset 1 chrt --idle 0 prlimit --nofile=9 bash -c 'prlimit --pid $$ --core=0:0; ulimit -n'"
    )
    assert own.output.split() == [b"9"], "its own can be changed"


async def test_programs_run_as_ever(box: SupervisedSandbox) -> None:
    """Threads, processes, terminals, watchers, sockets, names of interfaces, and git."""
    result = await python(
        box,
        """
import asyncio, multiprocessing, os, pty, socket, subprocess, threading
thread = threading.Thread(target=print, args=("thread",), kwargs={"flush": True})
thread.start(); thread.join()
with multiprocessing.Pool(2) as pool:
    print(pool.map(abs, [-1, -2]), flush=True)
async def ran():
    made = await asyncio.create_subprocess_exec("echo", "child")
    server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    return await made.wait(), await reader.read()
print(asyncio.run(ran()), socket.if_nameindex(), socket.getaddrinfo("localhost", 80)[0][4], flush=True)
os.close(os.memfd_create("x")); a, b = socket.socketpair(); a.send(b"x")
print(pty.spawn(["tty"]) , flush=True)
""",
    )
    lines = result.output.decode().split()
    assert result.exit_code == 0, result.output
    assert lines[0] == "thread"
    assert any(each.startswith("/dev/pts/") for each in lines)
    said = await line(
        box,
        "git init -q . && echo a > a && git add -A && git -c user.name=a -c user.email=b@c commit -qm a && git log --format=%s;"
        " script -qc 'echo typed' /dev/null; timeout 1 tail -f a; true",
    )
    assert said.output.replace(b"\r", b"").split() == [b"a", b"typed", b"a"]


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
async def test_node_runs(provider: Bubblewrap, box: SupervisedSandbox) -> None:
    program = "const o = require('os'), c = require('child_process'), f = require('fs'); f.watch('.').close(); console.log(Object.keys(o.networkInterfaces()), c.execSync('echo child').toString(), new Set(f.readdirSync('/')).has('work'))"
    result = await line(box, f'node -e "{program}"')
    if result.exit_code == 127:
        pytest.skip("node is not below /usr here")
    assert (result.exit_code, b"child" in result.output) == (0, True), result.output
