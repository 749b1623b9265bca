"""Guessed keys: who has to wait and who does not, in how much memory, at every door."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry

from lab.testkit.engine import serve
from openclaw.config.bounds import WRONG_KEYS
from openclaw.gateway import auth
from openclaw.gateway.app import create_app
from openclaw.gateway.auth import Keyring, WrongKeys, new_key, sender
from openclaw.gateway.errors import ApiError
from openclaw.gateway.limits import RateLimitError
from tests.unit.gateway.conftest import Stack, Starter
from tests.unit.gateway.test_lessons import KEYS, as_key
from tests.unit.gateway.test_window import OWN, Echo, key_of
from tests.unit.gateway.test_workers import Pair, as_person
from tests.unit.gateway.test_workers import pair as pair  # a fixture

MODELS = "/v1/models"
STRANGER, OTHER = "203.0.113.7", "203.0.113.8"


class Clock:
    """Seconds that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(KEYS)
    path.chmod(0o600)
    return path


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ring(keys: Path, clock: Clock) -> Keyring:
    return Keyring(None, str(keys), clock)


def status(ring: Keyring, key: str, address: str) -> int:
    """Return what a client gets that sends a key."""
    try:
        ring.check({"x-api-key": key}, address)
    except ApiError as error:
        return error.status
    return 200


def guess(ring: Keyring, address: str, times: int = WRONG_KEYS.most) -> list[int]:
    return [status(ring, f"guess-{n}", address) for n in range(times)]


def test_who_guesses_has_to_wait_until_the_minute_is_over(ring: Keyring, clock: Clock) -> None:
    assert guess(ring, STRANGER, WRONG_KEYS.most + 2) == [401] * WRONG_KEYS.most + [429] * 2
    clock.now = 45.5
    with pytest.raises(RateLimitError) as caught:
        ring.check({"x-api-key": "another guess"}, STRANGER)
    assert (caught.value.retry_after, caught.value.limit) == (15, "wrong_keys")
    clock.now = auth.MINUTE
    assert guess(ring, STRANGER, 1) == [401]


def test_a_right_guess_tells_nothing_either(ring: Keyring) -> None:
    guess(ring, STRANGER)
    assert status(ring, key_of("bob"), STRANGER) == 429


def test_nobody_is_locked_out_by_the_guesses_of_others(ring: Keyring) -> None:
    assert status(ring, key_of("alice"), STRANGER) == 200
    guess(ring, STRANGER)
    assert status(ring, key_of("alice"), STRANGER) == 200, "it has worked from there"
    assert status(ring, key_of("bob"), OTHER) == 200, "the limit is of one address"


def test_no_key_and_the_key_of_an_episode_are_no_guesses(ring: Keyring) -> None:
    for key in ("", new_key()):
        assert {status(ring, key, STRANGER) for _ in range(WRONG_KEYS.most + 1)} == {401}
    assert status(ring, key_of("bob"), STRANGER) == 200
    assert guess(ring, OTHER, 1) == [401]
    assert {status(ring, f"sk-episode-{n}", OTHER) for n in range(WRONG_KEYS.most)} == {401, 429}


def test_a_key_that_left_the_file_is_forgotten(ring: Keyring, keys: Path) -> None:
    assert status(ring, key_of("bob"), STRANGER) == 200
    text = keys.read_text()
    for contents in (text.replace("bob", "eve"), text):
        keys.write_text(contents)
        ring.reload()
    guess(ring, STRANGER)
    assert status(ring, key_of("bob"), STRANGER) == 429


def test_memory_is_bounded(ring: Keyring, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "ADDRESSES", 3)
    monkeypatch.setattr(auth, "ADDRESSES_OF_A_KEY", 2)
    for n in range(10):
        guess(ring, f"10.0.0.{n}", 1)
        assert len(ring.wrong) <= 3
    wrong = WrongKeys(clock)
    wrong.count(STRANGER)
    clock.now = auth.MINUTE
    wrong.check(OTHER)
    assert len(wrong) == 0, "a minute is over"
    for address in ("a", "b", "a", "c"):
        assert status(ring, key_of("bob"), address) == 200
    known = {address for address in "abc" if ring.worked(auth.key_digest(key_of("bob")), address)}
    assert known == {"a", "c"}, "the one that was quiet for longest makes room"


