"""Which provider runs the sandboxes, by name.

Guarantee: programs of agents run in a sandbox or not at all; there is no provider that runs them without one, and none is
chosen silently. Provider and settings come from the server's own command line and environment, never from a client.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from agentrl.sandbox.bubblewrap import Bubblewrap
from agentrl.sandbox.container import Container, ContainerSettings
from agentrl.sandbox.interface import Provider
from agentrl.sandbox.remote import E2BProvider, E2BSettings
from groundwork.exceptions import ConfigError

NAMES = ("bubblewrap", "docker", "podman", "e2b")


@dataclass(frozen=True, slots=True)
class SandboxSettings:
    """What a pool says about its sandboxes.

    Attributes:
        provider: one of `NAMES`.
        image: of containers, or the template of rented machines, where a task names none.
        runtime: of docker or podman, for example ``runsc``; None for the engine's own.
    """

    provider: str = "bubblewrap"
    image: str | None = None
    runtime: str | None = None


def provider(settings: SandboxSettings, environment: Mapping[str, str] = os.environ) -> Provider:
    """Return the provider that the settings name; nothing is started.

    Args:
        settings: of the pool.
        environment: where keys and the engine's own variables come from.

    Raises:
        ConfigError: there is no such provider, or a setting does not fit it.
    """
    name, image, runtime = settings.provider, settings.image, settings.runtime
    if runtime is not None and name not in ("docker", "podman"):
        raise ConfigError(f"{name} sandboxes have no runtime; leave it out, or choose docker or podman")
    if name == "bubblewrap":
        if image is not None:
            raise ConfigError("bubblewrap sandboxes have no image; leave it out, or choose docker, podman or e2b")
        return Bubblewrap()
    if name == "docker" or name == "podman":
        if image is None:
            raise ConfigError(f"{name} sandboxes need an image with python3; name one, for example python:3.12-slim")
        return Container(ContainerSettings(name, image, runtime, dict(environment)))
    if name == "e2b":
        return E2BProvider(E2BSettings.read(environment, image))
    raise ConfigError(f"there is no sandbox provider {name!r}; choose one of {', '.join(NAMES)}")
