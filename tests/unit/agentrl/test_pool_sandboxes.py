"""A pool proves its sandboxes before it listens, and gives them to the environments that run programs of agents."""

from __future__ import annotations

import pytest

from agentrl import pool
from agentrl.environment import Environment
from agentrl.exceptions import InfraError
from agentrl.sandbox.interface import Provider, Sandbox, SandboxSpec
from agentrl.sandbox.providers import SandboxSettings
from groundwork.exceptions import ConfigError
from lab.testkit.agent_pools import Script


class Recorded:
    """Writes down what it is asked; ``holds`` says whether its sandboxes do."""

    name = "recorded"

    def __init__(self, *, holds: bool = True) -> None:
        self.holds = holds
        self.calls: list[str] = []

    async def check(self) -> None:
        self.calls.append("check")
        if not self.holds:
            raise InfraError("the network is open", code="sandbox")

    async def sweep(self, pool: str) -> int:
        self.calls.append(f"sweep {pool}")
        return 0

    async def start(self, spec: SandboxSpec, processes: object) -> Sandbox:
        raise NotImplementedError


def environments(provider: Provider) -> tuple[type[Environment], type[Environment]]:
    """Return an environment that runs programs of agents, and one that does not."""
    sandboxed, plain = Script().environment(), Script().environment()
    sandboxed.provider = provider
    return sandboxed, plain


async def test_the_chosen_provider_is_proved_swept_and_given(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = Recorded()
    monkeypatch.setattr(pool, "provider", lambda settings: chosen)
    sandboxed, plain = environments(Recorded())
    await pool.prepare_sandboxes([sandboxed, plain], SandboxSettings("podman", "image"), "pool-1")
    assert chosen.calls == ["check", "sweep pool-1"]
    assert sandboxed.provider is chosen
    assert plain.provider is None


async def test_a_sandbox_that_does_not_hold_stops_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, before = Recorded(holds=False), Recorded()
    monkeypatch.setattr(pool, "provider", lambda settings: chosen)
    sandboxed, plain = environments(before)
    with pytest.raises(InfraError, match="the network is open"):
        await pool.prepare_sandboxes([sandboxed, plain], SandboxSettings(), "pool-1")
    assert sandboxed.provider is before


async def test_nothing_is_asked_without_programs_of_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = Recorded(holds=False)
    monkeypatch.setattr(pool, "provider", lambda settings: chosen)
    await pool.prepare_sandboxes([Script().environment()], SandboxSettings(), "pool-1")
    assert not chosen.calls


async def test_settings_that_do_not_fit_are_named() -> None:
    sandboxed, _ = environments(Recorded())
    with pytest.raises(ConfigError, match="docker sandboxes need an image"):
        await pool.prepare_sandboxes([sandboxed], SandboxSettings("docker"), "pool-1")
