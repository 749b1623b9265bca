"""mini-swe-agent is told its task by a file and its key by a variable."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentrl.harness.interface import Assignment
from agentrl.harness.mini_swe_agent import MiniSweAgent
from agentrl.processes import Processes, ProcessLedger
from agentrl.sandbox.interface import SandboxSpec
from tests.helpers.plain_sandboxes import PlainProvider

ASSIGNMENT = Assignment("Do: {{it}} 'now'.\n\N{SNOWMAN}", "http://127.0.0.1:30000/v1", "sk-key", "claude-like", 9.0)
PROGRAM = """#!/bin/bash
echo "arguments: $*"; echo "variables:"; env | sort; pwd
"""


async def test_what_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "installed" / "bin" / "python3"
    program.parent.mkdir(parents=True)
    program.write_text(PROGRAM)
    program.chmod(0o755)
    monkeypatch.setattr(MiniSweAgent, "inside", str(program.parent.parent))
    ledger = ProcessLedger(tmp_path / "ledger.sqlite")
    sandbox = await PlainProvider(tmp_path).start(SandboxSpec(), Processes(ledger))
    monkeypatch.setattr(sandbox, "here", lambda text: text.replace("/work", f"{sandbox.folder}/work"))
    written: dict[str, bytes] = {}

    async def write(path: str, data: bytes, *, mode: int = 0o644) -> None:
        written[path] = data

    monkeypatch.setattr(sandbox, "write_file", write)
    result = await MiniSweAgent(step_limit=7, command_s=8, attempts=3).run(sandbox, ASSIGNMENT)
    await sandbox.stop()
    ledger.close()
    ((path, data),) = written.items()
    told = result.output.decode()
    assert path.startswith("/tmp/")
    assert f"-m minisweagent.run.mini -c mini.yaml -c {path} --yolo --exit-immediately" in told.splitlines()[0]
    arguments, _, variables = told.partition("variables:\n")
    assert ASSIGNMENT.api_key not in arguments + data.decode()
    assert {"OPENAI_API_KEY=sk-key", "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT=3"} <= set(variables.splitlines())
    assert variables.endswith("/work\n")
    config = json.loads(data)
    assert config["run"]["task"] == ASSIGNMENT.instruction
    assert config["agent"] == {"step_limit": 7, "cost_limit": 0}
    assert (config["environment"]["timeout"], config["environment"]["env"]) == (8, {"OPENAI_API_KEY": ""})
    assert config["model"]["model_name"] == "openai/claude-like"
    assert config["model"]["model_kwargs"] == {"api_base": ASSIGNMENT.base_url}
    assert config["model"]["set_cache_control"] is None
