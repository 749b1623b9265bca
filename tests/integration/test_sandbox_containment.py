"""Programs that try to leave a real sandbox, or to use up its machine, stay inside and within their bounds."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from agentrl.exceptions import InfraError, InvalidError
from agentrl.sandbox import bubblewrap
from agentrl.sandbox.__main__ import main as command_line
from agentrl.sandbox.bubblewrap import Bubblewrap
from agentrl.sandbox.inside.wire import MAX_BODY
from agentrl.sandbox.interface import Door, Mount, SandboxSpec
from agentrl.sandbox.model_door import model_door
from agentrl.sandbox.self_test import prove
from agentrl.sandbox.supervised import SupervisedSandbox
from lab.testkit.waiting import eventually
from tests.helpers.sandboxes import (
    PATIENT_S,
    REASON,
    SMALL,
    SMALL_SPEC,
    groups_of,
    installed,
    line,
    processes_that_end,
    python,
    running,
    sandbox,
)

REPOSITORY = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not installed(REPOSITORY), reason=REASON)
FOR_EVER = 3600
SOON_SECONDS = 1.0
"""The time limit of a command that never ends by itself."""


@pytest.fixture
def mark() -> str:
    """A text that names the processes of one test."""
    return f"mark{secrets.token_hex(8)}"


async def test_every_promise_of_the_self_test_holds(provider: Bubblewrap) -> None:
    promises = await prove(provider)
    assert len(promises) >= 12
    assert [promise for promise in promises if not promise.holds] == []


def test_the_command_says_what_holds(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "holds   no network" in lines
    assert [each for each in lines if not each.startswith(("holds ", "weaker "))] == []


async def test_the_self_test_fails_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = [flag for flag in bubblewrap.FLAGS if flag != "--unshare-all"]
    monkeypatch.setattr(bubblewrap, "FLAGS", (*flags, "--unshare-pid", "--unshare-ipc", "--unshare-uts"))
    with pytest.raises(InfraError, match=r"no network: .*no port of the host: "):
        await Bubblewrap().check()


@pytest.mark.parametrize(
    ("settings", "hint"),
    [
        ({"BWRAP": "bwrap-nowhere"}, "setup_bubblewrap.sh"),
        ({"PYTHON": "/usr/bin/python-nowhere"}, "/usr/bin/python-nowhere: No such file"),
        ({"FLAGS": (*bubblewrap.FLAGS, "--no-such-flag")}, "older than 0.8"),
    ],
)
async def test_a_machine_without_what_it_needs_is_told_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settings: dict[str, object], hint: str
) -> None:
    for name, value in settings.items():
        monkeypatch.setattr(bubblewrap, name, value)
    provider = Bubblewrap()
    before = groups_of(provider, os.getpid())
    with pytest.raises(InfraError, match=hint):
        await provider.check()
    assert groups_of(provider, os.getpid()) <= before


async def test_a_program_is_no_user_of_the_host_that_matters(box: SupervisedSandbox) -> None:
    if os.geteuid() != 0:
        pytest.skip("only a server that runs as root gives up its user")
    assert os.stat(f"/proc/{box.process.pid}").st_uid in bubblewrap.UIDS


async def test_a_call_has_its_input_variables_folder_and_status(box: SupervisedSandbox) -> None:
    result = await line(
        box, 'cat; echo "$A"; pwd; echo wrong >&2; exit 7', stdin=b"typed\n", env={"A": "b"}, cwd="/tmp"
    )
    assert (result.exit_code, result.output, result.cut_bytes) == (7, b"typed\nb\n/tmp\nwrong\n", 0)
    assert (await line(box, "kill -SEGV $$")).exit_code == -11
    assert (await box.execute(["nothing-there"], timeout_s=PATIENT_S)).exit_code == 127
    with pytest.raises(InvalidError, match="is not a folder"):
        await line(box, "true", cwd="/nowhere")


async def test_a_server_with_many_open_files_starts_sandboxes(provider: Bubblewrap, tmp_path: Path) -> None:
    opened: list[int] = []
    async with processes_that_end(tmp_path) as processes:
        try:
            while not opened or opened[-1] < bubblewrap.GROUPS.start - 2:
                opened.append(os.open(os.devnull, os.O_RDONLY))
            for _ in bubblewrap.GROUPS:  # what a start opens has every number that has a meaning, in turn
                started = await provider.start_unchecked(SMALL_SPEC, processes)
                try:
                    assert (await python(started, "print(6 * 7)")).output == b"42\n"
                finally:
                    await started.stop()
                opened.append(os.open(os.devnull, os.O_RDONLY))
        finally:
            for each in opened:
                os.close(each)


async def test_calls_run_at_a_time(box: SupervisedSandbox) -> None:
    await line(box, "mkfifo /tmp/a /tmp/b")
    first, second = await asyncio.gather(
        line(box, "echo one >/tmp/a; cat /tmp/b"), line(box, "cat /tmp/a; echo two >/tmp/b")
    )
    assert (first.output, second.output) == (b"two\n", b"one\n")


async def test_a_fork_bomb_ends_with_its_time_limit(box: SupervisedSandbox) -> None:
    result = await line(box, "bomb() { bomb | bomb & }; bomb; sleep 1000", timeout_s=SOON_SECONDS)
    assert result.timed_out
    # The bomb's processes count no more, so there is room for as many as before.
    assert (await line(box, "for i in {1..20}; do sleep 1000 & done; jobs | wc -l")).output == b"20\n"


async def test_a_sandbox_without_a_free_process_still_answers(box: SupervisedSandbox) -> None:
    text = (
        f"import os, time\ntry:\n    while os.fork(): pass\n    time.sleep({FOR_EVER})\nexcept OSError: print('full')"
    )
    assert (await python(box, text)).output == b"full\n"
    result = await line(box, "echo more")
    assert result.exit_code != 0
    await box.write_file("/work/file", b"data")
    assert await box.read_file("/work/file") == b"data"


async def test_a_full_disk_stops_its_writer_only(box: SupervisedSandbox) -> None:
    for folder in ("/work", "/tmp", "/dev/shm"):
        result = await line(box, f"head -c 1G /dev/zero >{folder}/big; stat -c %s {folder}/big")
        assert b"No space left" in result.output
        assert int(result.output.split()[-1]) <= SMALL.disk_mib << 20
    with pytest.raises(InvalidError, match="No space left"):
        await box.write_file("/work/more", b"x" * 100_000)
    assert (await line(box, "rm /work/big; ls -A /work")).output == b""
    await box.write_file("/work/more", b"x" * 100_000)


async def test_a_gigabyte_of_output_is_cut_in_the_middle(box: SupervisedSandbox) -> None:
    result = await line(box, "echo begin; head -c 1000000000 /dev/zero; echo end", most_output=1000)
    assert len(result.output) == 1000
    assert result.output.startswith(b"begin\n")
    assert result.output.endswith(b"\0end\n")
    assert result.cut_bytes == 1_000_000_010 - 1000


@pytest.mark.parametrize(
    "text",
    [
        "exec -a {mark} sleep 1000",
        "trap '' TERM INT HUP; exec -a {mark} sleep 1000",
        "setsid bash -c 'exec -a {mark} sleep 1000' & exec -a {mark} sleep 1000",
        "(setsid bash -c '(exec -a {mark} sleep 1000) & exec -a {mark} sleep 1000' &) ; exec -a {mark} sleep 1000",
        "(env -i setsid bash -c 'exec -a {mark} sleep 1000' &); exec -a {mark} sleep 1000",
        "kill -STOP $PPID; exec -a {mark} sleep 1000",
    ],
    ids=["plain", "deaf", "setsid", "double fork", "empty environment", "keeper stopped"],
)
async def test_a_time_limit_ends_all_that_a_command_started(box: SupervisedSandbox, mark: str, text: str) -> None:
    result = await line(box, text.format(mark=mark), timeout_s=SOON_SECONDS)
    assert (result.timed_out, result.exit_code) == (True, None)
    await eventually(lambda: running(mark), [])


async def test_what_loses_its_keeper_is_ended(box: SupervisedSandbox, mark: str) -> None:
    await line(box, f"setsid bash -c 'exec -a {mark} sleep 1000' & exec -a {mark} bash -c 'kill -9 $PPID; sleep 1000'")
    await eventually(lambda: running(mark), [])
    assert (await line(box, "echo on")).output == b"on\n"


async def test_the_background_is_ended_when_its_keeper_is(box: SupervisedSandbox, mark: str) -> None:
    keeper = (await line(box, f"setsid bash -c 'exec -a {mark} sleep 1000' & echo $PPID")).output.decode()
    await eventually(lambda: len(running(mark)), 1)
    await line(box, f"kill -9 {keeper}")
    await eventually(lambda: running(mark), [])


async def test_a_cancelled_call_ends_its_command(box: SupervisedSandbox, mark: str) -> None:
    call = asyncio.create_task(line(box, f"exec -a {mark} sleep 1000"))
    await eventually(lambda: len(running(mark)) > 0, True)
    call.cancel()
    await eventually(lambda: running(mark), [])
    assert (await line(box, "echo on")).output == b"on\n"


async def test_the_background_lives_until_the_sandbox_stops(provider: Bubblewrap, tmp_path: Path, mark: str) -> None:
    async with sandbox(provider, tmp_path) as box:
        started = await line(box, f"setsid bash -c 'trap \"\" TERM; exec -a {mark} sleep 1000' & echo started")
        assert started.output == b"started\n"
        await eventually(lambda: len(running(mark)), 1)
        await line(box, "true")
        assert len(running(mark)) == 1
    assert running(mark) == []
    assert await box.stop() is None
    with pytest.raises(InfraError, match="stopped"):
        await line(box, "true")


async def test_there_is_no_network(box: SupervisedSandbox) -> None:
    abstract = f"\0{secrets.token_hex(8)}"
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(abstract)
        unix.listen()
        port = tcp.getsockname()[1]
        result = await python(
            box,
            f"""