@pytest.mark.parametrize(
    ("peer", "forwarded", "address"),
    [
        ("203.0.113.7", [], "203.0.113.7"),
        ("203.0.113.7", ["198.51.100.1"], "203.0.113.7"),  # anybody can say so
        ("127.0.0.1", ["198.51.100.1, 203.0.113.7"], "203.0.113.7"),
        ("::1", ["198.51.100.1", "203.0.113.7"], "203.0.113.7"),
        ("127.0.0.1", ["198.51.100.1, 203.0.113.7:4711"], "203.0.113.7"),
        ("127.0.0.1", ["[2001:db8:1:2:3:4:5:6]:4711"], "2001:db8:1:2::/64"),
        ("127.0.0.1", ["[2001:db8:1:2:3:4:5:6]"], "2001:db8:1:2::/64"),
        ("127.0.0.1", ["[unknown]:4711"], "127.0.0.1"),
        ("127.0.0.1", ["unknown"], "127.0.0.1"),
        ("127.0.0.1", [], "127.0.0.1"),
        ("::ffff:203.0.113.7", [], "203.0.113.7"),
        ("2001:db8:1:2:3:4:5:6", [], "2001:db8:1:2::/64"),
    ],
)
def test_an_address_is_of_one_person(peer: str, forwarded: list[str], address: str) -> None:
    headers = [(b"x-forwarded-for", value.encode()) for value in forwarded]
    assert sender({"client": (peer, 1), "headers": headers}) == address


def of(address: str) -> dict[str, str]:
    """Return the header of a proxy on this machine."""
    return {"x-forwarded-for": address}


async def test_every_door_has_the_limit(start: Starter, keys: Path) -> None:
    stack: Stack = await start(api_keys_file=str(keys))
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False, headers=of(STRANGER)) as client:
        for n in range(WRONG_KEYS.most):
            assert (await client.get(MODELS, headers={"x-api-key": f"guess-{n}"})).status_code == 401
        for path in (MODELS, "/v1/chat/completions", "/metrics"):
            answer = await client.get(path, headers={"x-api-key": "guess"})
            assert (answer.status_code, answer.headers["x-limit"]) == (429, "wrong_keys")
            assert 0 < int(answer.headers["retry-after"]) <= 60
            assert answer.json()["error"]["code"] == "rate_limit_exceeded"
        assert (await client.get(MODELS, headers=as_key("bob"))).status_code == 429
        assert (await client.get(MODELS, headers=as_key("bob") | of(OTHER))).status_code == 200
        assert (await client.get("/healthz")).status_code == 200
    assert stack.metric("openclaw_rate_limited_total", key="-", limit="wrong_keys") == 4
    assert stack.metric("openclaw_unauthorized_total") == WRONG_KEYS.most


async def test_the_log_in_has_the_limit_and_leaves_those_who_are_in(start: Starter, keys: Path) -> None:
    stack: Stack = await start(api_keys_file=str(keys))
    app = create_app(stack.service, CollectorRegistry(), views=Echo())
    async with serve(app) as url, httpx.AsyncClient(base_url=url, trust_env=False, headers=OWN) as browser:
        assert (await browser.post("/window/log_in", data={"key": key_of("alice")})).status_code == 303
        statuses = [
            (await browser.post("/window/log_in", data={"key": f"guess-{n}"})).status_code
            for n in range(WRONG_KEYS.most)
        ]
        assert statuses == [401] * WRONG_KEYS.most
        answer = await browser.post("/window/log_in", data={"key": key_of("bob")})
        assert (answer.status_code, answer.headers["x-limit"]) == (429, "wrong_keys")
        assert int(answer.headers["retry-after"]) > 0
        assert "unknown keys within a minute" in answer.text
        assert (await browser.get("/window/learning")).status_code == 200, "the cookie is no guess"
        again = await browser.post("/window/log_in", data={"key": key_of("alice")})
        assert again.status_code == 303
    assert stack.metric("openclaw_rate_limited_total", key="-", limit="wrong_keys") == 1


async def test_workers_count_together_and_know_the_keys_that_worked_at_another(pair: Pair) -> None:
    async def ask(number: int, headers: dict[str, str]) -> int:
        body = {"messages": [{"role": "user", "content": "hello"}]}
        return (await pair.workers[number].http.post("/v1/chat/completions", json=body, headers=headers)).status_code

    assert await ask(0, as_person("ann")) == 200
    statuses = [await ask(n % 2, {"x-api-key": f"guess-{n}"}) for n in range(WRONG_KEYS.most + 2)]
    assert statuses == [401] * WRONG_KEYS.most + [429] * 2
    assert await ask(1, as_person("ben")) == 429
    assert await ask(1, as_person("ann")) == 200
