"""The commands, as processes: bad input, a clean end, and what a killed server left."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import httpx
import pytest

from agentrl import pool, router
from agentrl.client import HttpLeases
from agentrl.exceptions import InfraError, InvalidError
from agentrl.processes import mark_of
from agentrl.web.options import listen
from lab.testkit.agent_pools import acting, asked, resetting, until
from lab.testkit.waiting import eventually

pytestmark = pytest.mark.slow

ENVIRONMENT = "lab.testkit.agent_pools.SleepingEnvironment"
KEY = "a key of this test"
LISTENING = re.compile(r"agentrl\.(?:pool|router): listening on (http://\S+)\n")
Start = Callable[..., tuple[subprocess.Popen[str], str]]


@pytest.fixture
def start(repository: Path) -> Iterator[Start]:
    """Return a function that starts a command and returns its process and address."""
    running: list[subprocess.Popen[str]] = []

    def run(module: str, *words: str | Path, env: Mapping[str, str] | None = None) -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen(
            [sys.executable, "-m", f"agentrl.{module}", "--port", "0", *map(str, words)],
            cwd=repository,
            env={**os.environ, "PYTHONPATH": f"{repository}:{repository / 'slime'}", **(env or {})},
            stdout=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        assert process.stdout is not None
        found = LISTENING.fullmatch(process.stdout.readline())
        assert found, f"it ended with {process.wait()}"
        return process, found[1]

    yield run
    for process in running:
        process.kill()
        process.wait()


def of_pool(ledger: Path) -> list[str | Path]:
    return ["--env", ENVIRONMENT, "--slots", "2", "--ledger", ledger]


async def test_what_a_killed_server_left_is_ended_and_nothing_else(start: Start, tmp_path: Path) -> None:
    bystander = subprocess.Popen(["sleep", "603"], start_new_session=True)
    try:
        process, address = start("pool", *of_pool(tmp_path / "pool.sqlite"))
        client = HttpLeases(address)
        lease = (await client.lease(asked("sleep"))).lease_id
        seen = (await client.reset(lease, resetting(timeout_s=60))).data["pids"]
        pids = [int(str(pid)) for pid in seen] if isinstance(seen, list) else []
        assert len(pids) == 2
        process.kill()
        assert process.wait() == -signal.SIGKILL
        assert all(mark_of(pid) for pid in pids)
        _, address = start("pool", *of_pool(tmp_path / "pool.sqlite"))
        assert [mark_of(pid) for pid in pids] == [None, None]
        assert bystander.poll() is None
        assert (await HttpLeases(address).status()).used == 0
    finally:
        bystander.kill()
        bystander.wait()


async def test_a_server_that_is_asked_to_stop_closes_all_environments(start: Start, tmp_path: Path) -> None:
    key = {"AGENTRL_KEY": KEY}
    process, address = start("pool", *of_pool(tmp_path / "pool.sqlite"), env=key)
    gate, front = start("router", "--worker", f"gpu-1={address}", env=key)
    with pytest.raises(InvalidError, match="missing or wrong key"):
        await HttpLeases(front).status()
    client = HttpLeases(front, KEY)
    lease = (await client.lease(asked("sleep"))).lease_id
    assert lease.startswith("gpu-1.")
    seen = (await client.reset(lease, resetting(timeout_s=60))).data["pids"]
    pids = [int(str(pid)) for pid in seen] if isinstance(seen, list) else []
    assert len(pids) == 2
    process.terminate()
    assert process.wait(60) == 0
    assert [mark_of(pid) for pid in pids] == [None, None]
    with pytest.raises(InfraError, match="no worker answers"):
        await client.lease(asked("sleep"))
    gate.terminate()
    assert gate.wait(60) == 0
    await until(lambda: gate.poll() is not None)


async def test_an_environment_that_never_ends_does_not_keep_the_server(start: Start, tmp_path: Path) -> None:
    process, address = start("pool", *of_pool(tmp_path / "pool.sqlite"))
    client = HttpLeases(address)
    lease = (await client.lease(asked("sleep"))).lease_id
    await client.reset(lease, resetting(timeout_s=60))
    request = acting(2, "ignore cancellation", timeout_s=600)
    steps = [asyncio.create_task(client.step(lease, request)) for _ in range(2)]

    async def repeated() -> bool:
        """Return whether the first step was accepted before the second, so that it has begun."""
        return 'agentrl_replays_total{operation="step"} 1.0' in (await browser.get(f"{address}/metrics")).text

    async with httpx.AsyncClient() as browser:
        await eventually(repeated, True)
    process.terminate()
    assert process.wait(60) == 1
    for step in steps:
        step.cancel()


def test_connections_send_without_delay() -> None:
    with listen("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize(
    ("main", "words", "wrong"),
    [
        (pool.main, ["--slots", "2"], "add --env MODULE.CLASS"),
        (pool.main, ["--env", "x.Y", "--slots", "0"], "--slots: '0' is not a whole number from 1"),
        (pool.main, ["--env", "x.Y", "--slots", "2"], "--env x.Y: No module named 'x'"),
        (pool.main, ["--env", ENVIRONMENT, "--slots", "2", "--cpu", "-1"], "'-1' is not a number above 0"),
        (pool.main, ["--env", ENVIRONMENT, "--slots", "2", "--port", "x"], "'x' is not a port"),
        (pool.main, ["--env", ENVIRONMENT, "--slot", "2"], "--slot; did you mean --slots?"),
        (pool.main, ["--env", ENVIRONMENT, "--slots", "2", "--host", "0.0.0.0"], "needs a key; set AGENTRL_KEY"),
        (pool.main, ["--env", ENVIRONMENT, "--slots", "2", "--host", "::1%x", "--ledger", "x"], "--host ::1%x"),
        (router.main, [], "add --worker NAME=URL"),
        (router.main, ["--worker", "a.b=http://x"], "'a.b=http://x' is not NAME=URL"),
        (router.main, ["--worker", "a=ftp://x"], "'a=ftp://x' is not NAME=URL"),
        (router.main, ["--worker", "a=http://x", "--worker", "a=http://y"], "a name is used twice in a, a"),
        (router.main, ["--worker", "a=http://x", "--host", "0.0.0.0"], "needs a key; set AGENTRL_KEY"),
    ],
)
def test_bad_input_is_one_line(
    main: Callable[[list[str]], int],
    words: list[str],
    wrong: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("AGENTRL_KEY", raising=False)
    try:
        status = main(words)
    except SystemExit as end:
        status = end.code
    said = capsys.readouterr()
    assert status == 2
    assert wrong in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""


async def test_a_second_server_on_the_same_ledger_or_port(start: Start, tmp_path: Path, repository: Path) -> None:
    process, address = start("pool", *of_pool(tmp_path / "pool.sqlite"))
    lease = await HttpLeases(address).lease(asked("sleep"))
    await HttpLeases(address).reset(lease.lease_id, resetting(timeout_s=60))
    port = address.rpartition(":")[2]
    for words, wrong in (
        (["--port", "0"], "in use by another server"),
        (["--port", port], f"--port {port}: Address already in use"),
    ):
        second = subprocess.run(
            [sys.executable, "-m", "agentrl.pool", *map(str, of_pool(tmp_path / "pool.sqlite")), *words],
            cwd=repository,
            env={**os.environ, "PYTHONPATH": f"{repository}:{repository / 'slime'}"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert second.returncode == 2
        assert wrong in second.stderr
    status = await HttpLeases(address).status()
    assert (status.leases, status.used) == (1, 1)
    process.terminate()
    assert process.wait(60) == 0