import socket
for family, address in (
    (socket.AF_INET, ("127.0.0.1", {port})), (socket.AF_INET, ("192.0.2.1", 80)), (socket.AF_UNIX, {abstract!r}),
):
    try:
        socket.socket(family).connect(address)
        print("connected")
    except OSError as error:
        print(error.errno)
try:
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    print("raw")
except PermissionError:
    print("no raw")
""",
        )
    assert result.output.split(b"\n") == [b"111", b"101", b"111", b"no raw", b""]


async def test_files_and_variables_of_the_host_are_not_there(
    box: SupervisedSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("host")
    for path in (secret, REPOSITORY, Path("/root"), Path("/home"), Path("/etc/shadow"), Path("/sys/kernel")):
        assert (await line(box, f"ls {path}")).exit_code == 2
        with pytest.raises(InvalidError):
            await box.read_file(str(path))
    assert (await line(box, "grep -az AGENTRL /proc/[0-9]*/environ 2>/dev/null")).output == b""
    assert (await line(box, "ls /proc/1/root/ /proc/1/cwd/")).exit_code == 2


async def test_another_sandbox_is_out_of_reach(provider: Bubblewrap, tmp_path: Path, mark: str) -> None:
    (tmp_path / "other").mkdir()
    async with sandbox(provider, tmp_path) as one, sandbox(provider, tmp_path / "other") as other:
        for folder in ("/work", "/tmp", "/dev/shm"):
            await line(one, f"echo mine >{folder}/{mark}")
        await line(one, f"setsid bash -c 'exec -a {mark} sleep 1000' &")
        await eventually(lambda: len(running(mark)), 1)
        seen = await line(other, f"ls -A /work /tmp /dev/shm; grep -al {mark} /proc/[0-9]*/cmdline | grep -v self")
        assert mark.encode() not in seen.output
        await line(other, "kill -9 -1")
        assert len(running(mark)) == 1
        assert (await line(one, f"cat /work/{mark}")).output == b"mine\n"


async def test_no_new_namespaces_and_no_mounts(box: SupervisedSandbox) -> None:
    for flags in ("-U", "-Ur", "-m", "-n", "-p -f", "-Urm"):
        assert (await line(box, f"unshare {flags} true")).exit_code == 1
    assert (await line(box, "mount -t tmpfs none /work")).exit_code != 0
    assert (await line(box, "umount /usr; touch /usr/x || mount -o remount,rw /usr")).exit_code != 0
    assert (await line(box, "echo 1 >/proc/sys/kernel/panic")).exit_code != 0


async def test_memory_is_bounded_over_all_processes(provider: Bubblewrap, box: SupervisedSandbox) -> None:
    if "memory" not in provider.places.parents:
        pytest.skip("no control group bounds memory here")
    one = await python(box, "x = b'x' * (1 << 28); print('got it')")
    assert (one.exit_code, one.output) == (-9, b"")
    many = await line(
        box,
        f"for i in {{1..8}}; do python3 -Ic 'x = b\"x\" * (1 << 25); import time; time.sleep({FOR_EVER})' & done;"
        " failed=0; while [ $failed -lt 3 ]; do wait -n || failed=$((failed + 1)); done; kill $(jobs -p); echo enough",
    )
    assert many.output.split()[-1:] == [b"enough"]  # 8 x 32 MiB and their interpreters, in 128 MiB
    assert (await line(box, "echo alive")).output == b"alive\n"


async def test_descriptors_are_bounded(box: SupervisedSandbox) -> None:
    text = "import os\nkept = []\ntry:\n    while True: kept.append(os.dup(0))\nexcept OSError as error: print(len(kept), error.errno)"
    count, number = (await python(box, text)).output.split()
    assert (int(count) <= SMALL.open_files, int(number)) == (True, 24)
    assert (await line(box, "echo on")).output == b"on\n"


async def test_the_supervisor_cannot_be_signalled_traced_or_read(box: SupervisedSandbox) -> None:
    signals = await line(box, "for i in {1..64}; do kill -$i 1 2>/dev/null; done; sleep 0.1; echo alive")
    assert signals.output == b"alive\n"
    result = await python(
        box,
        """
