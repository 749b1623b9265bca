"""`GET /v1/turns/{response_id}`: what a client learns about its reply, from the request to the live weights."""

from __future__ import annotations

import logging
from typing import Any

import httpx
import pytest

from openclaw.credit.baseline import record_judged
from openclaw.ledger.exceptions import LedgerUnavailableError
from openclaw.ledger.records import Verdict
from openclaw.training.samples import make_sample
from tests.unit.gateway.conftest import Stack, Starter

USER: list[Any] = [{"role": "user", "content": "Hello?"}]


async def reply(stack: Stack, **headers: str) -> str:
    """Get one reply and return its id."""
    stack.say("Hello you.")
    completion = await stack.client.chat.completions.create(
        model="any", messages=USER, extra_headers={"X-Session-Id": "s", **headers}
    )
    return completion.id


async def outcome(http: httpx.AsyncClient, response_id: str) -> dict[str, Any]:
    response = await http.get(f"/v1/turns/{response_id}")
    assert response.status_code == 200, response.text
    answer = response.json()
    assert (answer.pop("object"), answer.pop("id")) == ("turn", response_id)
    return answer


def told(**values: Any) -> dict[str, Any]:
    """Return a whole answer: ``values``, and what a turn without them has."""
    empty = dict.fromkeys(("reason", "score", "score_source", "hint", "sample", "step", "weight_version"))
    return {**empty, "judge_attempts": 0, **values}


async def test_a_turn_from_its_reply_to_the_live_weights(stack: Stack, http: httpx.AsyncClient) -> None:
    turn_id = await reply(stack)
    assert await outcome(http, turn_id) == told(state="waiting")

    stack.ledger.turns.record_next_state(turn_id, [{"role": "user", "content": "No."}], 1001.0)
    stack.ledger.judging.postpone(turn_id, "http://judge:1 is away", 0.0)
    assert await outcome(http, turn_id) == told(state="pending", judge_attempts=1)

    sample = make_sample(stack.ledger.turns.get(turn_id), -1.0, score=-1)
    record_judged(stack.ledger, turn_id, Verdict(score=-1, hint="Be brief."), [sample], None)
    judged = told(state="judged", score=-1, score_source="judge", hint="Be brief.", judge_attempts=1)
    assert await outcome(http, turn_id) == {**judged, "sample": "ready"}

    stack.ledger.samples.claim(7, 1)
    assert await outcome(http, turn_id) == {**judged, "sample": "leased", "step": 7}
    stack.ledger.samples.record_step(7, "4", 1002.0, 1003.0)
    stack.ledger.samples.mark_trained(7)
    trained = {**judged, "sample": "trained", "step": 7, "weight_version": "4"}
    assert await outcome(http, turn_id) == trained


async def test_a_thumb_says_where_the_score_comes_from(stack: Stack, http: httpx.AsyncClient) -> None:
    turn_id = await reply(stack)
    verdict = Verdict(score=1, score_source="feedback")
    await http.post("/v1/feedback", json={"response_id": turn_id, "thumbs": "up"})
    record_judged(stack.ledger, turn_id, verdict, [], "redacted")
    assert await outcome(http, turn_id) == told(state="judged", score=1, score_source="feedback", reason="redacted")


async def test_a_verdict_without_a_score_has_no_source(stack: Stack, http: httpx.AsyncClient) -> None:
    turn_id = await reply(stack)
    stack.ledger.turns.record_next_state(turn_id, USER, 1001.0)
    record_judged(stack.ledger, turn_id, Verdict(), [], "no_hint")
    assert await outcome(http, turn_id) == told(state="judged", reason="no_hint")


async def test_a_dropped_sample_says_why(stack: Stack, http: httpx.AsyncClient) -> None:
    turn_id = await reply(stack)
    stack.ledger.turns.record_next_state(turn_id, USER, 1001.0)
    sample = make_sample(stack.ledger.turns.get(turn_id), 1.0, score=1)
    record_judged(stack.ledger, turn_id, Verdict(score=1), [sample], None)
    [ready] = stack.ledger.samples.claim(3, 1)
    stack.ledger.samples.drop(ready.metadata["ledger_id"], "stale", 3)
    answer = await outcome(http, turn_id)
    assert (answer["sample"], answer["reason"]) == ("dropped", "stale")


async def test_a_turn_that_is_never_trained_says_why(stack: Stack, http: httpx.AsyncClient) -> None:
    turn_id = await reply(stack, **{"X-Turn-Type": "side"})
    assert await outcome(http, turn_id) == told(state="excluded", reason="side")


async def test_an_unknown_reply(http: httpx.AsyncClient) -> None:
    response = await http.get("/v1/turns/chatcmpl-nothing")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "response_not_found")
    assert "chatcmpl-nothing" not in response.text


async def test_a_ledger_that_is_away_is_a_503(
    stack: Stack, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locked(_: str) -> None:
        raise LedgerUnavailableError("locked")

    monkeypatch.setattr(stack.ledger.views, "outcome", locked)
    assert (await http.get("/v1/turns/any")).status_code == 503


async def test_it_needs_a_key_and_counts_against_no_limit(start: Starter, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "openclaw.access")
    stack = await start(api_key="k", rate_limit_requests=1)
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False) as http:
        assert (await http.get("/v1/turns/any")).status_code == 401
        key = {"Authorization": "Bearer k"}
        stack.say("Hello you.")
        said = await http.post("/v1/chat/completions", json={"messages": USER}, headers=key)
        caplog.clear()
        for _ in range(3):
            assert (await http.get(f"/v1/turns/{said.json()['id']}", headers=key)).status_code == 200
    assert caplog.text == "", "a request that is polled must not fill the log"
