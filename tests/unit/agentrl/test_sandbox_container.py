"""Containers by a command line: which words it gets, and what happens when the engine misbehaves."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import stat
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from agentrl.exceptions import InfraError, InvalidError
from agentrl.processes import Processes, ProcessLedger, end_leftovers
from agentrl.sandbox import container as containers
from agentrl.sandbox import probe
from agentrl.sandbox.container import Container, ContainerSettings
from agentrl.sandbox.interface import Door, Limits, Mount, SandboxSpec
from lab.testkit.agent_pools import until
from tests.helpers.fake_container_engine import FakeEngine
from tests.helpers.sandbox_cases import LONG_SECONDS, SPEC
from tests.helpers.sandbox_findings import GOOD, saying
from tests.helpers.sandbox_worlds import container

pytestmark = pytest.mark.slow

LIMITS = Limits(memory_mib=300, cpus=1.5, processes=77, disk_mib=40, open_files=99)
MANDATORY = [
    "--rm",
    "--interactive",
    "--read-only",
    "--no-healthcheck",
    "--pull never",
    "--log-driver none",
    "--network none",
    "--cap-drop ALL",
    "--security-opt no-new-privileges",
    "--user 1000:1000",
    "--memory 340m",
    "--memory-swap 340m",
    "--cpus 1.5",
    "--pids-limit 77",
    "--ulimit nofile=99:99",
    "--ulimit core=0:0",
    f"--tmpfs /work:rw,exec,nosuid,nodev,size={20 << 20},mode=0755,uid=1000,gid=1000",
    f"--tmpfs /tmp:rw,exec,nosuid,nodev,size={10 << 20},mode=1777",
    f"--shm-size {10 << 20}b",
    "--entrypoint python3",
    "--workdir /work",
    "--runtime runsc",
]


@pytest.fixture(params=["docker", "podman"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> FakeEngine:
    return FakeEngine(tmp_path / "engine", request.param)


@pytest.fixture
async def processes(tmp_path: Path) -> AsyncIterator[Processes]:
    ledger = ProcessLedger(tmp_path / "pool.sqlite")
    processes = Processes(ledger)
    yield processes
    assert await processes.end() == 0
    ledger.close()


@pytest.fixture
def door(short_path: Path) -> Iterator[Path]:
    """A private socket of the host in a private folder."""
    path = short_path / "door"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        path.chmod(0o600)
        yield path


@pytest.fixture
def port() -> int:
    """A free port of this machine, which the stand-in's doors take."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


@pytest.mark.parametrize("flag", MANDATORY)
async def test_every_wall_is_on_the_command_line(tmp_path: Path, processes: Processes, flag: str) -> None:
    engine = FakeEngine(tmp_path / "engine")
    sandbox = await container(engine, "runsc").start(SandboxSpec(LIMITS), processes)
    await sandbox.stop()
    (words,) = engine.calls("run")
    options = words[: words.index("--")]
    assert f" {flag} " in f" {' '.join(options)} "


