"""The command of the driver: bad input in one line, signals, and a whole run as a process."""

from __future__ import annotations

import asyncio
import io
import signal
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentrl.exceptions import AgentError, InfraError
from agentrl.harness import __main__ as command
from agentrl.harness.__main__ import PROG, build_parser, check_plan, drive, main, read_tasks
from agentrl.harness.driver import Plan
from agentrl.harness.gateway import AwayError
from groundwork.exceptions import ConfigError
from lab.testkit.agent_pools import PATIENT_S, asked, until
from lab.testkit.engine import serve
from tests.helpers.agent_runs import FAILED, SOLVED, AgentPool, Runs, start_pool
from tests.unit.gateway import conftest as gateways

pytestmark = pytest.mark.slow

start, tokenizer = gateways.start, gateways.tokenizer
Stack = gateways.Stack
KEY = "a key of this test"
BASE = ["--harness", "stand-in", "--task", "easy"]
PROCESS_S = 120.0


@pytest.fixture
async def stack(start: gateways.Starter) -> Stack:
    return await start()


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[AgentPool]:
    pool = await start_pool(Runs(), tmp_path / "pool.sqlite", key=KEY)
    yield pool
    pool.runs.gate.set()
    assert await pool.pool.stop(PATIENT_S) == 0
    pool.ledger.close()


@pytest.fixture
async def served(pool: AgentPool, stack: Stack, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[str]]:
    """The words that name the running servers."""
    monkeypatch.setenv("AGENTRL_KEY", KEY)
    monkeypatch.delenv("OPENCLAW_API_KEY", raising=False)
    async with AsyncExitStack() as servers:
        yield ["--pool-url", await servers.enter_async_context(serve(pool.app)), "--gateway-url", stack.url]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "add --harness NAME"),
        (["--harness", "x"], "there is no task; add --tasks FILE or --task ID"),
        (
            ["--harness", "x", "--tasks", "/no/such/file"],
            "--tasks /no/such/file: No such file or directory; name a file",
        ),
        ([*BASE, "--group-size", "0"], "'0' is not a whole number from 1"),
        ([*BASE, "--group-size", "1"], "must be 2 to 1024"),
        ([*BASE, "--spare", "-1"], "'-1' is not a whole number from 1"),
        ([*BASE, "--group-size", "1020", "--spare", "5"], "are 1025 together; a group has at most 1024 runs"),
        (
            [*BASE, "--group-size", "64", "--parallel", "1"],
            "192 runs one after another, 1624620 s, but an episode lasts",
        ),
        ([*BASE, "--timeout-s", "9000"], "a run takes at most 7140 s"),
        ([*BASE, "--epochs", "1", "--groups", "1"], "not allowed with"),
        ([*BASE, "--pool-url", "localhost"], "'localhost' is not an address of a server"),
        ([*BASE, "--gateway-url", "http://h:1/v1"], "is not an address of a server"),
        ([*BASE, "--reward", "half"], "'half' is not one of binary, partial, raw"),
        (["--harness", "x", "--task", "y" * 300], "is not a task's id; ids have at most 256 characters"),
    ],
)
def test_bad_options_are_refused_in_one_line(words: list[str], told: str, capfd: pytest.CaptureFixture[str]) -> None:
    try:
        status = main(words)
    except SystemExit as ended:
        status = ended.code
    assert status == 2
    error = capfd.readouterr().err
    assert error.startswith(f"{PROG}: ")
    assert error.count("\n") == 1
    assert told in error


def test_tasks_come_from_a_file_or_from_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "tasks.txt"
    file.write_text("# the easy ones\na\n\n  b  \n")
    parse = build_parser().parse_args
    assert read_tasks(parse([*BASE, "--tasks", str(file)])) == ["easy", "a", "b"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("c\n"))
    assert read_tasks(parse(["--harness", "x", "--tasks", "-"])) == ["c"]


def driven(words: list[str]) -> Coroutine[Any, Any, int]:
    """Return what the command runs, without its handling of signals."""
    options = build_parser().parse_args([*BASE, *words])
    return drive(options, read_tasks(options))


@pytest.mark.parametrize(
    ("key", "words", "told"),
    [
        ("wrong", [], "the pool refuses the request: missing or wrong key"),
        (KEY, ["--task", "nothing"], "the pool has no task 'nothing'"),
        (KEY, ["--task", "huge"], "the pool cannot lend 'huge'"),
        (KEY, ["--harness", "other"], "the pool refuses to run the agent: this pool offers no harness 'other'"),
    ],
)
async def test_what_the_pool_refuses_is_bad_input(
    served: list[str],
    stack: Stack,
    pool: AgentPool,
    monkeypatch: pytest.MonkeyPatch,
    key: str,
    words: list[str],
    told: str,
) -> None:
    monkeypatch.setenv("AGENTRL_KEY", key)
    with pytest.raises(ConfigError, match=told):
        await driven([*served, *words])
    assert ((await pool.pool.status()).leases, stack.ledger.episodes.open()) == (0, [])


