"""The bridge to `verifiers`: a stand-in worker that dies, hangs or prints garbage."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from agentrl.bridges import verifiers
from agentrl.bridges.verifiers import PYTHON_VARIABLE, VerifiersEnvironment, verifiers_environment
from agentrl.exceptions import InfraError, InvalidError
from agentrl.processes import mark_of
from groundwork.exceptions import ConfigError
from tests.helpers.lone_environments import lent

WORKER = """#!/bin/bash
case "$4" in tasks) {tasks};; play) {play};; esac
"""
PROMPT = """echo '{"messages": [{"role": "user", "content": "hi"}], "done": false}'"""
Fake = Callable[[str, str], type[VerifiersEnvironment]]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Return a function that puts a shell program in the place of the package's Python."""

    def make(tasks: str, play: str = "true") -> type[VerifiersEnvironment]:
        program = tmp_path / "python"
        program.write_text(WORKER.replace("{tasks}", tasks).replace("{play}", play))
        program.chmod(0o755)
        monkeypatch.setenv(PYTHON_VARIABLE, str(program))
        return verifiers_environment("stand-in")

    return make


ONE = """echo '{"tasks": [{"idx": 7, "name": "x"}]}'"""


@pytest.mark.parametrize(
    ("tasks", "wrong"),
    [
        ("""echo '{"error": "it needs a judge"}'""", "cannot be played: it needs a judge"),
        ("echo garbage; echo 'no module' >&2", "its worker said no module"),
        ("exit 3", "its worker said nothing"),
    ],
)
def test_an_environment_that_cannot_be_played_says_why(fake: Fake, tasks: str, wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        fake(tasks, "true").tasks()


def test_a_worker_that_does_not_list_its_tasks_is_given_up(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifiers, "TASKS_S", 0.2)
    with pytest.raises(ConfigError, match="did not list its tasks"):
        fake("exec sleep 600", "true").tasks()


@pytest.mark.parametrize(
    ("play", "code"),
    [
        ("read; exit 3", "worker_lost"),
        ("exit 3", "worker_lost"),
        ("read; echo garbage; read", "worker_garbage"),
        ("read; echo '[1]'; read", "worker_garbage"),
        ("read; echo '{}'; read", "worker_garbage"),
        ("read; printf '[%.0s' {1..20000}; echo; read", "worker_garbage"),
        ("""read; printf '{"a":['; printf '[],%.0s' {1..60000}; echo '1]}'; read""", "worker_garbage"),
        ("read; printf '{'; exit 0", "worker_lost"),
        ("""read; echo '{"error": "no dataset"}'; read""", "worker_failed"),
    ],
)
async def test_a_worker_that_fails_is_an_infrastructure_failure(
    fake: Fake, play: str, code: str, tmp_path: Path
) -> None:
    kind = fake(ONE, play)
    (task,) = kind.tasks()
    assert (task.id, task.data) == ("stand-in/7", {"idx": 7})
    async with lent(kind, tmp_path) as environment:
        with pytest.raises(InfraError) as failure:
            await environment.reset(task, 0)
    assert failure.value.code == code


async def test_a_worker_that_hangs_ends_with_its_lease_and_is_of_no_more_use(fake: Fake, tmp_path: Path) -> None:
    kind = fake(ONE, f"read; {PROMPT}; read; exec sleep 600")
    (task,) = kind.tasks()
    async with lent(kind, tmp_path) as environment:
        assert (await environment.reset(task, 0)).text == "hi"
        assert environment._lines is not None
        pid = environment._lines._process.pid
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await environment.step({"text": "x"})
        with pytest.raises(InfraError, match="failed before"):
            await environment.step({"text": "x"})
        assert mark_of(pid)
    assert mark_of(pid) is None


async def test_a_wrong_action_goes_on(fake: Fake, tmp_path: Path) -> None:
    kind = fake(ONE, f"read; {PROMPT}; read; {PROMPT}; read")
    (task,) = kind.tasks()
    async with lent(kind, tmp_path) as environment:
        await environment.reset(task, 0)
        for action in ({}, {"text": 1}, {"content": "x"}, {"text": "x", "tool_calls": []}):
            with pytest.raises(InvalidError, match="send the reply as"):
                await environment.step(action)  # pyright: ignore[reportArgumentType]
        assert (await environment.step({"text": "x"})).observation.text == "hi"


def test_without_the_package_the_command_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PYTHON_VARIABLE, "/no/such/python")
    with pytest.raises(ConfigError, match=r"run bash scripts/setup_verifiers\.sh"):
        verifiers_environment("x")
    with pytest.raises(ConfigError, match="write verifiers:NAME"):
        verifiers_environment("")
