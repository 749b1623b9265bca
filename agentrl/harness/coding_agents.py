"""Claude Code, Codex, opencode and Hermes as harnesses: one run of each, unmodified, on the task's folder.

Guarantees: each has its shell and its tools for files, without approvals, because the sandbox is the boundary. None has a side
call for a title, a sub-agent, a plugin or an update, so that its requests are the task's. What it keeps lies below /tmp. Commands of
the model have no variable with the key, but those of Claude Code, which takes approvals back where it hides the key.
"""

from __future__ import annotations

import json

from agentrl.harness.interface import Assignment
from agentrl.harness.program import REQUEST_SECONDS, ROOT, Launch, Program, context_window, longest_reply, node_packages
from agentrl.sandbox.interface import HOME, Sandbox

KEY = "AGENT_API_KEY"
"""The variable that holds the episode's key for Codex."""


class ClaudeCode(Program):
    """The release that ``requirements/clients/claude_code`` pins; it speaks the Messages API."""

    name = "claude-code"
    memory_mib = 1024
    processes = 64
    setup = ("scripts/setup_node.sh", "claude_code")
    installed = node_packages("claude_code") / "@anthropic-ai" / "claude-code-linux-x64"
    inside = "/opt/claude-code"

    async def launch(self, assignment: Assignment, sandbox: Sandbox) -> Launch:
        """Return its start; it ends with the model's last word or an error."""
        window = await context_window(sandbox, assignment)
        return Launch(
            command=[
                *(f"{self.inside}/claude", "--permission-mode", "bypassPermissions", "--output-format", "json"),
                *("--tools", "Bash,Read,Edit,Write", "--print", "--", assignment.instruction),
            ],
            environment={
                "ANTHROPIC_BASE_URL": assignment.base_url.removesuffix("/v1"),
                "ANTHROPIC_AUTH_TOKEN": assignment.api_key,
                "ANTHROPIC_MODEL": assignment.model,
                "API_TIMEOUT_MS": str(REQUEST_SECONDS * 1000),
                "CLAUDE_CONFIG_DIR": "/tmp/claude-code",
                "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(window),
                "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(longest_reply(window)),
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
                "ENABLE_TOOL_SEARCH": "false",
            },
        )


class Codex(Program):
    """The release that ``requirements/clients/codex`` pins; it speaks the Responses API."""

    name = "codex"
    memory_mib = 512
    processes = 64
    setup = ("scripts/setup_node.sh", "codex")
    installed = node_packages("codex") / "@openai" / "codex-linux-x64" / "vendor" / "x86_64-unknown-linux-musl"
    inside = "/opt/codex"

    async def launch(self, assignment: Assignment, sandbox: Sandbox) -> Launch:
        """Return its start; it ends with the model's last word or an error."""
        window = await context_window(sandbox, assignment)
        provider = {
            "name": "episode",
            "base_url": assignment.base_url,
            "env_key": KEY,
            "wire_api": "responses",
            "stream_idle_timeout_ms": REQUEST_SECONDS * 1000,
        }
        settings = {
            "model": assignment.model,
            "model_provider": "episode",
            "model_providers.episode": provider,
            "model_context_window": window,
            "model_auto_compact_token_limit": window - longest_reply(window),
            "shell_environment_policy": {"exclude": [KEY]},
            "check_for_update_on_startup": False,
            "web_search": "disabled",
            "analytics.enabled": False,
        }
        return Launch(
            command=[
                *(f"{self.inside}/bin/codex", "exec", "--skip-git-repo-check", "--disable", "multi_agent"),
                *("--disable", "goals", "--dangerously-bypass-approvals-and-sandbox", "--", assignment.instruction),
            ],
            files={"/tmp/codex/config.toml": "".join(f"{name} = {_toml(value)}\n" for name, value in settings.items())},
            environment={KEY: assignment.api_key, "CODEX_HOME": "/tmp/codex"},
        )


class OpenCode(Program):
    """The release that ``requirements/clients/opencode`` pins; it speaks chat completions."""

    name = "opencode"
    memory_mib = 1024
    processes = 64
    setup = ("scripts/setup_node.sh", "opencode")
    installed = node_packages("opencode") / "opencode-linux-x64" / "bin"
    inside = "/opt/opencode"

    async def launch(self, assignment: Assignment, sandbox: Sandbox) -> Launch:
        """Return its start; it ends with the model's last word or an error."""
        window = await context_window(sandbox, assignment)
        place = "/tmp/opencode"
        model = {"name": assignment.model, "reasoning": True, "tool_call": True}
        options = {"baseURL": assignment.base_url, "apiKey": assignment.api_key, "timeout": REQUEST_SECONDS * 1000}
        config = {
            "autoupdate": False,
            "share": "disabled",
            "model": f"episode/{assignment.model}",
            "enabled_providers": ["episode"],
            "tools": {"task": False, "webfetch": False, "todowrite": False, "skill": False, "question": False},
            "provider": {
                "episode": {
                    "npm": "@ai-sdk/openai-compatible",
                    "options": options,
                    "models": {
                        assignment.model: {**model, "limit": {"context": window, "output": longest_reply(window)}}
                    },
                }
            },
        }
        return Launch(
            command=[f"{self.inside}/opencode", "run", "--auto", "--title", "task", "--", assignment.instruction],
            files={f"{place}/config/opencode/opencode.json": json.dumps(config)},
            environment={
                **{f"XDG_{kind}_HOME": f"{place}/{kind.lower()}" for kind in ("CONFIG", "DATA", "STATE", "CACHE")},
                "OPENCODE_DISABLE_AUTOUPDATE": "1",
                "OPENCODE_DISABLE_MODELS_FETCH": "1",
                "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
                "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
                "NO_COLOR": "1",
            },
        )


class Hermes(Program):
    """The release that ``requirements/hermes.txt`` pins; it speaks chat completions."""

    name = "hermes"
    memory_mib = 768
    processes = 64
    setup = ("scripts/setup_hermes.sh",)
    installed = ROOT / ".cache" / "hermes"
    inside = "/opt/hermes"

    async def launch(self, assignment: Assignment, sandbox: Sandbox) -> Launch:
        """Return its start; it ends with the model's last word or an error."""
        window = await context_window(sandbox, assignment)
        model = {
            "default": assignment.model,
            "provider": "custom",
            "base_url": assignment.base_url,
            "api_key": assignment.api_key,
            "context_length": max(window, LEAST_OF_HERMES),
        }
        return Launch(
            command=[
                *(f"{self.inside}/bin/python3", "-I", "-B", "-m", "hermes_cli.main"),
                *("--yolo", "-t", "terminal,file", "-z", assignment.instruction),
            ],
            files={"/tmp/hermes/config.yaml": json.dumps({"model": model})},
            environment={"HERMES_HOME": "/tmp/hermes", "TERMINAL_CWD": HOME, "NO_COLOR": "1"},
        )


LEAST_OF_HERMES = 64_000
"""Tokens: Hermes refuses a shorter context. It asks for replies as long, which the gateway cuts to what fits."""


def _toml(value: object) -> str:
    """Return a value of TOML; a table is written inline."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {_toml(item)}" for name, item in value.items()) + "}"
    return json.dumps(value)
