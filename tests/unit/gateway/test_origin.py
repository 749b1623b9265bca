"""Pages of other origins and foreign host names get nothing, with and without a key; allowed ones work."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.datastructures import Headers

from openclaw.config.runtime import ConfigError, RuntimeConfig
from openclaw.gateway.errors import ApiError
from openclaw.gateway.guard import Doorway, host_name
from tests.unit.gateway.conftest import Stack, Starter

EVIL, FRIEND = "https://evil.example", "http://front.test:8080"
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello?"}], "session_id": "s"}
JSON = {"content-type": "application/json"}


def status_of(config: RuntimeConfig, **headers: str) -> int:
    """Return the status with which the doorway refuses a request, 200 if it does not."""
    try:
        Doorway(config).check(Headers({name.replace("_", "-"): value for name, value in headers.items()}))
    except ApiError as error:
        return error.status
    return 200


OWN_HOSTS = ("127.0.0.1", "127.0.0.1:30000", "127.4.5.6:1", "localhost", "LocalHost:80", "[::1]", "[::1]:30000")


@pytest.mark.parametrize("host", [*OWN_HOSTS, "chat.localhost:30000", "localhost.:30000"])
def test_loopback_is_our_name(host: str) -> None:
    assert status_of(RuntimeConfig(), host=host) == 200
    assert status_of(RuntimeConfig(api_key="k", allowed_hosts="other"), host=host) == 200


FOREIGN_HOSTS = (
    *(
        "rebind.evil.example",
        "rebind.evil.example:30000",
        "10.0.0.7:30000",
        "0.0.0.0:30000",
        "[::]:1",
        "[2001:db8::1]:1",
    ),
    *(
        "localhost.evil.example",
        "evil-localhost",
        "127.0.0.1.evil.example",
        "127.0.0.1@evil.example",
        "localhost:80:80",
    ),
    *("", "localhost:x", "[::1", "[::1]x", "localhost/", "evil.example#localhost"),
)


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
def test_other_names_are_refused_without_a_key(host: str) -> None:
    assert status_of(RuntimeConfig(), host=host) == 403
    assert status_of(RuntimeConfig(api_key="k"), host=host) == 200
    assert status_of(RuntimeConfig(api_keys_file="keys"), host=host) == 200
    assert status_of(RuntimeConfig(api_key="k", allowed_hosts="gateway"), host=host) == 403


def test_a_missing_or_a_second_host_is_refused_without_a_key() -> None:
    for hosts in ([], [(b"host", b"localhost"), (b"host", b"evil.example")]):
        with pytest.raises(ApiError):
            Doorway(RuntimeConfig()).check(Headers(raw=hosts))


def test_allowed_hosts_and_the_bound_address() -> None:
    config = RuntimeConfig(allowed_hosts="Gateway, 10.0.0.7,2001:db8::1")
    config.validate()
    for host in ("gateway:30000", "10.0.0.7", "[2001:db8::1]:30000"):
        assert status_of(config, host=host) == 200
    assert status_of(config, host="gateway2") == 403
    assert status_of(RuntimeConfig(host="192.0.2.1", api_key="k", allowed_hosts="a"), host="192.0.2.1:30000") == 200


@pytest.mark.parametrize("value", ["gateway:30000", "http://gateway", "*", "a b"])
def test_a_host_that_cannot_match_is_an_error(value: str) -> None:
    with pytest.raises(ConfigError, match="OPENCLAW_ALLOWED_HOSTS"):
        RuntimeConfig(allowed_hosts=value).validate()


@pytest.mark.parametrize(
    "value", ["*", "chat.example.org", "https://chat.example.org/", "null", "https://*.example.org"]
)
def test_an_origin_that_cannot_match_is_an_error(value: str) -> None:
    with pytest.raises(ConfigError, match="OPENCLAW_ALLOWED_ORIGINS"):
        RuntimeConfig(allowed_origins=value).validate()


def test_the_name_of_a_host() -> None:
    assert host_name("[::1]:80") == "::1"
    assert host_name("A.b.:80") == "a.b"


FOREIGN_PAGES: tuple[dict[str, str], ...] = (
    {"origin": EVIL},
    {"origin": "null"},
    {"origin": ""},
    {"origin": "http://localhost:3000"},
    {"origin": "http://127.0.0.1:30000"},
    {"sec_fetch_site": "cross-site"},
    {"sec_fetch_site": "same-site"},
    {"sec_fetch_site": "same-site", "origin": "http://localhost:30000"},
)


@pytest.mark.parametrize("headers", FOREIGN_PAGES)
@pytest.mark.parametrize("key", [None, "k"])
def test_a_page_of_another_origin_is_refused(headers: dict[str, str], key: str | None) -> None:
    assert status_of(RuntimeConfig(api_key=key), host="localhost:30000", **headers) == 403


def test_our_own_pages_and_programs_are_served() -> None:
    config = RuntimeConfig(allowed_origins=f"{FRIEND},chrome-extension://abcdef")
    config.validate()
    for headers in (
        {},
        {"origin": "http://localhost:30000", "sec_fetch_site": "same-origin"},
        {"sec_fetch_site": "none"},
        {"sec_fetch_mode": "cors"},
        {"origin": FRIEND, "sec_fetch_site": "cross-site"},
        {"origin": "chrome-extension://abcdef"},
    ):
        assert status_of(config, host="localhost:30000", **headers) == 200
    assert status_of(config, host="localhost:30000", origin=EVIL) == 403
    assert status_of(replace(config, api_key="k"), host="elsewhere", origin="null") == 403


ATTEMPTS = (
    ("POST", "/v1/chat/completions", CHAT),
    ("POST", "/v1/feedback", {"response_id": "any", "thumbs": "up"}),
    ("POST", "/v1/sessions/s/done", None),
    ("DELETE", "/v1/sessions/s", None),
    ("GET", "/v1/models", None),
    ("GET", "/metrics", None),
    ("GET", "/healthz", None),
    ("OPTIONS", "/v1/chat/completions", None),
)


@pytest.mark.parametrize("key", [None, "s3cret"])
@pytest.mark.parametrize(
    "headers", [{"origin": EVIL}, {"sec-fetch-site": "cross-site"}, {"host": "rebind.evil.example"}]
)
async def test_nothing_happens_for_a_foreign_page(start: Starter, key: str | None, headers: dict[str, str]) -> None:
    stack: Stack = await start(api_key=key, allowed_hosts="gateway" if key else None)
    stack.say("Hi.")
    own = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False, headers=own if key else {}) as client:
        first = await client.post("/v1/chat/completions", json=CHAT)
        assert first.status_code == 200
        for method, path, body in ATTEMPTS:
            answer = await client.request(method, path, json=body, headers=headers)
            assert answer.status_code == 403, (method, path)
            error = answer.json()["error"]
            assert error["code"] in ("origin_not_allowed", "host_not_allowed")
            assert "OPENCLAW_ALLOWED_" in error["message"]
            assert not [name for name in answer.headers if name.startswith("access-control")]
        after = await client.get(f"/v1/turns/{first.json()['id']}")
    assert after.status_code == 200
    assert (len(stack.turns()), len(stack.engine.requests)) == (1, 1)
    assert stack.turns()[0].state == "waiting"


async def test_an_allowed_page_works_with_its_preflight(start: Starter) -> None:
    stack: Stack = await start(api_key="s3cret", allowed_origins=FRIEND)
    stack.say("Hi.")
    page = {"origin": FRIEND, "sec-fetch-site": "cross-site"}
    asks = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type,x-session-id",
    }
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False, headers=page) as client:
        preflight = await client.options("/v1/chat/completions", headers=asks)
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == FRIEND
        assert "authorization" in preflight.headers["access-control-allow-headers"]
        refused = await client.post("/v1/chat/completions", json=CHAT)
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, FRIEND)
        key = {"authorization": "Bearer s3cret"}
        answer = await client.post("/v1/chat/completions", json=CHAT, headers=key)
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, FRIEND)
        assert "x-request-id" in answer.headers["access-control-expose-headers"]
        foreign = await client.options("/v1/chat/completions", headers={**asks, "origin": EVIL})
        assert foreign.status_code == 403
        plain = await client.get("/v1/models", headers={**key, "origin": f"http://{urlsplit(stack.url).netloc}"})
        assert plain.status_code == 403, "a page of ours is never cross-site"


@pytest.mark.parametrize("stated", [None, "text/plain", "application/x-www-form-urlencoded", "application/jsonp", ""])
async def test_a_body_that_any_page_could_send_is_refused(stack: Stack, stated: str | None) -> None:
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False) as client:
        for path in ("/v1/chat/completions", "/v1/feedback", "/v1/sessions/s/done"):
            headers = {} if stated is None else {"content-type": stated}
            answer = await client.post(path, content=b'{"messages": []}', headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (415, "unsupported_media_type")
    assert stack.metric("openclaw_requests_total", code="415") == 1


async def test_json_with_parameters_and_no_body_at_all_are_taken(stack: Stack, http: httpx.AsyncClient) -> None:
    stack.say("Hi.")
    headers = {"content-type": "Application/JSON; charset=utf-8"}
    sent = b'{"messages": [{"role": "user", "content": "Hello?"}], "session_id": "s"}'
    assert (await http.post("/v1/chat/completions", content=sent, headers=headers)).status_code == 200
    assert (await http.post("/v1/sessions/s/done")).status_code == 200


async def test_web_sockets_are_refused(stack: Stack) -> None:
    address = urlsplit(stack.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(
        b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x3JJHMbDL1EzLkh9GBhXDw==\r\n\r\n"
    )
    assert (await reader.readline()).startswith(b"HTTP/1.1 400 ")
    writer.close()


async def test_the_log_names_a_refused_page_once(stack: Stack, http: httpx.AsyncClient, caplog: Any) -> None:
    caplog.set_level(logging.WARNING, "openclaw.gateway.guard")
    for _ in range(3):
        await http.get("/healthz", headers={"origin": EVIL})
    assert [EVIL in line for line in caplog.messages] == [True]
