"""The attacks on a server with keys: hostile requests, connections and other users."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.security import generated
from tests.security.attack import Attack
from tests.security.grammar import generate
from tests.security.hold import fast, hold
from tests.security.server import Server, running_server

pytestmark = pytest.mark.slow

SEED = 13
REQUESTS = 200
DESCRIBED = 40


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("keys")) as server:
        yield server


@pytest.mark.parametrize("attack", fast(keys=True), ids=lambda attack: attack.name)
def test_attack(server: Server, attack: Attack) -> None:
    hold(attack, server)


def test_generated_requests(server: Server) -> None:
    sent = f"{REQUESTS} requests of the grammar"
    hold(Attack("generated", sent, lambda server: generated.grammar(server, SEED, range(REQUESTS))), server)


def test_described_requests(server: Server) -> None:
    sent = f"{DESCRIBED} requests of the description"
    hold(Attack("generated", sent, lambda server: generated.description(server, DESCRIBED, SEED)), server)


def test_a_generated_request_is_the_same_each_time() -> None:
    assert generate(SEED, 7) == generate(SEED, 7) != generate(SEED, 8)
    assert generate(SEED, 7).curl("http://127.0.0.1:1").startswith("printf ")
