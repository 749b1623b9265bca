"""Sandbox providers before stand-ins for what they drive."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from agentrl.sandbox.container import Container, ContainerSettings, Engine
from agentrl.sandbox.e2b_api import RetryBudget
from agentrl.sandbox.interface import Provider
from agentrl.sandbox.remote import E2BProvider, E2BSettings
from tests.helpers.fake_container_engine import FakeEngine
from tests.helpers.fake_e2b import KEY, FakeE2B, fake_e2b

QUICK = RetryBudget(tries=4, first_s=0.01, longest_s=0.05, silence_s=20.0)
Left = Callable[[], list[str]]
World = Callable[[Path], AbstractAsyncContextManager[tuple[Provider, Left]]]
"""Gives a provider, and what tells which sandboxes exist at whatever it drives."""


def e2b_settings(host: FakeE2B, retry_budget: RetryBudget = QUICK, *, lifetime_s: int = 1800) -> E2BSettings:
    """Return the settings of a provider at a stand-in host."""
    return E2BSettings(
        KEY, "stand-in", url=host.url, inside_url=f"{host.url}/inside", retry_budget=retry_budget, lifetime_s=lifetime_s
    )


def container(engine: FakeEngine, runtime: str | None = None) -> Container:
    """Return a provider that drives a stand-in engine."""
    name: Engine = "podman" if engine.name == "podman" else "docker"
    return Container(ContainerSettings(name, "img:1", runtime, engine.environment))


@asynccontextmanager
async def e2b(_folder: Path) -> AsyncIterator[tuple[Provider, Left]]:
    async with fake_e2b() as host:
        provider = E2BProvider(e2b_settings(host))
        yield provider, lambda: list(host.machines)
        await provider.close()


@asynccontextmanager
async def docker(folder: Path) -> AsyncIterator[tuple[Provider, Left]]:
    engine = FakeEngine(folder / "docker")
    yield container(engine), engine.alive


@asynccontextmanager
async def podman(folder: Path) -> AsyncIterator[tuple[Provider, Left]]:
    engine = FakeEngine(folder / "podman", "podman")
    yield container(engine), engine.alive


WORLDS: list[World] = [docker, podman, e2b]
