"""The attacks on a server without keys, by web pages above all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.security.attack import Attack
from tests.security.hold import fast, hold
from tests.security.server import Server, running_server

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("open"), keys=False) as server:
        yield server


@pytest.mark.parametrize("attack", fast(keys=False), ids=lambda attack: attack.name)
def test_attack(server: Server, attack: Attack) -> None:
    hold(attack, server)