import ctypes, glob, os
libc = ctypes.CDLL(None, use_errno=True)
print("traced", libc.ptrace(16, 1, 0, 0))
for pid in [name for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]:
    for name in ("fd", "map_files"):
        try:
            print("listed", os.listdir(f"/proc/{pid}/{name}"))
        except OSError:
            pass
    for name in ("environ", "mem", "maps", "fd/0", "fd/1", "cwd", "root", "syscall"):
        try:
            print("opened", pid, name, os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_NONBLOCK))
        except OSError:
            pass
    print("pidfd", libc.syscall(438, os.pidfd_open(int(pid)), 0, 0))
    print("vm", libc.process_vm_readv(int(pid), 0, 0, 0, 0, 0) if pid == "0" else "-")
""",
    )
    lines = result.output.decode().splitlines()
    assert "traced -1" in lines
    assert lines.count("pidfd -1") >= 2  # the supervisor and the keeper
    assert [each for each in lines if each.startswith(("listed", "opened"))] == []


async def test_a_command_has_three_descriptors(box: SupervisedSandbox) -> None:
    async with asyncio.timeout(PATIENT_S):
        other = asyncio.create_task(line(box, "sleep 1000", timeout_s=FOR_EVER))
        result = await python(box, "import os; print(sorted(os.listdir('/proc/self/fd')))")
        other.cancel()
    assert result.output == b"['0', '1', '2', '3']\n"  # 3 is the listing's own


@pytest.mark.parametrize("target", ["/etc/passwd", "/usr/lib/x", "/proc/self/mem", "/dev/null", "/run/x", "/x"])
async def test_a_file_is_written_below_its_folders_only(box: SupervisedSandbox, target: str) -> None:
    await line(box, f"ln -s {os.path.dirname(target)} /work/folder; ln -s {target} /work/file")
    for path in (target, f"/work/..{target}", f"/work/folder/{os.path.basename(target)}", "/work/file"):
        with pytest.raises(InvalidError, match="not below"):
            await box.write_file(path, b"x")
    assert (await line(box, "ls -A /work")).output == b"file\nfolder\n"


async def test_a_link_that_changes_under_way_leads_nowhere(box: SupervisedSandbox, mark: str) -> None:
    """The folder is a link to the supervisor's own files every other moment."""
    await line(box, "mkdir /work/real; ln -s /proc/self /work/evil")
    swapping = asyncio.create_task(
        python(
            box,
            "import os\nos.symlink('/work/real', '/work/f')\nwhile True:\n"
            "    for to in ('/proc/self', '/work/real'):\n"
            "        os.symlink(to, '/work/new'); os.rename('/work/new', '/work/f')",
            timeout_s=FOR_EVER,
        )
    )
    for _ in range(200):
        try:
            await box.write_file("/work/f/mem", b"x" * 64)
        except InvalidError:
            continue
    swapping.cancel()
    assert (await line(box, "echo alive; ls /work/real")).output in (b"alive\nmem\n", b"alive\n")


