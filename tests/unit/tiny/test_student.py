"""The simulated student and the measurement, against a stand-in for the OpenAI API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from measure import Item, MeasureError, gsm8k_items, heldout_items, measure
from openai import AsyncOpenAI
from student import Refused, Student
from word_problems.phrases import COMPLAINTS, THANKS
from word_problems.problems import MAX_NEXT_QUESTION

from lab.tiny_models.tastes import taste_named

GOOD, BAD = "Okay, you start with 3 and add 4, so 3 + 4 = 7.", "Sure!\n\n1. **Start:** 3.\n\n\\boxed{7}"
Answer = Callable[[dict[str, Any]], str]


class Server:
    """Answers chat completions and remembers them; one client at a time."""

    def __init__(self) -> None:
        self.answer: Answer = lambda body: GOOD
        self.status = 200
        self.requests: list[tuple[dict[str, Any], httpx.Headers]] = []

    def handle(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        self.requests.append((body, request.headers))
        if self.status != 200:
            return httpx.Response(self.status, json={"error": {"message": "away"}})
        choice = {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": self.answer(body)},
        }
        usage = {"prompt_tokens": 5, "completion_tokens": 20, "total_tokens": 25}
        reply = {"id": "x", "object": "chat.completion", "created": 0, "model": "tiny", "choices": [choice]}
        return httpx.Response(200, json={**reply, "usage": usage}, headers={"x-weight-version": "4"})


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
async def client(server: Server) -> AsyncIterator[AsyncOpenAI]:
    http = httpx.AsyncClient(transport=httpx.MockTransport(server.handle))
    async with AsyncOpenAI(base_url="http://test/v1", api_key="x", max_retries=0, http_client=http) as value:
        yield value


async def test_a_liked_reply_gets_thanks_and_the_next_problem(server: Server, client: AsyncOpenAI) -> None:
    student = Student(client, "tiny", seed=1)
    messages = await student.session(0)
    assert [message["role"] for message in messages] == ["user", "assistant"] * 3
    assert "?" in messages[2]["content"]
    assert student.tally.complaints == 0
    assert student.tally.recent_rule_rate == 1.0
    assert {headers["x-session-id"] for _, headers in server.requests} == {"student-1-0"}
    assert [headers.get("x-session-done") for _, headers in server.requests] == [None, None, "1"]
    assert "temperature" not in server.requests[0][0]


async def test_a_disliked_reply_gets_a_complaint_in_held_out_words(server: Server, client: AsyncOpenAI) -> None:
    server.answer = lambda body: BAD if len(body["messages"]) == 1 else GOOD
    student = Student(client, "tiny", seed=2)
    complaints = []
    for number in range(20):
        messages = await student.session(number)
        complaints.append(messages[2]["content"].lower())
        assert not any(text.lower() in messages[4]["content"].lower() for text in COMPLAINTS["held"])
    assert student.tally.complaints == 20
    assert student.tally.recent_rule_rate == 0.0
    words = " ".join(complaints)
    assert any(text.lower().rstrip(".") in words for text in COMPLAINTS["held"])
    assert not any(text.lower() in words for text in COMPLAINTS["train"])
    assert not any(text.lower() in words for text in THANKS["held"])


async def test_a_plain_client_sends_no_header_of_ours(server: Server, client: AsyncOpenAI) -> None:
    taste = taste_named("captain")
    server.answer = lambda body: GOOD if len(body["messages"]) == 1 else f"Okay captain. {GOOD}"
    student = Student(client, "tiny", seed=2, user=taste, plain=True)
    messages = await student.session(0)
    assert messages[2]["content"] in taste.complaints.phrases
    assert messages[4]["content"] in taste.thanks.phrases
    assert student.tally.recent_rule_rate == 0.0
    assert len(server.requests) == 3
    assert not {"x-session-id", "x-turn-type", "x-session-done"} & {
        n for _, headers in server.requests for n in headers
    }
    assert {tuple(sorted(body)) for body, _ in server.requests} == {("max_tokens", "messages", "model")}


async def test_the_same_seed_says_the_same(client: AsyncOpenAI) -> None:
    first = [await Student(client, "tiny", seed=3).session(number) for number in range(3)]
    assert first == [await Student(client, "tiny", seed=3).session(number) for number in range(3)]
    assert first != [await Student(client, "tiny", seed=4).session(number) for number in range(3)]


async def test_several_sessions_until_stopped(server: Server, client: AsyncOpenAI) -> None:
    stop = asyncio.Event()
    student = Student(client, "tiny")

    def answer(body: dict[str, Any]) -> str:
        if student.tally.requests > 40:
            stop.set()
        return GOOD

    server.answer = answer
    await student.talk(4, stop)
    assert student.tally.sessions >= 13
    assert student.tally.turns == student.tally.requests == student.tally.sessions * 3
    assert student.tally.tokens == 20 * student.tally.turns


async def test_a_given_number_of_sessions(client: AsyncOpenAI) -> None:
    student = Student(client, "tiny", max_turns=2)
    await student.talk(3, asyncio.Event(), sessions=5)
    assert (student.tally.sessions, student.tally.requests) == (5, 10)


async def test_refusals_are_counted_and_not_retried(server: Server, client: AsyncOpenAI) -> None:
    server.status = 503
    student = Student(client, "tiny")
    with pytest.raises(Refused, match="student-0-0"):
        await student.session(0)
    assert (student.tally.requests, student.tally.refused, len(server.requests)) == (1, 1, 1)


def test_a_session_needs_a_reaction(client: AsyncOpenAI) -> None:
    with pytest.raises(ValueError, match="max_turns"):
        Student(client, "tiny", max_turns=1)


async def test_measuring_is_a_side_turn_and_counts(server: Server, client: AsyncOpenAI) -> None:
    replies = {"a": GOOD, "b": BAD, "c": "so it is 8 and 8 and 8", "d": "no number"}
    server.answer = lambda body: replies[body["messages"][0]["content"]]
    result = await measure(client, "tiny", [Item(name, "7") for name in replies])
    assert result.rule_rate == 0.5
    assert result.right_number_rate == 0.5
    assert result.degenerate_rate == 0.25
    assert result.weight_version == "4"
    assert {headers["x-turn-type"] for _, headers in server.requests} == {"side"}
    assert len({headers["x-session-id"] for _, headers in server.requests}) == 4


async def test_measuring_by_another_rule(server: Server, client: AsyncOpenAI) -> None:
    replies = {"a": GOOD, "b": f"Okay captain, {GOOD}", "c": "captain"}
    server.answer = lambda body: replies[body["messages"][0]["content"]]
    result = await measure(client, "tiny", [Item(name, "7") for name in replies], likes=taste_named("captain").likes)
    assert [reply.liked for reply in result.replies] == [False, True, True]
    assert result.rule_rate == round(1 / 3, 4)


async def test_measuring_fails_loudly(server: Server, client: AsyncOpenAI) -> None:
    server.status = 503
    with pytest.raises(MeasureError, match="refused"):
        await measure(client, "tiny", heldout_items(3))


def test_gsm8k_files(tmp_path: Path) -> None:
    lines, whole, wrong = tmp_path / "a.jsonl", tmp_path / "b.json", tmp_path / "c.json"
    lines.write_text('{"question": "q", "answer": "long way #### 12"}\n')
    whole.write_text('[{"question": "q", "ground_truth_answer": "12"}]')
    wrong.write_text('{"nothing": 1}')
    assert gsm8k_items(lines) == gsm8k_items(whole) == [Item("q", "12")]
    with pytest.raises(MeasureError, match=r"c\.json"):
        gsm8k_items(wrong)
    with pytest.raises(MeasureError, match="not a GSM8K"):
        gsm8k_items(tmp_path / "missing.json")


def test_questions_in_one_message_are_short() -> None:
    assert MAX_NEXT_QUESTION < 300
