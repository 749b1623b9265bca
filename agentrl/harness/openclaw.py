"""OpenClaw as a harness: one turn of its own agent, unmodified, on the task's folder.

Guarantees: OpenClaw sees the working directory as its workspace, and puts nothing of its own there; what it keeps lies below
/tmp. Of its tools it has those that read and write files and run commands, without approvals, because the sandbox is the
boundary. It has no channel, plugin, skill, memory, heartbeat and update check, and asks nothing but the given model.
Each request continues the one before, because without the tool ``process`` OpenClaw adds no passing note to a request.
Commands run to their end; a shell starts others in the background.
"""

from __future__ import annotations

import json
from typing import Any

from agentrl.harness.interface import Assignment
from agentrl.harness.program import REQUEST_SECONDS, Launch, Program, context_window, longest_reply, node_packages
from agentrl.sandbox.interface import HOME, Sandbox

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


class OpenClaw(Program):
    """The release that ``tests/openclaw/package-lock.json`` pins."""

    name = "openclaw"
    memory_mib = 1280
    processes = 64
    setup = ("scripts/setup_node.sh", "openclaw")
    installed = node_packages("openclaw")
    inside = "/opt/openclaw/node_modules"

    async def launch(self, assignment: Assignment, sandbox: Sandbox) -> Launch:
        """Return one turn of the agent; it ends with the model's last word or an error."""
        window = await context_window(sandbox, assignment)
        config, task = f"{PLACE}/openclaw.json", f"{PLACE}/task.md"
        return Launch(
            command=[
                *(f"{self.inside}/{NODE}", *V8, f"{self.inside}/{OPENCLAW}"),
                *("agent", "exec", "--config", config, "--cwd", HOME, "--message-file", task),
                *("--timeout", "0", "--json"),
            ],
            files={config: json.dumps(configuration(assignment, window)), task: assignment.instruction},
            environment=ENVIRONMENT,
        )


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
        "maxTokens": longest_reply(window),
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
