"""Agent programs in containers: a stand-in for the engine's command line, and a scripted gateway behind a real door."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from agentrl.environment import Task
from agentrl.harness import environment as environments
from agentrl.harness.environment import HarnessEnvironment
from agentrl.harness.interface import Assignment
from agentrl.processes import Processes, ProcessLedger
from agentrl.sandbox.interface import ExecResult, Mount, Sandbox
from tests.helpers.fake_container_engine import FakeEngine
from tests.helpers.sandbox_worlds import container
from tests.helpers.scripted_chat import said, scripted_chat
from tests.helpers.scripted_harness import PATIENT_S, ScriptedHarness

WORD = "shell/write_word/train/1"
KEY = "sk-episode-0123456789"
ASK = """
import sys, urllib.request
url, key = sys.argv[1:]
request = urllib.request.Request(url + "/chat/completions", b"{}", {"Authorization": "Bearer " + key})
print(urllib.request.urlopen(request, timeout=60).read().decode())
"""


async def play(sandbox: Sandbox, assignment: Assignment) -> ExecResult:
    """Ask the model from inside."""
    words = ["python3", "-c", ASK, assignment.base_url, assignment.api_key]
    return await sandbox.execute(words, timeout_s=PATIENT_S)


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    """The model's port inside, which with the stand-in is one of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        found = free.getsockname()[1]
    monkeypatch.setattr(environments, "PORT", found)
    return found


@pytest.mark.parametrize("engine", ["docker", "podman"])
async def test_a_program_in_a_container_reaches_the_gateway(engine: str, port: int, tmp_path: Path) -> None:
    fake, packages = FakeEngine(tmp_path / "engine", engine), tmp_path / "packages"
    packages.mkdir()
    ledger = ProcessLedger(tmp_path / "pool.sqlite")

    class Running(HarnessEnvironment):
        harnesses = {"scripted": ScriptedHarness(play, shown=[Mount(packages, "/opt/scripted")])}

    Running.provider = container(fake)
    running = Running(Processes(ledger))
    try:
        async with scripted_chat([said("hello from the model")]) as chat:
            Running.gateway_url = chat.url
            await running.reset(Task(WORD), 0)
            asked = {"harness": "scripted", "api_key": KEY, "model": "policy", "timeout_s": PATIENT_S}
            step = await running.step({"run_agent": asked})
            assert "hello from the model" in step.observation.text
            assert (step.observation.data["exit_code"], chat.keys) == (0, [f"Bearer {KEY}"])
        (words,) = fake.calls("run")
        assert f"type=bind,source={packages},target=/opt/scripted,readonly" in words
        assert KEY not in " ".join(words)
        await running.evaluate()  # what it says is of no worth: the stand-in lacks the files of a container
        assert len(fake.calls("run")) == 3, (
            "the verifier has a container of its own, and tries the untouched task in another"
        )
    finally:
        await running.close()
        ledger.close()
    assert fake.alive() == []
