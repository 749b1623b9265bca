"""Reactions that an LLM writes: what it is asked, what becomes of its words, and that the rule still measures."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI
from simulated_users.llm import LlmVoice, UserModelError
from simulated_users.reading import find_user
from student import Student

GOOD, BAD = "Okay, 3 and 4 make 7.", "**7**"


class Both:
    """The assistant and the user's LLM behind one address, told apart by the model's name."""

    def __init__(self) -> None:
        self.replies = [BAD, GOOD, "Bye."]
        self.reactions = ["Please no stars.", "<think>Kind?</think>\n Lovely, thanks!"]
        self.asked: list[tuple[dict[str, Any], httpx.Headers]] = []
        self.status = 200

    def handle(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        of_user = body["model"] == "person"
        if of_user:
            self.asked.append((body, request.headers))
        if of_user and self.status != 200:
            return httpx.Response(self.status, json={"error": {"message": "wrong key"}})
        message = {"role": "assistant", "content": (self.reactions if of_user else self.replies).pop(0)}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        return httpx.Response(
            200, json={"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
        )


@pytest.fixture
def both() -> Both:
    return Both()


@pytest.fixture
async def client(both: Both) -> AsyncIterator[AsyncOpenAI]:
    http = httpx.AsyncClient(transport=httpx.MockTransport(both.handle))
    async with AsyncOpenAI(base_url="http://test/v1", api_key="secret", max_retries=0, http_client=http) as value:
        yield value


def talking(client: AsyncOpenAI, turns: int = 3) -> Student:
    user = find_user("student")
    return Student(client, "m", user=user, voice=LlmVoice(client, "person", user), max_turns=turns)


async def test_the_llm_writes_and_the_rule_measures(both: Both, client: AsyncOpenAI) -> None:
    student = talking(client)
    messages = await student.session(0)
    assert messages[2]["content"] == "Please no stars."
    assert messages[4]["content"] == "Lovely, thanks!", "without the thought; the last reaction has no next problem"
    assert student.first_replies == {0: False}
    assert student.tally.complaints == 1
    (complaint, headers), (praise, _) = both.asked
    assert "copies the answer into homework" in complaint["messages"][0]["content"]
    assert "plain prose" in complaint["messages"][0]["content"]
    assert BAD in complaint["messages"][1]["content"]
    assert "Complain" in complaint["messages"][1]["content"]
    assert "pleased" in praise["messages"][1]["content"]
    assert (headers["x-turn-type"], headers["authorization"]) == ("side", "Bearer secret")


async def test_the_next_problem_is_added_word_for_word(both: Both, client: AsyncOpenAI) -> None:
    both.replies, both.reactions = [GOOD, GOOD, "Bye."], ["Nice!", "Bye!"]
    messages = await talking(client).session(0)
    assert messages[2]["content"].startswith("Nice! ")
    assert messages[2]["content"].endswith("?")


async def test_an_empty_reaction_and_a_refusal_are_errors(both: Both, client: AsyncOpenAI) -> None:
    both.reactions = ["<think>so long</think> "]
    with pytest.raises(UserModelError, match="empty reaction within 512 tokens; raise --user-max-tokens"):
        await talking(client).session(0)
    both.status, both.replies = 401, [BAD]
    with pytest.raises(UserModelError, match="refused a request"):
        await talking(client).session(1)


def test_a_user_without_a_role_cannot_be_played(client: AsyncOpenAI) -> None:
    with pytest.raises(UserModelError, match="captain has no role for an LLM; add a line to its file: role:"):
        LlmVoice(client, "person", find_user("captain"))
