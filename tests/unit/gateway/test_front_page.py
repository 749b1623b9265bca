"""Who opens the server's address, or asks for another API's route, reads what this server is and what to use."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

from tests.helpers.html_tags import Tags
from tests.unit.gateway.conftest import Stack, Starter

BROWSER = {
    "accept": "text/html,application/xhtml+xml,*/*;q=0.8",
    "sec-fetch-site": "none",
    "sec-fetch-mode": "navigate",
}
SECRETS = ("My PIN is 7294", "key-a", "alice", "hers")


async def opened(stack: Stack, path: str = "/", method: str = "GET", **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False) as client:
        return await client.request(method, path, headers=headers)


async def with_a_conversation(start: Starter, folder: Path) -> Stack:
    """A server with keys on which alice has said something; its model has a name that HTML reads as a tag."""
    path = folder / "keys"
    path.write_text("alice: key-a\n")
    path.chmod(0o600)
    stack: Stack = await start(api_keys_file=str(path), served_model_name="<b>tiny</b>&co")
    stack.say("Fine.")
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False, headers={"x-api-key": "key-a"}) as client:
        body = {"messages": [{"role": "user", "content": "My PIN is 7294"}]}
        (await client.post("/v1/chat/completions", json=body, headers={"x-session-id": "hers"})).raise_for_status()
    return stack


async def test_a_browser_gets_a_page_that_stands_alone(start: Starter, tmp_path: Path) -> None:
    stack = await with_a_conversation(start, tmp_path)
    page = await opened(stack, **BROWSER)
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "&lt;b&gt;tiny&lt;/b&gt;&amp;co" in page.text
    assert f"openclaw-rl chat --base-url {stack.url}/v1" in page.text
    assert "Authorization: Bearer $OPENCLAW_API_KEY" in page.text
    found = Tags(page.text)
    assert not found.tags & {"script", "img", "link", "iframe", "form", "a", "object", "base"}
    assert found.attributes <= {"lang", "charset", "name", "content"}
    assert not re.findall(r"https?://(?!127\.0\.0\.1)", page.text)
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    for secret in SECRETS:
        assert secret not in page.text


async def test_others_get_the_same_as_json(start: Starter, tmp_path: Path) -> None:
    stack = await with_a_conversation(start, tmp_path)
    for accept in ("*/*", "application/json"):
        answer = await opened(stack, accept=accept)
        told = answer.json()
        assert (told["status"], told["model"], told["needs_key"]) == ("ok", "<b>tiny</b>&co", True)
        assert told["base_url"] == f"{stack.url}/v1"
        for secret in SECRETS:
            assert secret not in answer.text


async def test_without_keys_it_says_so(stack: Stack) -> None:
    assert "Requests need no key." in (await opened(stack, **BROWSER)).text
    assert "Bearer" not in (await opened(stack, **BROWSER)).text
    assert (await opened(stack)).json()["needs_key"] is False


async def test_a_page_of_another_site_cannot_read_it(stack: Stack) -> None:
    assert (await opened(stack, **{**BROWSER, "sec-fetch-site": "cross-site"})).status_code == 403
    assert (await opened(stack, host="evil.example")).status_code == 403


async def test_each_route_that_it_names_is_there(stack: Stack) -> None:
    routes = (await opened(stack)).json()["routes"]
    described = (await opened(stack, "/openapi.json")).json()["paths"]
    for route in routes:
        method, _, path = route.partition(" ")
        known = path == "/openapi.json" or method.lower() in described.get(path.replace("ID", "{response_id}"), {})
        assert known, route


@pytest.mark.parametrize(
    ("method", "path", "words"),
    [
        ("POST", "/responses", "ends in /v1"),
        ("POST", "/v1/v1/messages", "the base URL of this server ends before /v1"),
        ("POST", "/completions", "the base URL of this server ends in /v1"),
        ("POST", "/v1/embeddings", "gives no embeddings"),
        ("POST", "/chat/completions", "the base URL of this server ends in /v1"),
        ("POST", "/v1/v1/chat/completions/", "the base URL of this server ends in /v1"),
        ("GET", "/favicon.ico", "there is no GET /favicon.ico;"),
    ],
)
async def test_a_route_of_another_api_is_a_404_that_says_what_to_use(
    stack: Stack, method: str, path: str, words: str
) -> None:
    answer = await opened(stack, path, method, **{"content-type": "application/json"})
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["code"]) == (404, "not_found_error", "route_not_found")
    assert words in error["message"]
    assert "use POST /v1/chat/completions, or see the routes at GET /" in error["message"]