async def test_the_rest_of_the_command_line(
    engine: FakeEngine, processes: Processes, door: Path, port: int, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    engine.change(images=["registry.example/team/tool:1.2@sha256:00"])
    spec = SandboxSpec(
        LIMITS,
        mounts=[Mount(data, "/data")],
        doors=[Door(port, door)],
        image="registry.example/team/tool:1.2@sha256:00",
    )
    sandbox = await container(engine).start(spec, processes)
    await sandbox.stop()
    (words,) = engine.calls("run")
    at = words.index("--")
    assert words[at + 1] == spec.image
    assert json.loads(words[-1]) == {
        "limits": {"RLIMIT_NOFILE": 99},
        "doors": {str(port): f"/run/agentrl/doors/{port}"},
        "groups": [],
    }
    assert f"type=bind,source={data},target=/data,readonly" in words[:at]
    assert f"type=bind,source={door},target=/run/agentrl/doors/{port},readonly" in words[:at]
    assert all(word.endswith(",readonly") for word in words if word.startswith("type=bind"))
    assert words[words.index("--label") + 1] == f"agentrl.pool={processes.pool}"
    assert not {"--privileged", "--runtime", "--env", "--publish", "--device"} & set(words)
    for environment in engine.environments():
        assert "AGENTRL_KEY" not in environment, "only the engine's own variables are passed on"


async def test_one_command_line_carries_all_calls(engine: FakeEngine, processes: Processes) -> None:
    sandbox = await container(engine).start(SPEC, processes)
    for _ in range(3):
        await sandbox.execute(["true"], timeout_s=LONG_SECONDS)
    assert [each[0] for each in engine.calls()] == ["run"]
    await sandbox.stop()
    assert [each[0] for each in engine.calls()] == ["run", "rm"]
    await sandbox.stop()
    assert len(engine.calls()) == 2


@pytest.mark.parametrize("image", ["--privileged", "-v/:/host", "a b", "Upper", "", "a\n", "x" * 300])
async def test_an_image_s_name_is_checked(engine: FakeEngine, processes: Processes, image: str) -> None:
    spec = SandboxSpec(image=image) if image else SPEC
    provider = container(engine) if image else Container(ContainerSettings("docker", "", None, engine.environment))
    if engine.name == "podman" and not image:
        return
    with pytest.raises(InvalidError, match="is not a name of an image"):
        await provider.start(spec, processes)
    assert engine.calls("run") == []


async def test_a_runtime_s_name_is_checked(engine: FakeEngine, processes: Processes) -> None:
    with pytest.raises(InvalidError, match="is not a name of a runtime"):
        await container(engine, "--privileged").start(SPEC, processes)


async def test_paths_that_would_change_the_meaning_are_refused(
    engine: FakeEngine, processes: Processes, tmp_path: Path
) -> None:
    odd = tmp_path / "a,readonly=false"
    odd.mkdir()
    for mount in (Mount(odd, "/data"), Mount(tmp_path, "/data,source=/")):
        with pytest.raises(InvalidError, match=r"comma|is not an absolute path"):
            await container(engine).start(SandboxSpec(mounts=[mount]), processes)
    assert engine.calls("run") == []


@pytest.mark.parametrize("mode", [0o701, 0o750])
async def test_a_door_that_other_users_could_enter_is_refused(
    engine: FakeEngine, processes: Processes, door: Path, mode: int
) -> None:
    door.parent.chmod(mode)
    with pytest.raises(InvalidError, match="other users can enter"):
        await container(engine).start(SandboxSpec(doors=[Door(8080, door)]), processes)
    assert engine.calls("run") == []
    assert not door.stat().st_mode & stat.S_IWOTH


async def test_a_container_outlives_its_command_line_but_not_its_stop(engine: FakeEngine, processes: Processes) -> None:
    engine.change(keeps_stdin=True)
    sandbox = await container(engine).start(SPEC, processes)
    sandbox.process.kill()
    await sandbox.process.wait()
    with pytest.raises(InfraError, match="ended"):
        await sandbox.execute(["true"], timeout_s=LONG_SECONDS)
    assert len(engine.alive()) == 1
    await sandbox.stop()
    assert engine.alive() == []


async def test_what_a_crashed_pool_left_is_removed_and_nothing_else(
    engine: FakeEngine, processes: Processes, tmp_path: Path
) -> None:
    engine.change(keeps_stdin=True)
    provider = container(engine)
    other_ledger = ProcessLedger(tmp_path / "other.sqlite")
    other = Processes(other_ledger)
    crashed = [await provider.start(SPEC, processes) for _ in range(2)]
    alive = await provider.start(SPEC, other)
    for each in crashed:
        each.process.send_signal(signal.SIGKILL)
        await each.process.wait()
    assert len(engine.alive()) == 3
    assert await provider.sweep(processes.pool) == 2
    assert len(engine.alive()) == 1
    assert (await alive.execute(["echo", "lives"], timeout_s=LONG_SECONDS)).output == b"lives\n"
    await alive.stop()
    engine.change(list_fails=True)
    with pytest.raises(InfraError, match="out of disk"):
        await provider.sweep(processes.pool)
    assert await other.end() == 0
    other_ledger.close()


async def test_the_ledger_ends_the_command_line(engine: FakeEngine, processes: Processes) -> None:
    """Without a stop the container ends too, since its stdin closes."""
    await container(engine).start(SPEC, processes)
    assert await end_leftovers(processes._ledger) == 1
    await until(lambda: not processes_of(engine))


def processes_of(engine: FakeEngine) -> list[str]:
    pids = [(home / "pid").read_text() for home in engine.containers.iterdir() if (home / "pid").exists()]
    return [pid for pid in pids if Path("/proc", pid).exists() and "Z" not in state_of(pid)]


def state_of(pid: str) -> str:
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


async def test_a_container_that_vanishes_is_said(engine: FakeEngine, processes: Processes) -> None:
    sandbox = await container(engine).start(SPEC, processes)
    running = asyncio.create_task(sandbox.execute(["sleep", "600"], timeout_s=600.0))
    await sandbox.execute(["true"], timeout_s=LONG_SECONDS)
    (name,) = engine.alive()
    await asyncio.to_thread(engine.vanish, name)
    with pytest.raises(InfraError, match="ended"):
        await running
    with pytest.raises(InfraError, match="ended"):
        await sandbox.read_file("/work/x")
    await sandbox.stop()


async def test_a_run_that_fails_is_told_in_the_engine_s_words(engine: FakeEngine, processes: Processes) -> None:
    engine.change(run_fails="docker: Error response from daemon: unknown or invalid runtime name: runsc.")
    with pytest.raises(InfraError, match=r"did not start: .*invalid runtime name: runsc"):
        await container(engine).start(SPEC, processes)
    with pytest.raises(InfraError, match="No such image: missing:1"):
        await container(engine).start(SandboxSpec(image="missing:1"), processes)
    assert engine.alive() == []


async def test_a_daemon_that_dies(engine: FakeEngine, processes: Processes) -> None:
    sandbox = await container(engine).start(SPEC, processes)
    engine.change(dead=True)
    with pytest.raises(InfraError, match=r"does not remove container .*Cannot connect"):
        await sandbox.stop()
    with pytest.raises(InfraError, match="stopped"):
        await sandbox.execute(["true"], timeout_s=LONG_SECONDS)
    with pytest.raises(InfraError, match="Cannot connect"):
        await container(engine).start(SPEC, processes)
    engine.change()
    await sandbox.stop()
    assert engine.alive() == []


async def test_a_removal_under_way_is_waited_for(engine: FakeEngine, processes: Processes) -> None:
    engine.change(rm_busy=2, keeps_stdin=True)
    sandbox = await container(engine).start(SPEC, processes)
    sandbox.process.kill()
    await sandbox.stop()
    assert len(engine.calls("rm")) == 3
    assert engine.alive() == []


async def test_a_start_that_is_cancelled_leaves_nothing(engine: FakeEngine, processes: Processes) -> None:
    engine.change(run_waits=True)
    task = asyncio.create_task(container(engine).start(SPEC, processes))
    await until(engine.alive)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine.alive() == []


async def test_a_start_that_takes_long_succeeds(engine: FakeEngine, processes: Processes) -> None:
    engine.change(run_waits=True)
    task = asyncio.create_task(container(engine).start(SPEC, processes))
    await until(engine.alive)
    engine.change()
    sandbox = await task
    assert (await sandbox.execute(["echo", "on"], timeout_s=LONG_SECONDS)).output == b"on\n"
    await sandbox.stop()


async def test_a_lease_that_is_closing_starts_none(engine: FakeEngine, processes: Processes) -> None:
    await processes.end()
    with pytest.raises(InfraError, match="closing"):
        await container(engine).start(SPEC, processes)
    assert engine.alive() == []


async def test_the_check_says_in_one_line_what_is_missing(tmp_path: Path) -> None:
    engine = FakeEngine(tmp_path / "engine")
    nowhere = ContainerSettings("docker", "img:1", None, {"PATH": str(tmp_path)})
    with pytest.raises(InfraError, match="no docker on PATH; install it, or choose another provider"):
        await Container(nowhere).check()
    engine.change(dead=True)
    with pytest.raises(InfraError, match=r"docker does not serve: Cannot connect to the Docker daemon.*; start it"):
        await container(engine).check()
    engine.change(runtimes={"runc": {}})
    with pytest.raises(InfraError, match="docker knows no runtime runsc; register it"):
        await container(engine, "runsc").check()
    engine.change(images=[])
    with pytest.raises(InfraError, match="image img:1 is not here; fetch it with: docker pull img:1"):
        await container(engine).check()
    assert engine.calls("run") == []
    podman = FakeEngine(tmp_path / "podman", "podman")
    podman.change(dead=True)
    with pytest.raises(InfraError, match="podman does not serve"):
        await container(podman).check()


async def test_the_check_attacks_a_container(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    long = tmp_path / ("temporary" * 12)  # a socket's address has at most 107 bytes
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with socket.create_server(("127.0.0.1", 0)) as free:
        monkeypatch.setattr(containers, "DOOR_PORT", free.getsockname()[1])
    monkeypatch.setattr(containers, "THROUGH_DOOR", "print('through the door')")
    monkeypatch.setattr(probe, "SOURCE", saying(GOOD))
    await container(engine, "runsc").check()
    assert engine.alive() == []
    assert [each[0] for each in engine.calls()[-3:]] == ["run", "rm", "ps"]
    monkeypatch.setattr(probe, "SOURCE", saying({**GOOD, "capabilities": 1}))
    with pytest.raises(InfraError, match="programs have capabilities"):
        await container(engine).check()
    monkeypatch.setattr(containers, "THROUGH_DOOR", "raise SystemExit('Connection refused')")
    with pytest.raises(InfraError, match=r"a door does not lead to its socket.*host-uds.*Connection refused"):
        await container(engine).check()
    assert engine.alive() == []


def test_the_stand_in_refuses_what_the_provider_does_not_say(tmp_path: Path) -> None:
    """A flag that is dropped or misspelt fails every other test here."""
    import subprocess

    engine = FakeEngine(tmp_path / "engine")
    program = engine.folder / "bin/docker"
    for words in (["run", "--privileged", "--", "img:1"], ["exec", "x"], ["rm", "x"], ["run", "--rm", "--", "img:1"]):
        assert subprocess.run([program, *words], env={**os.environ}, capture_output=True, check=False).returncode != 0
