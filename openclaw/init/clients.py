"""The configuration of each client, as its page in ``instructions/clients`` has it.

Guarantees: a client whose person has no configuration yet gets one in its usual place. Where there is one, an entry is added
to JSON, and everything else goes into a folder of init's own that the client reads by a variable. The default model of a
person's own file stays. No line that is printed holds a key.
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groundwork.exceptions import ConfigError
from openclaw.init.files import Entry, add_to_json, put, put_once

MODEL = "openclaw-rl"
"""What clients call the model; the server answers with its one model."""
NO_KEY = "none"
"""A word in place of the key of a server without one."""
LONGEST_REPLY = 4096
COMPACTION_SHARE = 0.85


@dataclass(frozen=True)
class Connection:
    """How clients reach the server.

    Attributes:
        root: its URL without ``/v1``.
        key: None if it asks for none.
        context: its ``CONTEXT_LENGTH``.
        home: the person's home.
        folder: where init puts files of its own.
        repository: the clone, which has OpenClaw's extension; None without one.
    """

    root: str
    key: str | None
    context: int
    home: Path
    folder: Path
    repository: Path | None

    @property
    def url(self) -> str:
        """The URL of the OpenAI API."""
        return f"{self.root}/v1"

    @property
    def word(self) -> str:
        """What a client sends as the key."""
        return self.key or NO_KEY

    @property
    def reply(self) -> int:
        """The longest reply that a client may ask for, in tokens."""
        return min(LONGEST_REPLY, self.context // 4)


@dataclass(frozen=True)
class Written:
    """What was done for a client: a line per file, and what to type to start it."""

    files: tuple[str, ...]
    start: str


@dataclass(frozen=True)
class Client:
    """A client.

    Attributes:
        title: its name.
        program: what a person types.
        prompt: tokens of its own prompt; a server with less context than that and a reply cannot serve it.
        least: tokens of context below which it refuses to start.
        write: puts its files.
    """

    title: str
    program: str
    prompt: int
    write: Callable[[Connection], Written]
    least: int = 0

    def too_long(self, context: int) -> str | None:
        """Return why a server with so much context cannot serve it; None if it can."""
        needed = max(self.least, self.prompt + min(LONGEST_REPLY, context // 4))
        if context >= needed:
            return None
        return f"{self.title} needs a context of {needed} tokens, and this server has {context}"


def find(names: str) -> list[str]:
    """Return the clients in a list of names with commas.

    Raises:
        ConfigError: there is no such client.
    """
    words = [word.strip().lower().replace("-", "_").replace(" ", "_") for word in names.split(",") if word.strip()]
    if words == ["none"]:
        return []
    if wrong := [word for word in words if word not in CLIENTS]:
        raise ConfigError(f"no client {wrong[0]!r}; name some of {', '.join(CLIENTS)}, or none")
    return list(dict.fromkeys(words))


def installed(context: int) -> list[str]:
    """Return the clients whose programs are on the PATH and that a server with so much context can serve."""
    return [
        name for name, client in CLIENTS.items() if shutil.which(client.program) and client.too_long(context) is None
    ]


def _openclaw(to: Connection) -> Written:
    """A provider, and with a clone the extension; the default model only if the person has none."""
    provider = {
        "baseUrl": to.url,
        "apiKey": to.word,
        "api": "openai-completions",
        "timeoutSeconds": 300,
        "models": [
            {
                "id": MODEL,
                "name": "My model",
                "reasoning": True,
                "input": ["text"],
                "contextWindow": to.context,
                "maxTokens": to.reply,
                "compat": {
                    "maxTokensField": "max_tokens",
                    "thinkingFormat": "qwen-chat-template",
                    "requiresStringContent": True,
                    "sendSessionAffinityHeaders": True,
                },
            }
        ],
    }

    def change(content: Entry) -> None:
        content.setdefault("models", {}).setdefault("providers", {})["openclaw-rl"] = provider
        defaults = content.setdefault("agents", {}).setdefault("defaults", {})
        defaults.setdefault("model", {"primary": f"openclaw-rl/{MODEL}"})

    line, beside = _json(to.home / ".openclaw" / "openclaw.json", change, to.folder / "openclaw" / "openclaw.json")
    steps = ["openclaw gateway restart"]
    if to.repository is not None:
        extension = shlex.quote(str(to.repository / "extensions" / "rl-training-headers"))
        steps = [
            f"openclaw plugins install --link {extension} --force --accept-capabilities",
            "openclaw config set plugins.entries.rl-training-headers.hooks.allowConversationAccess true",
            *steps,
        ]
    copy = f"copy models.providers.openclaw-rl of {beside} into your file, then: " if beside else ""
    return Written((line,), copy + " && ".join(steps))


def _claude_code(to: Connection) -> Written:
    """Variables in a file of our own: its settings would redirect all that the person does with it."""
    variables = {
        "ANTHROPIC_BASE_URL": to.root,
        "ANTHROPIC_AUTH_TOKEN": to.word,
        "ANTHROPIC_MODEL": MODEL,
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(to.context),
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(to.reply),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        "ENABLE_TOOL_SEARCH": "false",
    }
    return _by_variables(to, "claude_code", variables, 'claude --tools "Bash,Read,Edit,Write"')


def _codex(to: Connection) -> Written:
    text = "\n".join(
        [
            f'model = "{MODEL}"',
            'model_provider = "openclaw"',
            f"model_context_window = {to.context}",
            f"model_auto_compact_token_limit = {int(to.context * COMPACTION_SHARE)}",
            "check_for_update_on_startup = false",
            'web_search = "disabled"',
            "",
            "[analytics]",
            "enabled = false",
            "",
            "[model_providers.openclaw]",
            'name = "OpenClaw-RL"',
            f'base_url = "{to.url}"',
            'env_key = "OPENCLAW_KEY"',
            'wire_api = "responses"',
            "stream_idle_timeout_ms = 900000",
            "",
        ]
    )
    line, beside = _text(to.home / ".codex" / "config.toml", text, to.folder / "codex" / "config.toml")
    variables = {"OPENCLAW_KEY": to.word, **({"CODEX_HOME": str(beside.parent)} if beside else {})}
    written = _by_variables(to, "codex", variables, "codex --disable multi_agent --disable goals")
    return Written((line, *written.files), written.start)


def _opencode(to: Connection) -> Written:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "OpenClaw-RL",
        "options": {"baseURL": to.url, "apiKey": to.word},
        "models": {
            MODEL: {
                "name": MODEL,
                "reasoning": True,
                "tool_call": True,
                "limit": {"context": to.context, "output": to.reply},
            }
        },
    }
    own = {
        "$schema": "https://opencode.ai/config.json",
        "autoupdate": False,
        "share": "disabled",
        "model": f"openclaw/{MODEL}",
        "small_model": f"openclaw/{MODEL}",
        "enabled_providers": ["openclaw"],
        "provider": {"openclaw": provider},
    }

    def change(content: Entry) -> None:
        content.setdefault("provider", {})["openclaw"] = provider
        if "openclaw" not in content.get("enabled_providers", ["openclaw"]):
            content["enabled_providers"].append("openclaw")

    place = to.home / ".config" / "opencode" / "opencode.json"
    line, beside = _json(place, change, to.folder / "opencode" / "opencode.json", new=own)
    model = f" --model openclaw/{MODEL}"
    return Written((line,), f"OPENCODE_CONFIG={shlex.quote(str(beside))} opencode" if beside else f"opencode{model}")


def _hermes(to: Connection) -> Written:
    values = {"default": MODEL, "provider": "custom", "base_url": to.url, "api_key": to.word}
    lines = [*(f"  {name}: {json.dumps(value)}" for name, value in values.items()), f"  context_length: {to.context}"]
    text = "\n".join(["model:", *lines, ""])
    line, beside = _text(to.home / ".hermes" / "config.yaml", text, to.folder / "hermes" / "config.yaml")
    place = f"HERMES_HOME={shlex.quote(str(beside.parent))} " if beside else ""
    return Written((line,), f"{place}hermes chat -t terminal,file")


CLIENTS: Mapping[str, Client] = {
    "openclaw": Client("OpenClaw", "openclaw", 0, _openclaw, least=16_000),
    "claude_code": Client("Claude Code", "claude", 4_300, _claude_code),
    "codex": Client("Codex", "codex", 6_200, _codex),
    "opencode": Client("opencode", "opencode", 7_800, _opencode),
    "hermes": Client("Hermes", "hermes", 5_200, _hermes, least=64_000),
}


def _by_variables(to: Connection, name: str, variables: Mapping[str, str], command: str) -> Written:
    """Put variables into a script to read in before a command."""
    file = to.folder / f"{name}.sh"
    line = put(file, "".join(f"export {key}={shlex.quote(value)}\n" for key, value in variables.items()))
    return Written((line,), f". {shlex.quote(str(file))} && {command}")


def _text(place: Path, text: str, beside: Path) -> tuple[str, Path | None]:
    """Write ``place``, or ``beside`` where the person has a file; return the line, and the second place if it was that."""
    if line := put_once(place, text):
        return line, None
    return f"{put(beside, text)}, because {place} is yours", beside


def _json(
    place: Path, change: Callable[[Entry], None], beside: Path, new: Mapping[str, Any] | None = None
) -> tuple[str, Path | None]:
    """Add to the JSON of ``place``, or write ``beside`` if that is no plain JSON; return as `_text`."""
    if new is None:
        content: Entry = {}
        change(content)
        new = content
    text = json.dumps(new, indent=2) + "\n"
    if line := put_once(place, text) or add_to_json(place, change):
        return line, None
    return f"{put(beside, text)}, because {place} is yours and no plain JSON", beside
