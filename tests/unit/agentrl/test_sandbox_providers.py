"""A provider is chosen by name, and never by accident."""

from __future__ import annotations

import pytest

from agentrl.sandbox.providers import NAMES, SandboxSettings, provider
from groundwork.exceptions import ConfigError

VARIABLES = {"E2B_API_KEY": "key", "PATH": "/usr/bin:/bin"}


@pytest.mark.parametrize("name", NAMES)
def test_each_name_has_its_provider(name: str) -> None:
    image = None if name == "bubblewrap" else "img:1"
    assert provider(SandboxSettings(name, image), VARIABLES).name == name


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (SandboxSettings("none"), "there is no sandbox provider 'none'; choose one of bubblewrap, docker, podman, e2b"),
        (SandboxSettings(""), "choose one of"),
        (SandboxSettings("docker"), "docker sandboxes need an image"),
        (SandboxSettings("bubblewrap", "img:1"), "have no image"),
        (SandboxSettings("e2b", runtime="runsc"), "have no runtime"),
    ],
    ids=str,
)
def test_settings_that_do_not_fit(settings: SandboxSettings, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        provider(settings, VARIABLES)


def test_e2b_needs_a_key() -> None:
    with pytest.raises(ConfigError, match="set E2B_API_KEY"):
        provider(SandboxSettings("e2b"), {})
