"""Rented machines when the host or the connection misbehaves, what they may cost, and what the provider refuses."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentrl.exceptions import InfraError, InvalidError
from agentrl.processes import Processes, ProcessLedger
from agentrl.sandbox import probe
from agentrl.sandbox.interface import HOME, Door, Limits, Mount, SandboxSpec
from agentrl.sandbox.remote import E2BProvider, E2BSettings
from groundwork.exceptions import ConfigError
from tests.helpers.fake_e2b import FakeE2B, Fault, fake_e2b
from tests.helpers.sandbox_cases import LONG_SECONDS, SPEC
from tests.helpers.sandbox_findings import GOOD, saying
from tests.helpers.sandbox_worlds import QUICK, e2b_settings

pytestmark = pytest.mark.slow

START = "/process.Process/Start"
FAULTS = ["429", "500", "502", "503", "drop before", "drop after"]


@pytest.fixture
async def host() -> AsyncIterator[FakeE2B]:
    async with fake_e2b() as host:
        yield host


@pytest.fixture
async def processes(tmp_path: Path) -> AsyncIterator[Processes]:
    ledger = ProcessLedger(tmp_path / "pool.sqlite")
    yield Processes(ledger)
    ledger.close()


@pytest.fixture
async def provider(host: FakeE2B) -> AsyncIterator[E2BProvider]:
    provider = E2BProvider(e2b_settings(host))
    yield provider
    await provider.close()


async def count_runs(provider: E2BProvider, processes: Processes, host: FakeE2B, faults: list[Fault]) -> str:
    """Return how often a command ran that was called once, with these faults in the way."""
    sandbox = await provider.start(SPEC, processes)
    host.faults = faults
    result = await sandbox.execute(["bash", "-c", "echo ran >>runs; cat runs"], timeout_s=LONG_SECONDS)
    assert not host.faults
    return result.output.decode()


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("path", ["/files", START])
async def test_a_command_runs_once_whatever_breaks(
    provider: E2BProvider, processes: Processes, host: FakeE2B, path: str, kind: str
) -> None:
    assert await count_runs(provider, processes, host, [Fault(path, kind), Fault(path, kind)]) == "ran\n"


async def test_a_silent_connection_counts_as_lost(host: FakeE2B, processes: Processes) -> None:
    from dataclasses import replace

    provider = E2BProvider(e2b_settings(host, replace(QUICK, silence_s=4.0)))
    assert await count_runs(provider, processes, host, [Fault(START, "hang")]) == "ran\n"
    await provider.close()


@pytest.mark.parametrize("kind", FAULTS)
async def test_a_start_whose_answer_is_lost_leaves_no_second_machine(
    provider: E2BProvider, processes: Processes, host: FakeE2B, kind: str
) -> None:
    host.faults = [Fault("/sandboxes", kind)]
    sandbox = await provider.start(SPEC, processes)
    assert len(host.machines) == 1
    await sandbox.stop()
    assert not host.machines


@pytest.mark.parametrize("kind", FAULTS)
async def test_a_stop_is_confirmed(provider: E2BProvider, processes: Processes, host: FakeE2B, kind: str) -> None:
    sandbox = await provider.start(SPEC, processes)
    (machine_id,) = host.machines
    host.faults = [Fault(machine_id, kind)]
    await sandbox.stop()
    assert not host.machines
    heard = len(host.heard)
    await sandbox.stop()
    assert len(host.heard) == heard


async def test_a_stop_that_failed_can_be_repeated(provider: E2BProvider, processes: Processes, host: FakeE2B) -> None:
    sandbox = await provider.start(SPEC, processes)
    host.faults = [Fault("", "500") for _ in range(QUICK.tries)]
    with pytest.raises(InfraError, match="cannot end a sandbox: 500"):
        await sandbox.stop()
    await sandbox.stop()
    assert not host.machines


async def test_a_host_that_stays_broken_is_an_error_of_the_infrastructure(
    provider: E2BProvider, processes: Processes, host: FakeE2B
) -> None:
    sandbox = await provider.start(SPEC, processes)
    host.faults = [Fault("", "500") for _ in range(QUICK.tries)]
    with pytest.raises(InfraError, match="500 a fault"):
        await sandbox.execute(["true"], timeout_s=LONG_SECONDS)
    assert not host.faults, "no more and no fewer tries"


async def test_the_wait_that_the_host_asks_for_is_kept() -> None:
    assert QUICK.wait_s(1, "30") == QUICK.longest_s
    assert QUICK.wait_s(1, "0") <= QUICK.first_s
    assert QUICK.wait_s(9, None) == QUICK.longest_s
    assert QUICK.wait_s(1, "soon") <= QUICK.first_s


@pytest.mark.parametrize("path", ["/files", START])
async def test_a_machine_that_is_gone_is_said_at_once(
    provider: E2BProvider, processes: Processes, host: FakeE2B, path: str
) -> None:
    sandbox = await provider.start(SPEC, processes)
    host.faults = [Fault(path, "gone")]
    heard = len(host.heard)
    with pytest.raises(InfraError, match="is gone") as caught:
        await sandbox.execute(["true"], timeout_s=LONG_SECONDS)
    assert caught.value.code == "sandbox_gone"
    assert len(host.heard) - heard <= 2, "it is not tried again"
    await sandbox.stop()


async def test_a_supervisor_that_was_killed_is_said(provider: E2BProvider, processes: Processes, host: FakeE2B) -> None:
    sandbox = await provider.start(SPEC, processes)
    line = "p=$PPID; while [ $p -gt 1 ]; do q=$(awk '/^PPid/ {print $2}' /proc/$p/status);"
    line += " grep -q local_supervisor /proc/$q/cmdline || break; p=$q; done; kill -9 $p; sleep 600"
    with pytest.raises(InfraError, match="supervisor of the e2b sandbox ended"):  # here it is not number 1
        await sandbox.execute(["bash", "-c", line], timeout_s=LONG_SECONDS)


async def test_walls_that_cannot_be_built_are_said(provider: E2BProvider, processes: Processes, host: FakeE2B) -> None:
    host.unshare_fails = "unshare: Operation not permitted"
    with pytest.raises(InfraError, match="Operation not permitted"):
        await provider.start(SPEC, processes)
    assert not host.machines


async def test_a_start_that_is_cancelled_leaves_nothing(
    provider: E2BProvider, processes: Processes, host: FakeE2B
) -> None:
    host.faults = [Fault("/files", "hang")]
    task = asyncio.create_task(provider.start(SPEC, processes))
    while host.faults:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not host.machines


async def test_the_machine_gets_the_limits_and_no_internet(
    provider: E2BProvider, processes: Processes, host: FakeE2B
) -> None:
    limits = Limits(memory_mib=300, cpus=1.5, processes=77, disk_mib=20, open_files=99)
    sandbox = await provider.start(SandboxSpec(limits, image="my-template:v2"), processes)
    (machine,) = host.machines.values()
    assert machine.asked["allow_internet_access"] is False
    assert machine.asked["autoPause"] is False
    assert machine.asked["templateID"] == "my-template:v2"
    assert machine.asked["timeout"] == 1800
    assert machine.sizes == [str(320 << 20), "150000 100000", "77", str(20 << 20), "1000"]
    result = await sandbox.execute(["bash", "-c", "ulimit -Hn"], timeout_s=LONG_SECONDS)
    assert result.output == b"99\n"


async def test_a_machine_lives_as_long_as_it_is_used(host: FakeE2B, processes: Processes) -> None:
    provider = E2BProvider(e2b_settings(host, lifetime_s=1000))
    sandbox = await provider.start(SPEC, processes)
    (machine,) = host.machines.values()
    await sandbox.execute(["true"], timeout_s=400.0)
    assert machine.extended == [], "it lives longer than the command"
    await sandbox.execute(["true"], timeout_s=700.5)
    assert machine.extended == [1701]
    sandbox._ends = time.monotonic() + 499
    await sandbox.read_file("/etc/hostname")
    assert machine.extended == [1701, 1000]
    await provider.close()


async def test_a_crashed_pool_s_machines_are_ended_and_no_others(
    provider: E2BProvider, processes: Processes, host: FakeE2B, tmp_path: Path
) -> None:
    other_ledger = ProcessLedger(tmp_path / "other.sqlite")
    for _ in range(3):
        await provider.start(SPEC, processes)
    await provider.start(SPEC, Processes(other_ledger))
    host.page = 2
    assert await provider.sweep(processes.pool) == 3
    assert [each.metadata["agentrl-pool"] for each in host.machines.values()] == [other_ledger.pool]
    assert await provider.sweep(processes.pool) == 0
    other_ledger.close()


async def test_a_pool_keeps_its_name(tmp_path: Path) -> None:
    names: set[str] = set()
    for _ in range(2):
        ledger = ProcessLedger(tmp_path / "pool.sqlite")
        names.add(Processes(ledger).pool)
        ledger.close()
    assert len(names) == 1


async def test_what_is_refused(provider: E2BProvider, processes: Processes, host: FakeE2B) -> None:
    with pytest.raises(InvalidError, match="use bubblewrap, docker or podman for doors"):
        await provider.start(SandboxSpec(doors=[Door(80, Path("/run/x"))]), processes)
    with pytest.raises(InvalidError, match="build the files into its template"):
        await provider.start(SandboxSpec(mounts=[Mount(Path("/etc"), "/x")]), processes)
    for image in ("../x", "", "--flag", "a b", "missing"):
        if image:
            with pytest.raises(InvalidError, match="template"):
                await provider.start(SandboxSpec(image=image), processes)
    assert not host.machines


async def test_the_key_is_asked_for_and_never_shown(
    host: FakeE2B, processes: Processes, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ConfigError, match="set E2B_API_KEY"):
        E2BSettings.read({})
    settings = E2BSettings.read({"E2B_API_KEY": "secret-key", "E2B_DOMAIN": "example.org"})
    assert (settings.key, settings.domain) == ("secret-key", "example.org")
    assert "secret-key" not in repr(settings)
    caplog.set_level(logging.DEBUG)
    provider = E2BProvider(
        E2BSettings("wrong-key", "stand-in", url=host.url, inside_url=f"{host.url}/inside", retry_budget=QUICK)
    )
    with pytest.raises(InfraError, match="does not accept the key") as caught:
        await provider.check()
    await provider.close()
    assert "wrong-key" not in f"{caught.value} {caught.value.__cause__!r} {caplog.text}"


async def test_the_check_attacks_a_machine(
    provider: E2BProvider, host: FakeE2B, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "SOURCE", saying(GOOD))
    await provider.check()
    assert not host.machines
    (machine,) = host.ended
    assert machine.sizes[2] == str(probe.CHECKED.processes)
    monkeypatch.setattr(probe, "SOURCE", saying({**GOOD, "reached": ["1.1.1.1"]}))
    with pytest.raises(InfraError, match=r"e2b: sandboxes do not hold .*addresses outside answer: \['1.1.1.1'\]"):
        await provider.check()
    monkeypatch.setattr(probe, "SOURCE", "raise SystemExit('no python here')")
    with pytest.raises(InfraError, match=r"did not finish.*no python here"):
        await provider.check()
    assert not host.machines


async def test_large_files_and_files_that_are_too_large(
    provider: E2BProvider, processes: Processes, host: FakeE2B
) -> None:
    sandbox = await provider.start(SPEC, processes)
    data = bytes(5 << 20)
    await sandbox.write_file(f"{HOME}/big", data)
    assert await sandbox.read_file(f"{HOME}/big", most_bytes=1 << 30) == data
    with pytest.raises(InvalidError, match="bytes are more than"):
        await sandbox.write_file(f"{HOME}/big", bytes((64 << 20) + 1))
    host.faults = [Fault("/files", "507")]
    with pytest.raises(InvalidError, match="disk is full"):
        await sandbox.write_file(f"{HOME}/big", data)


async def test_answers_are_not_kept_for_ever(provider: E2BProvider, processes: Processes, host: FakeE2B) -> None:
    sandbox = await provider.start(SPEC, processes)
    for _ in range(3):
        await sandbox.execute(["true"], timeout_s=LONG_SECONDS)
    (machine,) = host.machines.values()
    calls = [json.dumps(each[each.index("call") + 2 :]) for each in machine.starts if "call" in each]
    assert calls == ['["0"]', '["1", "0"]', '["2", "1"]', '["3", "2"]']
