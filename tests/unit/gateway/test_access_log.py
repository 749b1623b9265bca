"""What the log says of a request, and that no key and nothing that was said is ever in it."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from lab.testkit.waiting import eventually
from openclaw.owners import logged_name
from tests.unit.gateway.conftest import Stack, Starter

KEY, SAID, ANSWERED, SESSION = "s3cret-key", "marmalade", "porcupine", "session-of-jane"
USER = [{"role": "user", "content": SAID}]


async def ask(stack: Stack, body: Any, path: str = "/v1/chat/completions", **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False) as client:
        return await client.post(path, json=body, headers={"authorization": f"Bearer {KEY}", **headers})


def own_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Lines of the server, without those of this test's own client."""
    kept = ("openclaw", "uvicorn", "asyncio", "fastapi", "limits")
    return [record.getMessage() for record in caplog.records if record.name.startswith(kept)]


@pytest.mark.parametrize("stream", [False, True])
async def test_one_line_says_who_and_what_it_cost(
    start: Starter, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    caplog.set_level(logging.INFO)
    stack = await start(api_key=KEY)
    stack.say(ANSWERED)
    headers = {"x-session-id": SESSION, "x-request-id": "trace-7"}
    response = await ask(stack, {"messages": USER, "stream": stream}, **headers)
    assert response.headers["x-request-id"] == "trace-7"
    turn = stack.turns()[0]
    await eventually(lambda: sum(line.startswith("request=") for line in own_lines(caplog)), 1)
    (line,) = [line for line in own_lines(caplog) if line.startswith("request=")]
    assert line.startswith("request=trace-7 key=environment POST /v1/chat/completions status=200 seconds=")
    assert f"prompt_tokens={len(turn.prompt_ids)} generated_tokens={len(turn.response_ids)}" in line
    assert line.endswith(f"session={logged_name(SESSION)} turn={turn.id}")


@pytest.mark.parametrize("sent", ["", "with space", "x" * 200, "a\u00e9".encode("latin-1").decode("latin-1"), 'a"b'])
async def test_a_request_id_that_is_not_sane_is_not_taken(start: Starter, sent: str) -> None:
    stack = await start()
    stack.say("a")
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False) as client:
        headers = {"x-request-id": sent.encode("latin-1")}
        reply = await client.post("/v1/chat/completions", json={"messages": USER}, headers=headers)
        assert reply.headers["x-request-id"] == reply.json()["id"]
        other = await client.get("/v1/models", headers=headers)
        assert re.fullmatch(r"req-[0-9a-f]{32}", other.headers["x-request-id"])


async def test_no_key_and_no_content_anywhere_but_in_the_ledger(
    start: Starter, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    stack = await start(api_key=KEY)
    stack.engine.chunk_tokens = 100
    stack.say(ANSWERED, ANSWERED)
    session = {"x-session-id": SESSION}
    answers = [await ask(stack, {"messages": USER, "stream": stream}, **session) for stream in (True, False)]
    assert all(ANSWERED in answer.text for answer in answers)
    stack.engine.fail_with = [400]
    refused = [
        await ask(stack, {"messages": USER}, **session),
        await ask(stack, {"messages": USER, SAID: 1}, authorization=f"Bearer {KEY}x"),
        await ask(stack, {"messages": [{"role": SAID, "content": SAID}]}),
        await ask(stack, {"messages": [*USER, {"role": "user", "content": [SAID]}]}),
        await ask(stack, {"messages": USER, "temperature": SAID}),
        await ask(stack, {"messages": USER}, path=f"/v1/{SAID}%0Aforged"),
        await ask(stack, {"response_id": SAID, "text": SAID}, path="/v1/feedback"),
    ]
    assert [answer.status_code for answer in refused] == [400, 401, 400, 400, 400, 404, 404]
    liked = {"response_id": answers[1].json()["id"], "text": SAID}
    assert (await ask(stack, liked, path="/v1/feedback")).status_code == 200
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False) as client:
        metrics = (await client.get("/metrics", headers={"authorization": f"Bearer {KEY}"})).text
    assert 'key="environment"' in metrics

    await eventually(lambda: sum(line.startswith("request=") for line in own_lines(caplog)), 11)
    lines = own_lines(caplog)
    for text in ("\n".join(lines), metrics):
        for secret in (KEY, SAID, ANSWERED, SESSION):
            assert secret not in text
    assert not any(KEY in answer.text for answer in refused)
    stack.ledger.database.rows("PRAGMA wal_checkpoint(TRUNCATE)")
    stored = b"".join(path.read_bytes() for path in Path(stack.ledger.path).parent.glob("ledger.sqlite*"))
    assert ANSWERED.encode() in stored
    assert KEY.encode() not in stored


async def test_contents_are_logged_when_asked_for_and_every_choice_counts(
    start: Starter, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    stack = await start(log_contents=True, api_key=KEY)
    stack.say(ANSWERED, "other")
    await ask(stack, {"messages": USER, "n": 2})
    await eventually(lambda: sum("contents=" in line for line in own_lines(caplog)), 1)
    (line,) = [line for line in own_lines(caplog) if "contents=" in line]
    contents = json.loads(line.partition("contents=")[2])
    assert contents["messages"] == USER
    assert [message["content"] for message in contents["replies"]] == [ANSWERED, "other"]
    generated = sum(len(turn.response_ids) for turn in stack.turns())
    assert stack.metric("openclaw_key_tokens_total", key="environment", kind="generated") == generated
    assert KEY not in caplog.text


SECRETS = (
    "sk-ant-api03-Zx81mQpR7tLw93KdYhB2nVc5",
    "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N",
    "AKIAQ3EGRIT7KDNB4WXP",
    "Zm9vYmFyYmF6cXV4MTIzNDU2Nzg5MEFCQ0RFRkdI",
)
TRACE_IDS = (
    "550e8400-e29b-41d4-a716-446655440000",
    "4bf92f3577b34da6a3ce929d0e0e4736",
    "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    "req_011CSHoEeqs5C35K2UUqR7Fy",
    "01ARZ3NDEKTSV4RRFFQ69G5FAV",
    "1-5759e988-bd862e3fe1be46a994272793",
    "trace-7",
)


@pytest.mark.parametrize("secret", [*SECRETS, KEY])
async def test_a_request_id_that_looks_like_a_secret_is_not_taken(
    start: Starter, caplog: pytest.LogCaptureFixture, secret: str
) -> None:
    caplog.set_level(logging.DEBUG)
    stack = await start(api_key=KEY)
    stack.say("a")
    answer = await ask(stack, {"messages": USER}, **{"x-request-id": secret})
    assert answer.headers["x-request-id"] == answer.json()["id"]
    await eventually(lambda: sum(line.startswith("request=") for line in own_lines(caplog)), 1)
    assert secret not in "\n".join(own_lines(caplog))


@pytest.mark.parametrize("trace", TRACE_IDS)
async def test_trace_ids_are_taken(stack: Stack, http: httpx.AsyncClient, trace: str) -> None:
    assert (await http.get("/v1/models", headers={"x-request-id": trace})).headers["x-request-id"] == trace
