"""The three simulated users: their rules, their words, and their commands."""

from __future__ import annotations

import json
import random
import runpy
import sys
from pathlib import Path

import chat
import httpx
import pytest
from measure import Item, draw_item
from openai import AsyncOpenAI
from simulated_users.reading import find_user
from simulated_users.rules import token_count
from simulated_users.user import User
from student import Student

STUDENT, TA, TEACHER = (find_user(name) for name in ("student", "ta", "teacher"))
LONG = "You added the numbers in the right order and wrote each step down. " * 8
FRIENDLY = "Well done, that is right."


@pytest.mark.parametrize(
    ("persona", "liked", "disliked"),
    [
        (STUDENT, "3 + 4 = 7.", "**7**"),
        (TA, LONG, "Right."),
        (TEACHER, FRIENDLY, "It is right."),
        (TEACHER, "Great Job!", "Good."),
    ],
)
def test_the_rules(persona: User, liked: str, disliked: str) -> None:
    assert persona.likes(liked)
    assert not persona.likes(disliked)


def test_the_ta_counts_to_a_hundred() -> None:
    assert token_count("It is 7, yes.") == 6
    assert TA.likes("a " * 100)
    assert not TA.likes("a " * 99)


@pytest.mark.parametrize("persona", [TA, TEACHER])
async def test_a_user_complains_until_the_rule_is_followed(persona: User) -> None:
    asked: list[dict] = []
    replies = iter(["Right.", LONG + FRIENDLY, "Bye."])

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(json.loads(request.content))
        message = {"role": "assistant", "content": next(replies)}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        return httpx.Response(
            200, json={"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
        )

    http = httpx.AsyncClient(transport=httpx.MockTransport(handle))
    async with AsyncOpenAI(base_url="http://test/v1", api_key="x", max_retries=0, http_client=http) as client:
        user = Student(client, "m", user=persona, problems=[Item("How many?", "7")], max_turns=3)
        messages = await user.session(4)
    assert "How many?" in messages[0]["content"]
    assert (user.tally.complaints, user.tally.recent_rule_rate) == (1, 0.0)
    assert messages[4]["content"] in [persona.approve(random.Random(seed), None) for seed in range(50)]
    assert [body["max_tokens"] for body in asked] == [persona.max_tokens, persona.max_tokens, 16]


def test_generated_problems_are_the_students() -> None:
    item = draw_item(random.Random(1))
    assert STUDENT.first_message(item) == item.question
    assert item.question in TA.first_message(item)
    assert item.answer in TEACHER.first_message(item)


@pytest.mark.parametrize("name", ["student", "ta", "teacher"])
def test_the_commands_have_the_options_that_guides_name(
    name: str, repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [f"{name}_chat.py", "--help"])
    with pytest.raises(SystemExit):
        runpy.run_path(str(repository / "openclaw-test" / f"{name}_chat.py"), run_name="__main__")
    text = capsys.readouterr().out
    assert f"usage: {name}_chat.py" in text
    for flag in ("--dataset", "--num-problems", "--max-turns", "--base-url"):
        assert flag in text


def test_a_wrong_dataset_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.json").write_text("{}")
    assert chat.main(TA, "ta_chat.py", ["--dataset", str(tmp_path / "x.json")]) == 2
    assert "is not a GSM8K file" in capsys.readouterr().err