async def test_only_regular_files_are_read(box: SupervisedSandbox) -> None:
    await line(
        box, "mkfifo /work/pipe; ln -s /proc/self/environ /work/environ; ln -s /proc/self/fd/0 /work/in; mkdir /work/d"
    )
    await line(box, "ln -s loop /work/loop; head -c 100 /dev/zero >/work/big; ln -s big /work/link")
    for path in ("/work/pipe", "/work/environ", "/work/in", "/work/d", "/work/loop", "/dev/zero", "/nowhere", "x", "/"):
        with pytest.raises(InvalidError):
            await box.read_file(path)
    with pytest.raises(InvalidError, match="larger than 99"):
        await box.read_file("/work/big", most_bytes=99)
    assert await box.read_file("/work/link", most_bytes=100) == bytes(100)
    assert b"agent" in await box.read_file("/etc/passwd")


async def test_a_huge_stdin_arrives_or_is_dropped(box: SupervisedSandbox) -> None:
    data = b"x" * (16 << 20)
    assert (await line(box, "wc -c", stdin=data)).output == b"16777216\n"
    assert (await line(box, "head -c 3", stdin=data)).output == b"xxx"
    with pytest.raises(InvalidError, match="at most"):
        await line(box, "true", stdin=bytes(MAX_BODY + 1))


