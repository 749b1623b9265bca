"""Homework as files: simulated in messages, and through an agent that has the files itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import chat
import httpx
import pytest
from measure import Item
from openai import AsyncOpenAI
from simulated_users.reading import find_user
from simulated_users.workspace import Workspace
from student import Student

GOOD, BAD = "3 and 4 make 7.", "**7**"


async def hold(answer: Any, form: Workspace) -> tuple[list[dict], list[dict], Student]:
    """Hold a session about one problem; return messages, requests and the student."""
    asked: list[dict] = []

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append({**json.loads(request.content), "headers": request.headers})
        message = {"role": "assistant", "content": answer(asked[-1])}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        return httpx.Response(
            200, json={"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
        )

    http = httpx.AsyncClient(transport=httpx.MockTransport(handle))
    async with AsyncOpenAI(base_url="http://test/v1", api_key="x", max_retries=0, http_client=http) as client:
        problems = [Item("How many?", "7"), Item("How much?", "8")]
        student = Student(client, "m", user=find_user("student"), form=form, problems=problems, max_turns=4)
        return await student.session(0), asked, student


async def test_files_are_simulated_in_messages(tmp_path: Path) -> None:
    replies = iter([BAD, GOOD, BAD, "Bye."])
    messages, asked, student = await hold(lambda _: next(replies), Workspace(tmp_path))
    assert messages[0]["content"] == "homework/00.txt: How many?"
    assert messages[4]["content"].endswith("homework/00-2.txt: How much?")
    assert (tmp_path / "homework" / "00-2.txt").read_text() == "How much?\n"
    assert (tmp_path / "answers" / "00.txt").read_text() == GOOD
    assert (tmp_path / "answers" / "00-2.txt").read_text() == BAD
    assert student.tally.complaints == 2
    assert [len(each["messages"]) for each in asked] == [1, 3, 5, 7]


async def test_an_agent_reads_and_writes_the_files_itself(tmp_path: Path) -> None:
    """The reply in the chat is not the answer: without a file nobody is content, whatever the agent says."""

    def answer(body: dict) -> str:
        if len(body["messages"]) == 1 and "homework/00-2" not in body["messages"][0]["content"]:
            (tmp_path / "answers" / "00.txt").write_text([BAD, GOOD][min(calls.pop(), 1)])
        return GOOD

    calls = [1, 1, 1, 0]
    messages, asked, student = await hold(answer, Workspace(tmp_path, agent=True))
    assert messages[0]["content"] == "Do the homework in homework/00.txt and write the answer to answers/00.txt."
    assert "How many" not in messages[0]["content"]
    assert [len(each["messages"]) for each in asked] == [1, 1, 1, 1], "an agent has its own memory"
    assert {each["user"] for each in asked} == {"student-0-0"}
    assert not any("x-session-id" in each["headers"] for each in asked)
    assert student.tally.complaints == 2, "the first answer was bold, and the second problem has no file"
    assert student.opinions == {0: [False, True, False]}, "and these are what the command marks, not the replies"


def test_an_agent_needs_its_folder(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        chat.main(find_user("ta"), "ta_chat.py", ["--agent-url", "http://127.0.0.1:18789/v1"])
    assert "--agent-url needs the folder that the agent works in: --workspace FOLDER" in capsys.readouterr().err
