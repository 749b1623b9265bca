"""The agent loop plays the environments that we ship: shell tasks in real sandboxes, and one of verifiers."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from agentrl.bridges import verifiers
from agentrl.bridges.verifiers import PATH_VARIABLE, PYTHON_VARIABLE, verifiers_environment
from agentrl.tasks.shell.environment import ShellEnvironment
from slime.utils.types import Sample
from tests.helpers.agent_stages import END, staged
from tests.helpers.shell_agents import oracle

pytestmark = pytest.mark.integration
PYTHON = Path(os.environ.get(PYTHON_VARIABLE) or verifiers.PYTHON)
STAND_IN = """#!/usr/bin/python3
import json, sys
if sys.argv[-1] == "tasks":
    print(json.dumps({"tasks": [{"idx": 0, "name": "x"}, {"idx": 1, "name": "y"}]}))
else:
    words, said = ("water", "bread"), []
    for line in sys.stdin:
        asked = json.loads(line)
        if "reset" in asked:
            word = words[asked["reset"]]
            messages = [{"role": "system", "content": "One word only."}, {"role": "user", "content": "Guess the word."}]
            answer = {"messages": messages, "done": False}
        elif "step" in asked:
            said.append(asked["step"])
            right = said[-1] == word
            wrong = {"role": "user", "content": "No. It begins with 'b'; 2 left."}
            answer = {"messages": [] if right else [wrong], "done": right}
        else:
            answer = {"reward": float(said[-1] == word), "rewards": {}, "metrics": {}}
        print(json.dumps(answer), flush=True)
"""


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>{END}"


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap: run scripts/setup_bubblewrap.sh")
async def test_shell_tasks(tmp_path: Path, tiny_random_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    solved, failed = "shell/write_word/train/1", "shell/write_word/train/2"
    script = [
        call("ls"),
        call("bash", command="sleep 600", timeout_s=0.2),
        call("write_file", path="solve.sh", content=oracle(solved)),
        call("bash", command="bash solve.sh; status=$?; rm solve.sh; pwd; exit $status"),
        f"Done.{END}",
    ]
    async with staged(ShellEnvironment, script, tmp_path, tiny_random_model, monkeypatch) as on:
        (sample,) = await on.play(on.sample(solved))
        record = on.record()
        assert (sample.status, sample.reward) == (Sample.Status.COMPLETED, 1.0)
        (other,) = await on.play(on.sample(failed))
        assert (other.status, other.reward) == (Sample.Status.COMPLETED, -1.0)
        assert on.record().first("verdict")["score"] == 0.0
    assert [tool["function"]["name"] for tool in record.first("reset")["tools"]] == ["bash", "write_file"]
    assert record.first("verdict")["score"] == 1.0
    unknown, late, written, ran, over = (each["text"] for each in record.events if each["kind"] == "observation")
    assert "there is no tool 'ls'; call bash" in json.loads(unknown)["error"]["message"]
    assert late == "[ended after 0.2 s, with everything that it had started]"
    assert (written, ran, over) == ("wrote solve.sh", "/work\n", "The task has ended.")
    assert (sample.metadata["agent"]["turns"], sample.metadata["agent"]["malformed"]) == (5, 0)


@pytest.mark.parametrize(
    "real",
    [
        False,
        pytest.param(
            True,
            marks=pytest.mark.skipif(not PYTHON.is_file(), reason="needs verifiers: bash scripts/setup_verifiers.sh"),
        ),
    ],
)
async def test_an_environment_of_verifiers(
    real: bool, tmp_path: Path, tiny_random_model: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if real:
        monkeypatch.setenv(PATH_VARIABLE, str(repository / "tests/data/verifiers_environments"))
    else:
        program = tmp_path / "python"
        program.write_text(STAND_IN)
        program.chmod(0o755)
        monkeypatch.setenv(PYTHON_VARIABLE, str(program))
    kind = verifiers_environment("guess_word")
    script = [f"water{END}", f"bread{END}"]
    async with staged(kind, script, tmp_path, tiny_random_model, monkeypatch) as on:
        _, second = kind.tasks()
        (sample,) = await on.play(on.sample(second.id))
        record = on.record()
    assert (sample.status, sample.reward) == (Sample.Status.COMPLETED, 1.0)
    assert record.first("reset")["messages"] == [
        {"role": "system", "content": "One word only."},
        {"role": "user", "content": "Guess the word."},
    ]
    assert record.first("observation")["text"] == "No. It begins with 'b'; 2 left."
