"""Which agent programs a pool offers, by name; clients choose among them and say nothing else about them.

Guarantee: what is offered is installed, and an environment that runs agent programs offers at least one.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from agentrl.environment import Environment
from agentrl.harness.environment import HarnessEnvironment
from agentrl.harness.interface import GATEWAY_URL, Harness, server_address
from groundwork.exceptions import ConfigError

NAMES = {
    "claude-code": "agentrl.harness.coding_agents.ClaudeCode",
    "codex": "agentrl.harness.coding_agents.Codex",
    "hermes": "agentrl.harness.coding_agents.Hermes",
    "mini-swe-agent": "agentrl.harness.mini_swe_agent.MiniSweAgent",
    "openclaw": "agentrl.harness.openclaw.OpenClaw",
    "opencode": "agentrl.harness.coding_agents.OpenCode",
}
"""The programs that come with the project: where their class is, by name."""


def offer_harnesses(environments: Sequence[type[Environment]], names: Sequence[str], gateway_url: str) -> None:
    """Tell the environments that run agent programs which ones, and where the gateway is; call it before they list tasks.

    Args:
        environments: of the pool; the others are left alone.
        names: see `load_harness`.
        gateway_url: without ``/v1``.

    Raises:
        ConfigError: a program is unknown or not installed, or names and environments do not fit each other.
    """
    running = [environment for environment in environments if issubclass(environment, HarnessEnvironment)]
    if names and not running:
        raise ConfigError(
            f"--harness {names[0]}: no environment runs agent programs; add --env {HarnessEnvironment.__module__}."
            f"{HarnessEnvironment.__name__}, or leave --harness out"
        )
    if not running:
        return
    if not names:
        raise ConfigError(f"{running[0].__name__} runs agent programs; say which with --harness")
    address = _address(gateway_url)
    offered: dict[str, Harness] = {}
    for name in dict.fromkeys(names):
        harness = load_harness(name)
        if harness.name in offered:
            raise ConfigError(f"--harness {name}: another program is named {harness.name!r}; rename one of them")
        harness.mounts()
        offered[harness.name] = harness
    for environment in running:
        environment.harnesses = offered
        environment.gateway_url = address


def load_harness(name: str) -> Harness:
    """Return a program of `NAMES`, or the one whose class ``MODULE.CLASS`` names.

    Raises:
        ConfigError: there is none, or it is not a harness.
    """
    module, _, attribute = NAMES.get(name, name).rpartition(".")
    if not module:
        known = ", ".join(sorted(NAMES))
        raise ConfigError(f"--harness {name}: write one of {known}, or MODULE.CLASS of your own")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"--harness {name}: {error}; write MODULE.CLASS of an importable module") from error
    try:
        harness = found() if isinstance(found, type) else None
    except TypeError as error:
        raise ConfigError(f"--harness {name}: {error}; a harness is made without arguments") from error
    if not isinstance(harness, Harness):
        raise ConfigError(f"--harness {name} is not a class with what agentrl.harness.interface.Harness asks for")
    return harness


def _address(url: str) -> str:
    """Return a gateway's address.

    Raises:
        ConfigError: it is none.
    """
    if (address := server_address(url)) is None:
        raise ConfigError(f"--gateway-url {url} is not an address of a gateway; write for example {GATEWAY_URL}")
    return address
