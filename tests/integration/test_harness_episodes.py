"""A real agent program in a real sandbox on a real task: only the model behind its door is a script."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from agentrl.client import Episode, InProcessLeases, episode
from agentrl.environment import Registry, Weight
from agentrl.exceptions import InfraError, NotFoundError
from agentrl.harness.environment import HarnessEnvironment
from agentrl.harness.mini_swe_agent import MiniSweAgent
from agentrl.harness.swe import SweHarness
from agentrl.leases.metrics import PoolMetrics
from agentrl.leases.pool import Capacity, Pool
from agentrl.processes import ProcessLedger
from agentrl.protocol import JsonObject
from agentrl.sandbox.bubblewrap import Bubblewrap
from lab.testkit.waiting import eventually
from tests.helpers.sandboxes import REASON, groups_of, installed, running
from tests.helpers.scripted_chat import called, said, scripted_chat
from tests.helpers.shell_agents import oracle
from tests.helpers.stand_in_server import stand_in_server
from tests.helpers.swe_agents import oracle as swe_oracle

REPOSITORY = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.skipif(not installed(REPOSITORY), reason=REASON),
    pytest.mark.skipif(
        subprocess.run([REPOSITORY / MiniSweAgent.setup[0], "--check"], check=False).returncode != 0,
        reason="needs mini-swe-agent: bash scripts/setup_mini_swe_agent.sh",
    ),
]
WORD = "shell/write_word/train/1"
KEY = "sk-episode-0123456789"
SUBMIT = called("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
FOREVER = "bash -c 'setsid bash -c \"trap : TERM; exec -a {mark} sleep 1000\" & exec -a {mark} sleep 1000'"
PATIENT_S = 600.0


@pytest.fixture(scope="module")
def provider() -> Bubblewrap:
    return Bubblewrap()


@pytest.fixture
def mark() -> str:
    """A text that names the processes of one test."""
    return f"mark{secrets.token_hex(8)}"


def run_agent(timeout_s: float = PATIENT_S, api_key: str = KEY) -> JsonObject:
    return {"run_agent": {"harness": "mini-swe-agent", "api_key": api_key, "model": "policy", "timeout_s": timeout_s}}


@pytest.fixture
def lending(provider: Bubblewrap, tmp_path: Path) -> Callable[..., Any]:
    """Return a pool with mini-swe-agent; afterwards nothing of it may be left."""

    @asynccontextmanager
    async def pool(
        gateway_url: str, kind: type[HarnessEnvironment] = HarnessEnvironment, **limits: int
    ) -> AsyncIterator[InProcessLeases]:
        Running = type("Running", (kind,), {"harnesses": {"mini-swe-agent": MiniSweAgent(**limits)}})
        Running.provider = provider
        Running.gateway_url = gateway_url
        ledger = ProcessLedger(tmp_path / "pool.sqlite")
        lent = Pool(Registry([Running]), Capacity(1, Weight(2000, 2.0)), ledger, PoolMetrics(CollectorRegistry()))
        await lent.start()
        try:
            yield InProcessLeases(lent)
        finally:
            assert await lent.stop(PATIENT_S) == 0
            assert await ledger.groups() == []
            assert not groups_of(provider, os.getpid())
            ledger.close()

    return pool


@asynccontextmanager
async def lent(pool: InProcessLeases, task: str = WORD) -> AsyncIterator[Episode]:
    async with episode(pool, task, ttl_s=PATIENT_S) as each:
        await each.reset(timeout_s=PATIENT_S)
        yield each


def tool_results(request: dict[str, Any]) -> Sequence[dict[str, Any]]:
    """Return what the program told the model about its commands."""
    return [json.loads(message["content"]) for message in request["messages"] if message["role"] == "tool"]


async def test_a_model_that_solves_the_task_is_rewarded(lending: Callable[..., Any]) -> None:
    script = [
        called("bash", command="pwd; env; python3 -c 'import litellm'; echo wrong >&2; exit 3"),
        called("bash", command=oracle(WORD)),
        called("bash", command="find /work; ls /opt/mini-swe-agent; touch /opt/mini-swe-agent/x"),
        SUBMIT,
    ]
    async with scripted_chat(script) as chat, lending(chat.url) as pool, lent(pool) as each:
        step = await each.step(run_agent(), timeout_s=2 * PATIENT_S)
        verdict = await each.evaluate(timeout_s=PATIENT_S)
    assert (verdict.status, verdict.score) == ("ok", 1.0), step.observation.text
    assert (step.done, step.truncated, step.observation.data["exit_code"]) == (True, False, 0)
    assert set(chat.keys) == {f"Bearer {KEY}"}
    assert [request["model"] for request in chat.asked] == ["policy"] * len(script)
    assert [tool["function"]["name"] for tool in chat.asked[0]["tools"]] == ["bash"]
    assert "Write the word" in chat.asked[0]["messages"][1]["content"]
    first, _, third = tool_results(chat.asked[-1])
    assert first["returncode"] == 3
    assert first["output"].startswith("/work\n")
    assert first["output"].endswith("ModuleNotFoundError: No module named 'litellm'\nwrong\n")
    assert KEY not in first["output"]
    assert third["output"].startswith("/work\n/work/answer.txt\n")
    assert "Read-only file system" in third["output"]


@pytest.mark.long
async def test_an_issue_of_a_repository(lending: Callable[..., Any]) -> None:
    name = "swe/pages/train/2"
    script = [called("bash", command=f"git log --oneline; ls\n{swe_oracle(name)}"), SUBMIT]
    async with scripted_chat(script) as chat, lending(chat.url, SweHarness) as pool, lent(pool, name) as each:
        step = await each.step(run_agent(), timeout_s=2 * PATIENT_S)
        verdict = await each.evaluate(timeout_s=PATIENT_S)
    assert (verdict.status, verdict.score) == ("ok", 1.0), step.observation.text
    told = chat.asked[0]["messages"][1]["content"]
    assert "The last page is not counted" in told
    assert "one block" not in told, "the program's own prompts say how it works"
    assert "README.md" in tool_results(chat.asked[-1])[0]["output"]


@pytest.mark.long
async def test_our_gateway_captures_a_run(lending: Callable[..., Any], tmp_path: Path) -> None:
    commands = [oracle(WORD), "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"]

    def answer(prompt: str) -> str:
        call = {"name": "bash", "arguments": {"command": commands[min(prompt.count("<tool_response>"), 1)]}}
        return f"Now.\n<tool_call>\n{json.dumps(call)}\n</tool_call>"

    with stand_in_server(tmp_path, answer, api_key="operator", context_length=65536) as server:
        async with httpx.AsyncClient(base_url=server.url, headers={"Authorization": "Bearer operator"}) as operator:
            made = (await operator.post("/v1/episodes", json={"task": WORD, "ttl_s": 3600})).json()
            async with lending(server.url) as pool, lent(pool) as each:
                step = await each.step(run_agent(api_key=made["api_key"]), timeout_s=2 * PATIENT_S)
                verdict = await each.evaluate(timeout_s=PATIENT_S)
            assert (verdict.status, verdict.score) == ("ok", 1.0), step.observation.text
            reward = {"status": verdict.status, "reward": verdict.score}
            rewarded = await operator.post(f"/v1/episodes/{made['id']}/reward", json=reward)
            assert rewarded.status_code == 200, rewarded.text
            state = (await operator.get(f"/v1/episodes/{made['id']}")).json()
    assert (state["state"], state["status"], state["reward"]) == ("settled", "ok", 1.0)
    assert (state["counts"]["turns"], state["counts"]["aborted"], state["counts"]["reasons"]) == (2, 0, {})
    assert state["counts"]["samples"] == {"ready": state["segments"]}


async def test_a_model_that_does_nothing_has_failed(lending: Callable[..., Any]) -> None:
    async with scripted_chat([said("I would rather not."), SUBMIT]) as chat, lending(chat.url) as pool:
        async with lent(pool) as each:
            step = await each.step(run_agent(), timeout_s=2 * PATIENT_S)
            verdict = await each.evaluate(timeout_s=PATIENT_S)
    assert (verdict.status, verdict.score) == ("task_failed", 0.0), step.observation.text
    assert "Tool call error" in chat.asked[1]["messages"][-1]["content"]


@pytest.mark.long
async def test_a_model_that_never_stops_reaches_its_limit_of_steps(lending: Callable[..., Any]) -> None:
    async with scripted_chat([called("bash", command="true")]) as chat, lending(chat.url, step_limit=3) as pool:
        async with lent(pool) as each:
            step = await each.step(run_agent(), timeout_s=2 * PATIENT_S)
            assert (await each.evaluate(timeout_s=PATIENT_S)).status == "task_failed"
    assert (len(chat.asked), step.truncated) == (3, False), step.observation.text


@pytest.mark.long
async def test_nothing_survives_the_time_limit(lending: Callable[..., Any], mark: str) -> None:
    script = [called("bash", command=FOREVER.format(mark=mark))]
    seen = False
    async with scripted_chat(script) as chat, lending(chat.url, command_s=1000) as pool, lent(pool) as each:
        for timeout_s in (10.0, 40.0, 160.0):  # the command has to begin, on a machine that is busy
            await each.reset(timeout_s=PATIENT_S)
            step = asyncio.create_task(each.step(run_agent(timeout_s), timeout_s=2 * PATIENT_S))
            while not step.done():
                seen = seen or bool(running(mark))
                await asyncio.sleep(0.02)
            ended = await step
            assert (ended.done, ended.truncated, ended.observation.data["exit_code"]) == (True, True, None)
            await eventually(lambda: running(mark), [])
            if seen:
                break
        assert seen
        assert (await each.evaluate(timeout_s=PATIENT_S)).status == "task_failed"


async def test_a_gateway_that_is_killed_is_never_the_agent_s_doing(lending: Callable[..., Any]) -> None:
    gateway = subprocess.Popen(
        [sys.executable, "-m", "tests.helpers.scripted_chat", oracle(WORD)],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'slime'}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert gateway.stdout is not None
    try:
        url = (await asyncio.to_thread(gateway.stdout.readline)).strip()
        async with lending(url, attempts=2) as pool, lent(pool) as each:
            step = asyncio.create_task(each.step(run_agent(), timeout_s=2 * PATIENT_S))
            assert await asyncio.to_thread(gateway.stdout.readline) == "asked again\n"
            gateway.kill()
            with pytest.raises(InfraError, match="the gateway failed mini-swe-agent"):
                await step
            verdict = await each.evaluate(timeout_s=PATIENT_S)
            assert (verdict.status, verdict.score) == ("infra_error", None)
    finally:
        gateway.kill()
        gateway.wait()
        gateway.stdout.close()


async def test_a_released_lease_ends_the_program_and_its_commands(
    lending: Callable[..., Any], provider: Bubblewrap, mark: str
) -> None:
    script = [called("bash", command=FOREVER.format(mark=mark))]
    async with scripted_chat(script) as chat, lending(chat.url, command_s=1000) as pool:
        async with lent(pool) as each:
            step = asyncio.create_task(each.step(run_agent(), timeout_s=2 * PATIENT_S))
            await eventually(lambda: len(running(mark)) >= 2, True, PATIENT_S)
        with pytest.raises(NotFoundError):
            await step
        await eventually(lambda: running(mark), [])
        await eventually(lambda: groups_of(provider, os.getpid()), set())
