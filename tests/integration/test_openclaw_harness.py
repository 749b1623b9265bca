"""The real OpenClaw in a real sandbox: it solves a task behind the gateway, its turns become samples, and it ends in time."""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentrl.client import HttpLeases, episode
from agentrl.environment import Task
from agentrl.exceptions import InfraError
from agentrl.harness import openclaw
from agentrl.harness.environment import HarnessEnvironment
from agentrl.processes import Processes, ProcessLedger
from agentrl.protocol import JsonObject, StepResult, Verdict
from agentrl.sandbox.bubblewrap import Bubblewrap
from agentrl.sandbox.interface import HOME
from agentrl.tasks.shell.generate import generate
from lab.testkit.waiting import eventually
from tests.helpers.node import node_packages
from tests.helpers.qwen_tokenizers import QWEN3_TEMPLATE
from tests.helpers.sandboxes import memory_marks, running
from tests.helpers.shell_agents import oracle
from tests.helpers.stand_in_server import StandInServer, stand_in_server

REPOSITORY = Path(__file__).resolve().parents[2]
PROVIDER = Bubblewrap()
pytestmark = [pytest.mark.timeout(1500), *memory_marks(REPOSITORY, PROVIDER, "OpenClaw needs")]
WORD = "shell/write_word/train/5"
PATIENT_S = 600.0
"""A run takes 15 seconds of processor time, and this machine may be busy."""
SESSION = re.compile(r"sessionId=([0-9a-f-]{36})")
LIMITS_S = (30.0, 60.0, 120.0, 240.0, 480.0)


def call(tool: str, **arguments: Any) -> str:
    """Return a reply that thinks and calls a tool."""
    return (
        "<think>\nA tool helps.\n</think>\n\n"
        f"Let me see.\n<tool_call>\n{json.dumps({'name': tool, 'arguments': arguments})}\n</tool_call>"
    )


def run_agent(episode: dict[str, Any], timeout_s: float) -> JsonObject:
    """Return the action."""
    told = {"harness": "openclaw", "api_key": episode["api_key"], "model": "openclaw-policy", "timeout_s": timeout_s}
    return {"run_agent": told}


@dataclass
class Model:
    """Replies by session, in the order of each session's first request; the last script is for all that follow."""

    scripts: list[list[str]] = field(default_factory=list)
    sessions: dict[str, int] = field(default_factory=dict)

    def __call__(self, prompt: str) -> str:
        """Return the reply that follows as many tool results as the prompt has."""
        found = SESSION.search(prompt)
        assert found, prompt[-2000:]
        session = found[1]
        number = self.sessions.setdefault(session, len(self.sessions))
        script = self.scripts[min(number, len(self.scripts) - 1)]
        return script[min(prompt.count("<tool_response>"), len(script) - 1)]


@dataclass
class Place:
    """A gateway before a scripted model, and environments that run OpenClaw behind it."""

    server: StandInServer
    model: Model
    ledger: ProcessLedger

    async def episode(self, http: httpx.AsyncClient, **settings: Any) -> dict[str, Any]:
        """Create an episode at the gateway."""
        answer = await http.post(
            f"{self.server.url}/v1/episodes", json={"task": WORD, "ttl_s": 3000, "group": None, **settings}
        )
        assert answer.status_code == 200, answer.text
        return answer.json()

    @asynccontextmanager
    async def task(self, sandboxes: Bubblewrap = PROVIDER) -> AsyncIterator[HarnessEnvironment]:
        """Prepare the task, and clear it away."""

        class Tried(HarnessEnvironment):
            provider = sandboxes
            harnesses = {"openclaw": openclaw.OpenClaw()}
            gateway_url = self.server.url

        processes = Processes(self.ledger)
        environment = Tried(processes)
        await environment.reset(Task(WORD), 0)
        try:
            yield environment
        finally:
            await environment.close()
            assert await processes.end() == 0

    async def run(self, environment: HarnessEnvironment, episode: dict[str, Any], timeout_s: float) -> StepResult:
        """Run OpenClaw on the task."""
        told = {
            "harness": "openclaw",
            "api_key": episode["api_key"],
            "model": "openclaw-policy",
            "timeout_s": timeout_s,
        }
        return await environment.step({"run_agent": told})

    async def play(self, http: httpx.AsyncClient, **settings: Any) -> tuple[str, StepResult, Verdict]:
        """Run an episode and reward it; return its id, the run and the verdict."""
        episode = await self.episode(http, **settings)
        async with self.task() as environment:
            step = await self.run(environment, episode, PATIENT_S)
            verdict = await environment.evaluate()
        reward = {"status": verdict.status, "reward": verdict.score}
        answer = await http.post(f"{self.server.url}/v1/episodes/{episode['id']}/reward", json=reward)
        assert answer.status_code == 200, answer.text
        return episode["id"], step, verdict


@pytest.fixture(scope="module", autouse=True)
def packages() -> None:
    """Install OpenClaw, or skip the tests with the reason."""
    node_packages("openclaw")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """Serve a gateway for one test."""
    model, ledger = Model(), ProcessLedger(tmp_path / "processes.sqlite")
    with stand_in_server(tmp_path, model, context_length=32_768) as server:
        server.tokenizer.chat_template = QWEN3_TEMPLATE  # it repeats what was said since the user's last words
        yield Place(server, model, ledger)
    ledger.close()


def envelope(step: StepResult) -> dict[str, Any]:
    """Return what OpenClaw printed."""
    text = step.observation.text
    return json.loads(text[text.index("{\n") :])