async def test_mounts_are_read_only_also_from_a_private_folder(provider: Bubblewrap, tmp_path: Path) -> None:
    shown = tmp_path / "private" / "shown"
    shown.mkdir(parents=True)
    (shown / "file").write_text("given")
    if os.geteuid() == 0:
        (tmp_path / "private").chmod(0o700)
    spec = SandboxSpec(limits=SMALL, mounts=[Mount(shown, "/opt/given")])
    async with sandbox(provider, tmp_path, spec) as box:
        assert (await line(box, "cat /opt/given/file; ls /opt")).output == b"givengiven\n"
        assert (await line(box, "echo x >/opt/given/file")).exit_code == 1
    assert (shown / "file").read_text() == "given"


async def test_a_spec_that_makes_no_sense_is_refused(provider: Bubblewrap, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    for spec in (
        SandboxSpec(image="debian"),
        SandboxSpec(limits=replace(SMALL, processes=0)),
        SandboxSpec(mounts=[Mount(nowhere, "/opt/x")]),
        SandboxSpec(mounts=[Mount(tmp_path, "/usr/x")]),
        SandboxSpec(mounts=[Mount(tmp_path, "/opt/../etc")]),
        SandboxSpec(doors=[Door(8000, nowhere)]),
        SandboxSpec(doors=[Door(80, nowhere)]),
    ):
        with pytest.raises(InvalidError):
            bubblewrap.refuse_nonsense(spec)


async def test_a_door_is_the_only_way_out(provider: Bubblewrap, tmp_path: Path, short_path: Path) -> None:
    async with model_door("http://127.0.0.1:9", "the-key", short_path / "door") as path:
        async with sandbox(provider, tmp_path, SandboxSpec(limits=SMALL, doors=[Door(8000, path)])) as box:
            program = """
import json, sys, urllib.request, urllib.error
def ask(key, path, data):
    headers = {"Authorization": "Bearer " + key, "Content-Type": "application/json"}
    request = urllib.request.Request("http://localhost:8000" + path, data, headers)
    try:
        return urllib.request.urlopen(request).status
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["error"]["code"]
print(ask("other", "/v1/models", None), ask("the-key", "/metrics", None), ask("the-key", "/v1/models", None))
"""
            asked = await python(box, program)
            wanted = b"(401, 'invalid_api_key') (404, 'unknown_route') (502, 'gateway_failed')\n"
            assert asked.output == wanted
            await line(box, "kill -9 -1")  # it ends the forwarder too, which comes back
            assert (await python(box, program)).output == wanted
            assert (await line(box, "ls -l /run/agentrl/doors | wc -l")).output in (b"2\n", b"0\n")
            rest = await line(box, "rm -f /run/agentrl/doors/8000; ls /run/agentrl/doors/8000")
            assert b"Read-only file system" in rest.output
    with pytest.raises(httpx.ConnectError):
        httpx.Client(transport=httpx.HTTPTransport(uds=str(path))).get("http://door/v1/models")


async def test_a_killed_pool_leaves_nothing_after_the_next_start(
    provider: Bubblewrap, tmp_path: Path, mark: str
) -> None:
    command = [sys.executable, "-m", "tests.helpers.sandbox_pool", str(tmp_path / "pool.sqlite")]
    environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'slime'}"}
    pool = subprocess.Popen(
        [*command, mark], cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert pool.stdout is not None
    try:
        assert await asyncio.to_thread(pool.stdout.readline) == b"running\n"
        await eventually(lambda: len(running(mark)) >= 3, True)
        assert provider.places.parents == {} or groups_of(provider, pool.pid)
    finally:
        pool.kill()
        pool.wait()
        pool.stdout.close()
    restarted = await asyncio.to_thread(
        subprocess.run, [*command, "restarted"], cwd=REPOSITORY, env=environment, capture_output=True, check=False
    )
    assert restarted.stdout == b"clean\n", restarted.stderr
    assert running(mark) == []
    assert not groups_of(provider, pool.pid)


async def test_a_sandbox_that_dies_says_so(box: SupervisedSandbox) -> None:
    call = asyncio.create_task(line(box, "sleep 1000", timeout_s=FOR_EVER))
    await line(box, "true")
    box.process.kill()
    with pytest.raises(InfraError, match="ended"):
        await call
    begun = time.monotonic()
    with pytest.raises(InfraError, match="ended"):
        await line(box, "true")
    assert time.monotonic() - begun < PATIENT_S