async def test_a_full_pool_is_waited_for(served: list[str], pool: AgentPool) -> None:
    holders = [await pool.pool.lease(asked("easy")) for _ in range(4)]
    driving = asyncio.create_task(driven([*served, "--groups", "1", "--group-size", "2"]))
    await until(lambda: pool.pool._capacity.waiting)
    for leased in holders:
        await pool.pool.release(leased.lease_id)
    assert await driving == 0


@pytest.mark.parametrize("key", [None, "wrong"])
async def test_a_wrong_key_of_the_gateway_is_bad_input(
    start: gateways.Starter, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    stack = await start(api_key="right")
    if key:
        monkeypatch.setenv("OPENCLAW_API_KEY", key)
    with pytest.raises(ConfigError, match="the gateway refuses OPENCLAW_API_KEY") as refused:
        await driven(["--gateway-url", stack.url])
    assert "wrong" not in str(refused.value)


async def test_a_gateway_whose_method_learns_from_no_reward_is_bad_input(served: list[str], stack: Stack) -> None:
    stack.service.episodes._rules = replace(stack.service.episodes._rules, trains_rewards=False)
    with pytest.raises(ConfigError, match="learns from no reward; start it with rl, combine or hybrid"):
        await driven(served)


async def test_servers_that_do_not_answer_end_the_command(
    served: list[str], stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "START_S", 0.2)
    nobody = "http://127.0.0.1:1"
    with pytest.raises(AwayError, match=f"the gateway {nobody} does not answer"):
        await driven([*served, "--gateway-url", nobody])
    with pytest.raises(AgentError, match=f"{nobody} does not answer"):
        await driven([*served, "--pool-url", nobody])
    with pytest.raises(ConfigError, match="the gateway has no episodes"):
        await driven([*served, "--gateway-url", stack.engine.url])


async def begun(words: list[str]) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "agentrl.harness", *BASE, *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def ended(process: asyncio.subprocess.Process) -> tuple[int | None, str, str]:
    async with asyncio.timeout(PROCESS_S):
        out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def test_the_command_drives_a_group(served: list[str], stack: Stack, tmp_path: Path) -> None:
    words = [*served, "--groups", "1", "--group-size", "2", "--records", str(tmp_path / "records")]
    status, out, err = await ended(await begun(words))
    assert (status, err) == (0, "")
    assert "group 0 (easy): mean reward 0.000, solved 1 of 2" in out
    assert "solved share" in out
    assert len(stack.ledger.episodes.all()) == 2
    status, out, err = await ended(await begun(words))
    assert (status, err, len(stack.ledger.episodes.all())) == (0, "", 2)


async def test_the_status_says_whether_all_groups_are_finished(
    served: list[str], pool: AgentPool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool.runs.ends += [SOLVED, FAILED, InfraError("the sandbox is gone", code="gone")]
    words = [*served, "--groups", "3", "--group-size", "2", "--parallel", "1", "--tries", "1"]
    words += ["--records", str(tmp_path / "records")]
    assert await driven(words) == 1
    assert f"{PROG}: 1 of 3 groups are not finished\n" in capsys.readouterr().err
    assert await driven(words) == 0
    assert await driven(words) == 0


def test_a_plan_is_refused_if_its_episodes_cannot_live_as_long_as_their_group() -> None:
    plan = Plan(tasks=["easy"], group_size=64, parallel=1, groups=1, tries=3, most_ready=1, seed=0, metadata={})
    with pytest.raises(ConfigError, match="at most 604800 s; raise --parallel, or lower --timeout-s, --tries"):
        check_plan(plan, 2000.0)
    check_plan(plan, 1800.0)
    check_plan(replace(plan, parallel=4), None)
    with pytest.raises(ConfigError, match="195 runs one after another"):
        check_plan(replace(plan, spare=1), None)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_the_runs_and_leaves_nothing(
    served: list[str], stack: Stack, pool: AgentPool, number: signal.Signals
) -> None:
    pool.runs.gate.clear()
    process = await begun([*served, "--group-size", "3"])
    try:
        async with asyncio.timeout(PROCESS_S):
            while pool.runs.running < 3:
                await asyncio.sleep(0.01)
        process.send_signal(number)
        status, out, err = await ended(process)
    finally:
        if process.returncode is None:
            process.kill()
    assert (status, err) == (128 + number, "")
    assert "runs rewarded" in out
    assert ((await pool.pool.status()).leases, stack.ledger.episodes.all()) == (0, [])