async def test_two_at_a_time_are_judged_and_trained_apart(place: Place) -> None:
    solution = [call("exec", command=oracle(WORD)), call("exec", command=f"ls -A {HOME}; echo in $PWD"), "Done."]
    wrong = [call("write", path="answer.txt", content="wrong\n"), "I am sure."]
    place.model.scripts = [solution, wrong]
    async with httpx.AsyncClient(timeout=60) as http:
        together = {"group": "word", "group_size": 2}
        ran = await asyncio.gather(place.play(http, **together), place.play(http, **together))
        states = [(await http.get(f"{place.server.url}/v1/episodes/{name}")).json() for name, _, _ in ran]
    by_status = {verdict.status: (name, step) for name, step, verdict in ran}
    assert sorted(by_status) == ["ok", "task_failed"], [step.observation.text for _, step, _ in ran]
    for status, calls, last in (("ok", 2, "Done."), ("task_failed", 1, "I am sure.")):
        name, step = by_status[status]
        said = envelope(step)
        assert (said["ok"], said["final"], said["toolSummary"]["calls"]) == (True, last, calls)
        assert said["toolSummary"]["failures"] == 0
        turns = [turn for turn in place.server.turns() if name in turn.session_id]
        assert len(turns) == calls + 1
    assert [(state["status"], state["segments"]) for state in sorted(states, key=lambda state: -state["reward"])] == [
        ("ok", 1),
        ("task_failed", 1),
    ]


@pytest.mark.long
async def test_what_openclaw_asks_of_the_model(place: Place) -> None:
    place.model.scripts = [[call("exec", command=f"ls -A {HOME} | wc -l; env"), "Done."]]
    async with httpx.AsyncClient(timeout=60) as http:
        _, step, verdict = await place.play(http)
    assert verdict.status == "task_failed"
    assert envelope(step)["final"] == "Done."
    first, second = (request.body for request in place.server.chats())
    assert {tool["function"]["name"] for tool in first["tools"]} == {"read", "write", "edit", "exec"}
    assert second["messages"][: len(first["messages"])] == first["messages"]
    assert set(first) == {"model", "messages", "tools", "tool_choice", "stream", "stream_options", "max_tokens"}
    system = first["messages"][0]["content"]
    assert "available_skills" not in system
    assert f"Working directory: {HOME}" in system
    seen = second["messages"][-1]["content"].splitlines()
    assert seen[0] == "0", "OpenClaw left something in the task's folder"
    assert f"HOME={HOME}" in seen
    assert not [line for line in seen if "sk-episode" in line]


@pytest.mark.long
async def test_a_model_that_never_ends_is_ended_with_all_it_started(place: Place) -> None:
    mark = f"mark{secrets.token_hex(8)}"
    line = f"setsid bash -c 'exec -a {mark} sleep 3600' >/dev/null 2>&1 & sleep 0.1; echo started"
    place.model.scripts = [[call("exec", command=line)]]
    async with httpx.AsyncClient(timeout=60) as http:
        for limit in LIMITS_S:
            before = len(place.server.chats())
            async with place.task() as environment:
                step = await place.run(environment, await place.episode(http), limit)
                assert step.truncated, step.observation.text
                await eventually(lambda: running(mark), [])
                assert (await environment.evaluate()).status == "task_failed"
            if len(place.server.chats()) > before + 1:
                return
    raise AssertionError("OpenClaw never came to a second request")


@pytest.mark.long
async def test_without_a_control_group_it_is_no_fault_of_the_agent(place: Place) -> None:
    provider = Bubblewrap()
    others = {name: path for name, path in provider.places.parents.items() if name != "memory"}
    provider.places = replace(provider.places, parents=others)
    async with httpx.AsyncClient(timeout=60) as http, place.task(provider) as environment:
        with pytest.raises(InfraError, match="control group"):
            await place.run(environment, await place.episode(http), PATIENT_S)


@pytest.mark.long
async def test_a_pool_lends_it_over_http(place: Place, tmp_path: Path) -> None:
    task = "shell/copy_file/train/3"
    path = min(generate(task).environment)
    place.model.scripts = [[call("read", path=path), call("exec", command=oracle(task)), "Done."]]
    options = ["--env", f"{HarnessEnvironment.__module__}.{HarnessEnvironment.__name__}", "--harness", "openclaw"]
    pool = subprocess.Popen(
        [
            *(sys.executable, "-m", "agentrl.pool", *options, "--slots", "1", "--port", "0"),
            *("--memory-mib", "4096", "--gateway-url", place.server.url, "--ledger", tmp_path / "pool.sqlite"),
        ],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'slime'}"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert pool.stdout is not None
        address = (await asyncio.to_thread(pool.stdout.readline)).rpartition(" ")[2].strip()
        async with httpx.AsyncClient(timeout=60) as http, HttpLeases(address) as leases:
            told = run_agent(await place.episode(http), PATIENT_S)
            async with episode(leases, task, ttl_s=PATIENT_S) as lent:
                await lent.reset(timeout_s=PATIENT_S)
                step = await lent.step(told, timeout_s=2 * PATIENT_S)
                verdict = await lent.evaluate(timeout_s=PATIENT_S)
        assert (verdict.status, verdict.score) == ("ok", 1.0), step.observation.text
        assert envelope(step)["toolSummary"] | {"totalToolTimeMs": 0} == {
            "calls": 2,
            "tools": ["read", "exec"],
            "failures": 0,
            "totalToolTimeMs": 0,
        }
        pool.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(pool.wait, PATIENT_S) == 0
    finally:
        pool.kill()
        pool.wait()
