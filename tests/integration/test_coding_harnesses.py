"""Claude Code, Codex, opencode and Hermes in a real sandbox: each solves a task behind the gateway, and its turns are one sample."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentrl.environment import Task
from agentrl.harness.environment import HarnessEnvironment
from agentrl.harness.offer import load_harness
from agentrl.processes import Processes, ProcessLedger
from agentrl.sandbox.bubblewrap import Bubblewrap
from agentrl.sandbox.interface import HOME
from tests.helpers.node import REPOSITORY, installed_by
from tests.helpers.qwen_tokenizers import QWEN3_TEMPLATE
from tests.helpers.sandboxes import memory_marks
from tests.helpers.shell_agents import oracle
from tests.helpers.stand_in_server import stand_in_server

PROVIDER = Bubblewrap()
pytestmark = [pytest.mark.timeout(900), *memory_marks(REPOSITORY, PROVIDER, "these programs need")]
WORD = "shell/write_word/train/5"
PATIENT_S = 300.0
LOOK = f"echo left=$(ls -A {HOME} | wc -l) keys=$(env | grep -c sk-)"
"""Counts the task's files, and the variables that hold the episode's key."""
SHELLS: dict[str, Callable[[str], dict[str, Any]]] = {
    "claude-code": lambda line: {"name": "Bash", "arguments": {"command": line, "description": "Solve the task"}},
    "codex": lambda line: {"name": "exec_command", "arguments": {"cmd": line}},
    "hermes": lambda line: {"name": "terminal", "arguments": {"command": line}},
    "opencode": lambda line: {"name": "bash", "arguments": {"command": line, "description": "Solve the task"}},
}
"""The call by which a program's model runs a line of bash."""


class Model:
    """Looks around, solves the task, and says so; thinks if the program sends thoughts back."""

    def __init__(self, name: str) -> None:
        """Prepare the replies."""
        thought = "" if name == "hermes" else "<think>\nA tool helps.\n</think>\n\n"
        calls = [SHELLS[name](line) for line in (LOOK, oracle(WORD))]
        self.script = [f"{thought}Let me see.\n<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls]
        self.script.append(f"{thought}Done.")
        self.prompts: list[str] = []

    def __call__(self, prompt: str) -> str:
        """Return the reply that follows as many tool results as the prompt has."""
        self.prompts.append(prompt)
        return self.script[prompt.count("<tool_response>")]


@pytest.mark.parametrize("name", SHELLS)
async def test_a_program_solves_a_task(name: str, tmp_path: Path) -> None:
    harness = load_harness(name)
    installed_by(*harness.setup)  # type: ignore[attr-defined]
    model, ledger = Model(name), ProcessLedger(tmp_path / "processes.sqlite")
    with stand_in_server(tmp_path, model, context_length=100_000) as server:
        server.tokenizer.chat_template = QWEN3_TEMPLATE  # it repeats what was said since the user's last words

        class Tried(HarnessEnvironment):
            provider = PROVIDER
            harnesses = {name: harness}
            gateway_url = server.url

        environment = Tried(Processes(ledger))
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
            episode = (await http.post("/v1/episodes", json={"task": WORD, "ttl_s": 3000, "group": None})).json()
            told = {"harness": name, "api_key": episode["api_key"], "model": "policy", "timeout_s": PATIENT_S}
            try:
                await environment.reset(Task(WORD), 0)
                step = await environment.step({"run_agent": told})
                verdict = await environment.evaluate()
            finally:
                await environment.close()
            reward = {"status": verdict.status, "reward": verdict.score}
            await http.post(f"/v1/episodes/{episode['id']}/reward", json=reward)
            state = (await http.get(f"/v1/episodes/{episode['id']}")).json()
        assert (verdict.status, verdict.score) == ("ok", 1.0), step.observation.text
        assert (step.truncated, step.observation.data["exit_code"]) == (False, 0)
        assert "Done." in step.observation.text
        assert episode["api_key"].startswith("sk-")
        assert "left=0" in model.prompts[-1], "the program left something in the task's folder"
        if name != "claude-code":  # it would ask for approvals if it hid the key
            assert "keys=0" in model.prompts[-1], "commands of the model inherit the key"
        assert (len(server.turns()), state["segments"]) == (3, 1)
    ledger.close()
