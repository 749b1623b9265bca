"""OpenClaw as a harness: one turn of its own agent, unmodified, on the task's folder.

Guarantees: OpenClaw sees the working directory as its workspace, and puts nothing of its own there; what it keeps lies below
/tmp. Of its tools it has those that read and write files and run commands, without approvals, because the sandbox is the
boundary. It has no channel, plugin, skill, memory, heartbeat and update check, and asks nothing but the given model.
Each request continues the one before, because without the tool ``process`` OpenClaw adds no passing note to a request.
Commands run to their end; a shell starts others in the background.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from agentrl.exceptions import InfraError
from agentrl.harness.interface import Assignment
from agentrl.sandbox.interface import HOME, ExecResult, Mount, Sandbox
from groundwork.exceptions import ConfigError

PACKAGES = Path(__file__).resolve().parents[2] / ".cache" / "node" / "openclaw" / "node_modules"
INSIDE = "/opt/openclaw/node_modules"
NODE = ".bin/node"
OPENCLAW = "openclaw/openclaw.mjs"
PLACE = "/tmp/openclaw-home"
"""Of its configuration and state, inside."""
V8 = ("--max-old-space-size=512", "--max-semi-space-size=8", "--disable-warning=ExperimentalWarning")
"""Each of its threads has a heap of its own; V8 would size them for a machine without other programs."""
ENVIRONMENT = {
    "OPENCLAW_HOME": PLACE,
    "XDG_CACHE_HOME": PLACE,
    "OPENCLAW_OFFLINE": "1",
    "OPENCLAW_NO_RESPAWN": "1",
    "OPENCLAW_EXEC_SHELL_SNAPSHOT": "0",
    "NODE_DISABLE_COMPILE_CACHE": "1",
    "NO_COLOR": "1",
}
PROVIDER = "episode"
MAX_REPLY = 8192
"""Tokens of one reply; at most a quarter of the context."""
REQUEST_SECONDS = 3600
"""Seconds that a reply may take; an engine may stand still while it gets new weights."""
MAX_OUTPUT = 16_384
ASK_SECONDS = 120.0
ASK = """
const headers = { Authorization: `Bearer ${process.env.KEY}` };
const answer = await fetch(`${process.env.URL}/models`, { headers });
const body = await answer.text();
if (!answer.ok) throw new Error(`status ${answer.status}: ${body.slice(0, 500)}`);
console.log(JSON.parse(body).data[0].max_model_len);
"""
CANNOT_START = (126, 127)
NO_ADDRESSES = b"Failed to reserve virtual memory"
"""What V8 says when a process may have less memory than its threads reserve; it uses a small part of that."""


class OpenClaw:
    """The release that ``tests/openclaw/package-lock.json`` pins."""

    name = "openclaw"
    memory_mib = 1280
    processes = 64

    def mounts(self) -> Sequence[Mount]:
        """Return the folder of OpenClaw's packages, Node among them.

        Raises:
            ConfigError: it is not installed.
        """
        for program in (NODE, OPENCLAW):
            if not (PACKAGES / program).is_file():
                raise ConfigError(f"there is no {PACKAGES / program}; run bash scripts/setup_node.sh openclaw")
        return [Mount(PACKAGES, INSIDE)]

    async def run(self, sandbox: Sandbox, assignment: Assignment) -> ExecResult:
        """Run one turn of the agent; it ends with the model's last word, an error, or the time limit.

        Raises:
            InfraError: the sandbox is gone, Node does not start, or the model's server does not tell its context.
        """
        begun = monotonic()
        window = await _context_window(sandbox, assignment)
        config, task = f"{PLACE}/openclaw.json", f"{PLACE}/task.md"
        await sandbox.write_file(config, json.dumps(configuration(assignment, window)).encode(), mode=0o600)
        await sandbox.write_file(task, assignment.instruction.encode(errors="replace"))
        result = await sandbox.execute(
            [
                *(f"{INSIDE}/{NODE}", *V8, f"{INSIDE}/{OPENCLAW}"),
                *("agent", "exec", "--config", config, "--cwd", HOME, "--message-file", task),
                *("--timeout", "0", "--json"),
            ],
            timeout_s=max(1.0, assignment.timeout_s - (monotonic() - begun)),
            env=ENVIRONMENT,
            most_output=MAX_OUTPUT,
        )
        _check_started(result)
        return result


def configuration(assignment: Assignment, window: int) -> dict[str, Any]:
    """Return ``openclaw.json``.

    Args:
        assignment: which model, and where it is.
        window: tokens of its context.
    """
    model = {
        "id": assignment.model,
        "name": assignment.model,
        "reasoning": True,
        "input": ["text"],
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
        "contextWindow": window,
        "maxTokens": min(MAX_REPLY, window // 4),
        "compat": {"maxTokensField": "max_tokens", "requiresStringContent": True},
    }
    provider = {
        "baseUrl": assignment.base_url,
        "apiKey": assignment.api_key,
        "api": "openai-completions",
        "timeoutSeconds": REQUEST_SECONDS,
        "models": [model],
    }
    return {
        "update": {"checkOnStart": False},
        "logging": {"level": "error", "consoleLevel": "error", "file": f"{PLACE}/openclaw.log"},
        "models": {"mode": "replace", "catalogRefresh": {"enabled": False}, "providers": {PROVIDER: provider}},
        "agents": {
            "defaults": {
                "model": {"primary": f"{PROVIDER}/{assignment.model}"},
                "skipBootstrap": True,
                "contextInjection": "never",
                "skills": [],
                "heartbeat": {"every": "0m"},
                "compaction": {"memoryFlush": {"enabled": False}},
            }
        },
        "tools": {
            "profile": "coding",
            "allow": ["read", "write", "edit", "exec"],
            "deny": ["apply_patch", "process"],
            "toolSearch": False,
            "fs": {"workspaceOnly": False},
        },
        "plugins": {"enabled": False},
    }


async def _context_window(sandbox: Sandbox, assignment: Assignment) -> int:
    """Return the tokens of the model's context, as its server tells them.

    Raises:
        InfraError: it does not, or Node does not start.
    """
    env = {"URL": assignment.base_url, "KEY": assignment.api_key}
    node = [f"{INSIDE}/{NODE}", "--input-type=module", "-e", ASK]
    result = await sandbox.execute(node, timeout_s=ASK_SECONDS, env=env)
    _check_started(result)
    text = result.output.decode(errors="replace").strip()
    if result.exit_code != 0 or not text.isdecimal():
        said = text.replace(assignment.api_key, "[api key]")[-500:]
        raise InfraError(f"the model's server does not tell its context at /models: {said}", code="no_context_window")
    return int(text)


def _check_started(result: ExecResult) -> None:
    """Raise InfraError if Node or one of its threads did not start."""
    if result.exit_code in CANNOT_START:
        said = result.output.decode(errors="replace")[-500:]
        raise InfraError(f"Node does not start in this sandbox: {said}", code="harness_failed")
    if result.exit_code is not None and result.exit_code < 0 and NO_ADDRESSES in result.output:
        raise InfraError(
            "Node's threads reserve more memory than a process may have here; OpenClaw needs sandboxes whose memory a "
            "control group bounds, see instructions/sandbox.md",
            code="harness_failed",
        )
