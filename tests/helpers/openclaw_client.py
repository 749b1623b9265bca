"""The real OpenClaw for tests: a gateway with a home of its own, our extension, and one agent per server it talks to."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import psutil

from groundwork.network import find_available_port
from lab.testkit.live_run import wait_until
from lab.testkit.processes import answers, end

TOKEN = "gateway-token"
CONTEXT_WINDOW = 32768
START_SECONDS = 480.0
COMMAND_SECONDS = 360.0


def provider(base_url: str, *, thinking: bool = True) -> dict[str, Any]:
    """Return the entry of a server under ``models.providers``."""
    return {
        "baseUrl": base_url,
        "apiKey": "none",
        "api": "openai-completions",
        "timeoutSeconds": 300,
        "models": [
            {
                "id": "policy",
                "name": "Policy",
                "reasoning": thinking,
                "input": ["text"],
                "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
                "contextWindow": CONTEXT_WINDOW,
                "maxTokens": 1024,
                "compat": {
                    "maxTokensField": "max_tokens",
                    "thinkingFormat": "qwen-chat-template",
                    "requiresStringContent": True,
                    "sendSessionAffinityHeaders": True,
                },
            }
        ],
    }


def configuration(plugins: Mapping[Path, dict[str, Any]], providers: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return ``openclaw.json``.

    Args:
        plugins: folder of each plugin, and its ``config``.
        providers: by name; each gets an agent of the same name, the first is the default agent.
    """
    names = [plugin.name for plugin in plugins]
    return {
        "update": {"checkOnStart": False},
        "models": {"mode": "replace", "catalogRefresh": {"enabled": False}, "providers": dict(providers)},
        "agents": {
            "defaults": {"skipBootstrap": True, "heartbeat": {"every": "0m"}},
            "list": [
                {
                    "id": name,
                    "default": number == 0,
                    "model": {"primary": f"{name}/policy"},
                }
                for number, name in enumerate(providers)
            ],
        },
        "tools": {
            "profile": "coding",
            "allow": ["read", "write", "edit", "exec", "process"],
            "toolSearch": False,
        },
        "plugins": {
            "allow": [*names, "memory-core"],
            "load": {"paths": [str(plugin) for plugin in plugins]},
            "entries": {
                **{
                    plugin.name: {"enabled": True, "hooks": {"allowConversationAccess": True}, "config": settings}
                    for plugin, settings in plugins.items()
                },
                "memory-core": {"enabled": True},
            },
            "slots": {"memory": "memory-core"},
        },
        "gateway": {
            "mode": "local",
            "port": find_available_port(),
            "bind": "loopback",
            "auth": {"mode": "token", "token": TOKEN},
            "controlUi": {"enabled": False},
            "http": {"endpoints": {"chatCompletions": {"enabled": True}}},
        },
    }


class OpenClaw:
    """One OpenClaw gateway; start it, `stop` it in any case."""

    def __init__(self, installed: Path, home: Path, config: dict[str, Any]) -> None:
        """Prepare a home.

        Args:
            installed: folder that ``scripts/setup_node.sh`` installed OpenClaw into.
            home: an empty folder.
            config: as `configuration` gives it.
        """
        self.home = home
        self.log = home / "gateway.log"
        self.port: int = config["gateway"]["port"]
        self._programs = installed / "node_modules" / ".bin"
        self._openclaw = installed / "node_modules" / "openclaw" / "openclaw.mjs"
        self._process: subprocess.Popen[bytes] | None = None
        (home / ".openclaw").mkdir(parents=True)
        config = {**config, "logging": {"file": str(home / "openclaw.log")}}
        (home / ".openclaw" / "openclaw.json").write_text(json.dumps(config, indent=2))

    def start(self) -> None:
        """Start the gateway; `wait_ready` waits for it."""
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command("gateway", "run", "--port", str(self.port)),
                cwd=self.home,
                env=self._environment(),
                stdout=log,
                stderr=log,
            )

    def wait_ready(self) -> None:
        """Wait until the gateway answers."""
        wait_until(self._healthy, lambda: f"OpenClaw did not come up:\n{self.tail()}", START_SECONDS)

    def say(self, agent: str, user: str, text: str) -> str:
        """Say something to an agent and return its answer; the same user goes on with the same session."""
        response = httpx.post(
            f"http://127.0.0.1:{self.port}/v1/chat/completions",
            headers={"Authorization": f"Bearer {TOKEN}"},
            json={"model": f"openclaw/{agent}", "user": user, "messages": [{"role": "user", "content": text}]},
            timeout=300,
            trust_env=False,
        )
        assert response.status_code == 200, f"{response.status_code} {response.text}\n{self.tail()}"
        return response.json()["choices"][0]["message"]["content"] or ""

    def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the gateway and return its answer."""
        return json.loads(self.run("gateway", "call", method, "--params", json.dumps(parameters), "--json"))

    def run(self, *arguments: str) -> str:
        """Run a command of OpenClaw against the gateway and return what it prints."""
        done = subprocess.run(
            self._command(*arguments),
            cwd=self.home,
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
        )
        assert done.returncode == 0, f"openclaw {' '.join(arguments)}:\n{done.stdout}{done.stderr}\n{self.tail()}"
        return done.stdout

    def tail(self) -> str:
        """The end of the gateway's log."""
        return self.log.read_text(errors="replace")[-4000:] if self.log.exists() else ""

    def stop(self) -> None:
        """End the gateway and whatever it started."""
        if self._process is None:
            return
        family = [] if self._process.poll() is not None else psutil.Process(self._process.pid).children(recursive=True)
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        end(family, 5.0)

    def _healthy(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"OpenClaw ended with {self._process.returncode}:\n{self.tail()}"
        return answers(f"http://127.0.0.1:{self.port}/v1/models", {"Authorization": f"Bearer {TOKEN}"})

    def _command(self, *arguments: str) -> list[str]:
        return [str(self._programs / "node"), str(self._openclaw), *arguments]

    def _environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("LANG", "TZ", "TMPDIR") if name in os.environ}
        path = f"{self._programs}{os.pathsep}{os.environ['PATH']}"
        return {**kept, "HOME": str(self.home), "PATH": path, "NO_COLOR": "1"}
