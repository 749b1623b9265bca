"""Runs one attack in a test: what it says must hold, and afterwards nobody is dead and nothing is left."""

from __future__ import annotations

import pytest

from lab.testkit.waiting import wait_until
from tests.security.attack import Attack
from tests.security.chromium import NoChromiumError
from tests.security.list_of_attacks import ATTACKS
from tests.security.server import Server

MEMORY_BYTES = 100_000_000
DESCRIPTORS = 32
"""Connections to the engine that stay open for the next request."""
BACK_SECONDS = 60.0


def fast(keys: bool) -> list[Attack]:
    """Return the attacks of the tests, on a server with keys or on one without."""
    return [attack for attack in ATTACKS if attack.keys == keys and not attack.long]


def hold(attack: Attack, server: Server) -> None:
    """Attack a server.

    Raises:
        AssertionError: the attack did not hold; the message says what happened.
    """
    memory, descriptors, deaths = server.memory(), server.descriptors(), server.engine.deaths()
    try:
        attack.run(server)
    except NoChromiumError as error:
        pytest.skip(str(error))
    finally:
        assert server.process.alive(), f"the runtime died:\n{server.log[-3000:]}"
        died = server.engine.deaths() - deaths
    assert died <= attack.deaths, f"the engine died {died} times"
    assert server.chat("bob").status_code == 200
    wait_until(
        lambda: server.memory() - memory < MEMORY_BYTES,
        lambda: f"{(server.memory() - memory) / 1e6:.0f} MB stayed",
        BACK_SECONDS,
    )
    wait_until(
        lambda: server.descriptors() - descriptors <= DESCRIPTORS,
        lambda: f"{server.descriptors() - descriptors} more files are open than before",
        BACK_SECONDS,
    )
