"""Agent clients of others for tests, unmodified, each set up and started by the text of its page in ``instructions/clients``."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.helpers.node import REPOSITORY, installed_by, node_packages
from tests.page_commands.blocks import ROOT, SHELL, commands_of_block, read_page

CONTEXT = 262_144
"""Tokens: the tests' tokenizer makes several times as many as a model's, so the clients are told of a longer context."""
LENGTHS = re.compile(r"\b(32768|65536|28000)\b")
ADDRESS = "http://127.0.0.1:30000"
SAVED = re.compile(r"^Save as `~/([^`]+)`:$", re.MULTILINE)
COMMAND_SECONDS = 240


@dataclass(frozen=True)
class AgentClient:
    """One client in one dialect.

    Attributes:
        name: of the test.
        page: below ``instructions/clients``, without ``.md``; also the name under which it is installed.
        programs: folder of its programs, below that of its installation.
        tool: what its shell is called.
        arguments: of a call that reads the note.
        words: what the test writes instead of words of the page: another dialect, or that no one approves of commands.
        variables: that a test needs besides.
        thoughts: whether it sends thoughts back.
    """

    name: str
    page: str
    programs: str
    tool: str
    arguments: Mapping[str, Any]
    words: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    thoughts: bool = True

    def installed(self) -> Path:
        """Return the folder of its programs; install it first if it is missing, or skip the test with the reason."""
        if self.page == "hermes":
            installed_by("scripts/setup_hermes.sh")
            return REPOSITORY / ".cache/hermes" / self.programs
        return node_packages(self.page) / self.programs

    def set_up(self, home: Path, url: str) -> ClientHome:
        """Write the files of the page below ``home``, and return it; the gateway is at ``url``."""
        page = f"instructions/clients/{self.page}.md"
        files = SAVED.findall((ROOT / page).read_text())
        blocks, _ = read_page(page)
        exports, commands = [], []
        for block in blocks:
            if block.language in SHELL:
                for command in commands_of_block(block):
                    text = self._edited(command.text, url)
                    (exports if text.startswith("export ") else commands).append(text)
            else:
                path = home / files.pop(0)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(self._edited(block.text, url))
        assert commands
        assert not files
        work = home / "work"
        work.mkdir(parents=True)
        return ClientHome(home, work, self.installed(), exports, commands, dict(self.variables))

    def _edited(self, text: str, url: str) -> str:
        for old, new in self.words.items():
            text = text.replace(old, new)
        return LENGTHS.sub(str(CONTEXT), text).replace(ADDRESS, url)


@dataclass(frozen=True)
class ClientHome:
    """A home with the page's files; ``commands`` are those of the page, in order."""

    home: Path
    work: Path
    programs: Path
    exports: list[str]
    commands: list[str]
    variables: dict[str, str]

    def run(self, command: str) -> str:
        """Run a command in ``work`` with the page's variables and nobody at the keyboard; return what it prints."""
        kept = {name: os.environ[name] for name in ("LANG", "TMPDIR") if name in os.environ}
        environment = {**kept, **self.variables, "HOME": str(self.home), "TERM": "dumb", "NO_COLOR": "1"}
        environment["PATH"] = os.pathsep.join([str(self.programs), "/usr/local/bin", "/usr/bin", "/bin"])
        done = subprocess.run(
            ["bash", "-c", "\n".join([*self.exports, command])],
            cwd=self.work,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
        )
        assert done.returncode == 0, f"{command} ends with {done.returncode}:\n{done.stdout}{done.stderr}"
        return done.stdout


_OPENCODE = AgentClient(
    name="opencode-chat",
    page="opencode",
    programs="node_modules/opencode-linux-x64/bin",
    tool="bash",
    arguments={"command": "cat note.txt", "description": "Read the note"},
    variables={"OPENCODE_DISABLE_AUTOUPDATE": "1"},
)
_HERMES = AgentClient(
    name="hermes-chat",
    page="hermes",
    programs="bin",
    tool="terminal",
    arguments={"command": "cat note.txt"},
    words={"hermes chat": "hermes --yolo chat"},
    thoughts=False,
)
CLIENTS = (
    _OPENCODE,
    _HERMES,
    AgentClient(
        name="qwen-code",
        page="qwen_code",
        programs="node_modules/.bin",
        tool="run_shell_command",
        # 0.24.4 drops what a command printed if the exit arrives before the output; so the command ends later.
        arguments={"command": "cat note.txt; sleep 1", "description": "Read the note", "is_background": False},
        words={"qwen ": "qwen -y "},
    ),
    replace(_OPENCODE, name="opencode-messages", words={"@ai-sdk/openai-compatible": "@ai-sdk/anthropic"}),
    replace(
        _HERMES,
        name="hermes-messages",
        words={
            **_HERMES.words,
            f"{ADDRESS}/v1\n": f"{ADDRESS}\n",
            "  api_key: ": "  api_mode: anthropic_messages\n  api_key: ",
        },
    ),
    AgentClient(
        name="claude-code",
        page="claude_code",
        programs="node_modules/@anthropic-ai/claude-code-linux-x64",
        tool="Bash",
        arguments={"command": "cat note.txt", "description": "Read the note"},
        words={" -p ": " --permission-mode bypassPermissions -p "},
        variables={"IS_SANDBOX": "1"},
    ),
    replace(_OPENCODE, name="opencode-responses", words={"@ai-sdk/openai-compatible": "@ai-sdk/openai"}),
    AgentClient(
        name="codex",
        page="codex",
        programs="node_modules/@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin",
        tool="exec_command",
        arguments={"cmd": "cat note.txt"},
        words={"codex exec": "codex exec --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox"},
    ),
)
