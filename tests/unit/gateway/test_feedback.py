"""`POST /v1/feedback`: what it does to a turn in each of its states, and what is refused."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from openclaw.credit.baseline import record_judged
from openclaw.ledger.exceptions import LedgerUnavailableError
from openclaw.ledger.feedback import Opinion, as_next_state, opinion
from openclaw.ledger.records import Feedback, Verdict
from openclaw.training.samples import make_sample
from tests.unit.gateway.conftest import Stack

USER: list[Any] = [{"role": "user", "content": "Hello?"}]


async def reply(stack: Stack, messages: list[Any] = USER, **headers: str) -> str:
    """Get one reply and return its id."""
    stack.say("Hello you.")
    completion = await stack.client.chat.completions.create(
        model="any", messages=messages, extra_headers={"X-Session-Id": "s", **headers}
    )
    return completion.id


async def send(http: httpx.AsyncClient, response_id: str, **said: Any) -> dict[str, Any]:
    response = await http.post("/v1/feedback", json={"response_id": response_id, **said})
    assert response.status_code == 200, response.text
    return response.json()


async def test_feedback_makes_a_waiting_turn_pending(stack: Stack, http: httpx.AsyncClient) -> None:
    turn_id = await reply(stack)
    stack.clock[0] = 1500.0
    answer = await send(http, turn_id, thumbs="down", text="  Too long. ")
    assert answer == {"object": "feedback", "response_id": turn_id, "applied": True, "reason": None}
    turn = stack.turns()[0]
    assert (turn.state, turn.signal, turn.next_state_at) == ("pending", "feedback", 1500.0)
    assert turn.next_state == [{"role": "user", "content": "Too long."}]
    [kept] = stack.ledger.feedback.of(turn_id)
    assert (kept.thumbs, kept.text, kept.source) == ("down", "Too long.", "local")
    assert stack.metric("openclaw_feedback_total", value="-1", outcome="applied") == 1


async def test_the_conversation_goes_on_after_feedback(stack: Stack, http: httpx.AsyncClient) -> None:
    turn_id = await reply(stack)
    await send(http, turn_id, thumbs="up")
    said = {"role": "assistant", "content": "Hello you."}
    await reply(stack, [*USER, said, {"role": "user", "content": "And now?"}])
    first, second = stack.turns()
    assert (first.state, first.signal, first.next_state) == (
        "pending",
        "feedback",
        [{"role": "user", "content": "(feedback: +1)"}],
    )
    assert second.state == "waiting"


async def test_feedback_to_a_turn_of_an_ended_session(stack: Stack, http: httpx.AsyncClient) -> None:
    turn_id = await reply(stack, **{"X-Session-Done": "1"})
    assert stack.turns()[0].state == "ended"
    assert (await send(http, turn_id, score=-1))["applied"]
    assert stack.turns()[0].state == "pending"


async def test_feedback_beside_a_next_state_counts_until_the_turn_is_trained(
    stack: Stack, http: httpx.AsyncClient
) -> None:
    turn_id = await reply(stack)
    await reply(stack, [*USER, {"role": "assistant", "content": "Hello you."}, {"role": "user", "content": "More."}])
    assert (await send(http, turn_id, thumbs="up"))["applied"]
    record_judged(stack.ledger, turn_id, Verdict(score=0), [], "score_zero")
    assert (await send(http, turn_id, thumbs="down"))["applied"]
    turn = stack.ledger.turns.get(turn_id)
    record_judged(stack.ledger, turn_id, Verdict(score=-1), [make_sample(turn, -1.0, score=-1)], None)
    stack.ledger.samples.claim(0, 1)
    words = await send(http, turn_id, text="Shorter next time.")
    assert (words["applied"], words["reason"]) == (False, "already_trained")
    late = await send(http, turn_id, thumbs="up")
    assert (late["applied"], late["reason"]) == (True, None), "it corrects what a step learns"
    assert [item.thumbs for item in stack.ledger.feedback.of(turn_id)] == ["up", "down", None, "up"]
    assert stack.metric("openclaw_feedback_total", value="words", outcome="kept") == 1


async def test_a_turn_that_is_never_trained_says_why(stack: Stack, http: httpx.AsyncClient) -> None:
    turn_id = await reply(stack, **{"X-Turn-Type": "side"})
    answer = await send(http, turn_id, text="Nice.")
    assert (answer["applied"], answer["reason"]) == (False, "side")


async def test_saying_it_twice_is_saying_it_once(stack: Stack, http: httpx.AsyncClient) -> None:
    turn_id = await reply(stack)
    answers = [await send(http, turn_id, thumbs="up", text="Good.") for _ in range(3)]
    assert answers[0] == answers[1] == answers[2]
    assert len(stack.ledger.feedback.of(turn_id)) == 1
    assert stack.metric("openclaw_feedback_total", value="1", outcome="repeated") == 2


async def test_what_a_front_end_saw_a_person_do(stack: Stack, http: httpx.AsyncClient) -> None:
    copied = await reply(stack)
    assert await send(http, copied, action="copied") == {
        "object": "feedback",
        "response_id": copied,
        "applied": False,
        "reason": "waiting",
    }
    assert (await send(http, copied, edit=" Hello. "))["applied"]
    [first, second] = stack.ledger.feedback.of(copied)
    assert (first.action, second.action, second.edit) == ("copied", "edited", "Hello.")
    assert (await send(http, copied, action="regenerated"))["reason"] == "outranked"
    assert stack.metric("openclaw_feedback_total", value="edited", outcome="applied") == 1
    response = await http.post("/v1/feedback", json={"response_id": copied, "action": "copied", "edit": "x"})
    assert response.status_code == 400


async def test_an_unknown_reply(stack: Stack, http: httpx.AsyncClient) -> None:
    response = await http.post("/v1/feedback", json={"response_id": "chatcmpl-nothing", "thumbs": "up"})
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "response_not_found"
    assert "chatcmpl-nothing" not in response.text


async def test_feedback_that_cannot_be_recorded_is_an_error(
    stack: Stack, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn_id = await reply(stack)

    def full(*_: Any) -> None:
        raise LedgerUnavailableError("the disk is full")

    monkeypatch.setattr(stack.ledger.feedback, "record", full)
    response = await http.post("/v1/feedback", json={"response_id": turn_id, "thumbs": "up"})
    assert (response.status_code, response.json()["error"]["code"]) == (500, "ledger_unavailable")
    assert stack.metric("openclaw_ledger_failures_total") == 1
    monkeypatch.undo()
    assert (await send(http, turn_id, thumbs="up"))["applied"]


@pytest.mark.parametrize(
    ("said", "param"),
    [
        ({}, None),
        ({"text": "   "}, None),
        ({"thumbs": None, "score": None, "text": None}, None),
        ({"thumbs": "sideways"}, "thumbs"),
        ({"thumbs": True}, "thumbs"),
        ({"score": 1.5}, "score"),
        ({"score": "1"}, "score"),
        ({"thumbs": "up", "score": -0.5}, "score"),
        ({"text": 3}, "text"),
        ({"stars": 5}, "stars"),
        ({"response_id": ""}, "response_id"),
    ],
)
async def test_what_cannot_be_meant_is_refused(
    stack: Stack, http: httpx.AsyncClient, said: dict[str, Any], param: str | None
) -> None:
    turn_id = await reply(stack)
    response = await http.post("/v1/feedback", json={"response_id": turn_id, **said})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert stack.ledger.feedback.of(turn_id) == []
    assert stack.turns()[0].state == "waiting"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"3", b'{"response_id": "a"', b"\xff"])
async def test_a_body_that_is_no_feedback(http: httpx.AsyncClient, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    assert (await http.post("/v1/feedback", content=body, headers=headers)).status_code == 400


def said(**values: Any) -> Feedback:
    return Feedback(turn_id="t", created_at=1.0, **values)


@pytest.mark.parametrize(
    ("statements", "expected"),
    [
        ([said(thumbs="up")], Opinion(1)),
        ([said(thumbs="down", text="a")], Opinion(-1, ("a",))),
        ([said(thumbs="up"), said(thumbs="down")], Opinion(-1)),
        ([said(thumbs="down"), said(text="because")], Opinion(-1, ("because",))),
        ([said(text="a"), said(text="b", score=0.2), said(text="a")], Opinion(0, ("a", "b"))),
        ([said(score=0.5)], Opinion(1)),
        ([said(score=-0.5, thumbs="down")], Opinion(-1)),
        ([said(score=0.0)], Opinion(0)),
        ([], Opinion()),
    ],
)
def test_what_statements_come_to(statements: list[Feedback], expected: Opinion) -> None:
    assert opinion(statements) == expected


def test_an_opinion_without_words_has_a_text_for_people() -> None:
    assert as_next_state(said(thumbs="down")) == [{"role": "user", "content": "(feedback: -1)"}]
