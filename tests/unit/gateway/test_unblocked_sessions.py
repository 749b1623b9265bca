"""What a client cannot take back must not end its session: pictures that a tool gave, and the client's own words."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from openclaw.gateway.schema import UNSEEN_PICTURE
from openclaw.messages.classify import is_internal, user_words
from tests.unit.gateway.conftest import Stack

EVENTS = "openclaw_session_events_total"
DATA = "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAEklEQVR4nGP4z8CAFWEXHbQSACj/P8Fu7N9hAAAAAElFTkSuQmCC"
URL = f"data:image/png;base64,{DATA}"
CUT = (
    "Your response above was cut off mid-stream. Resume directly from where it stops \u2014 no apology, no recap. If none of it "
    "survived, answer the request from the start."
)
LIMIT = (
    "Output token limit hit. Resume directly \u2014 no apology, no recap of what you were doing. Pick up mid-thought if that is "
    "where the cut happened. Break remaining work into smaller pieces."
)
EMPTY = "[Your previous response had no visible output. Please continue and produce a user-visible response.]"


def base64_picture(kind: str = "image/png") -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": DATA}}


def image_result(*blocks: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": list(blocks)}]},
    ]


async def say(http: httpx.AsyncClient, messages: list[Any], **more: Any) -> httpx.Response:
    headers = {"x-claude-code-session-id": "s"}
    body = {"model": "m", "max_tokens": 200, "messages": messages, **more}
    return await http.post("/v1/messages?beta=true", json=body, headers=headers)


@pytest.mark.parametrize(
    "block",
    [
        base64_picture(),
        base64_picture("image/svg+xml"),
        {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}},
    ],
)
async def test_a_picture_that_a_tool_gave_is_told_to_a_model_without_eyes(
    stack: Stack, http: httpx.AsyncClient, block: dict[str, Any]
) -> None:
    stack.say("I cannot see it.")
    text = {"type": "text", "text": "a.png"}
    answer = await say(http, image_result(text, block))
    assert answer.status_code == 200, answer.text
    (turn,) = stack.turns()
    assert turn.messages[-1]["content"] == [text, {"type": "text", "text": UNSEEN_PICTURE}]


async def test_a_picture_in_the_output_of_a_call(stack: Stack, http: httpx.AsyncClient) -> None:
    stack.say("I cannot see it.")
    items: list[Any] = [
        {"role": "user", "content": "look"},
        {"type": "function_call", "call_id": "c", "name": "view_image", "arguments": "{}"},
        {
            "type": "function_call_output",
            "call_id": "c",
            "output": [{"type": "input_image", "image_url": url} for url in (URL, "https://x/y.png")],
        },
    ]
    answer = await http.post("/v1/responses", json={"model": "m", "input": items})
    assert answer.status_code == 200, answer.text
    (turn,) = stack.turns()
    assert turn.messages[-1]["content"] == [{"type": "text", "text": UNSEEN_PICTURE}] * 2


async def test_a_picture_of_a_user_is_refused_at_its_own_place(stack: Stack, http: httpx.AsyncClient) -> None:
    refused = await say(http, [{"role": "user", "content": [base64_picture()]}])
    assert refused.status_code == 400
    assert "sees no pictures" in refused.json()["error"]["message"]
    elsewhere = {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}
    refused = await say(http, [{"role": "user", "content": [elsewhere]}], system="be kind")
    assert "messages.0.content.0" in refused.json()["error"]["message"]


@pytest.mark.parametrize("sentence", [CUT, LIMIT])
async def test_a_request_to_resume_is_nobodys_reaction(stack: Stack, http: httpx.AsyncClient, sentence: str) -> None:
    stack.say("All done:", "final answer.", "Sorry.")
    messages: list[Any] = [{"role": "user", "content": "Do it."}]
    for words in ([{"type": "text", "text": sentence}], "That is wrong."):
        answer = (await say(http, messages)).json()
        messages += [{"role": "assistant", "content": answer["content"]}, {"role": "user", "content": words}]
    messages[2] = {"role": "user", "content": sentence}  # as the client writes an older message
    assert (await say(http, messages)).status_code == 200
    first, second, third = stack.turns()
    assert {turn.kind for turn in (first, second, third)} == {"main"}
    assert first.next_state is None
    assert second.next_state == [{"role": "user", "content": "That is wrong."}]
    assert stack.metric(EVENTS, event="next_state") == 1


@pytest.mark.parametrize("after_a_tool", [True, False])
async def test_an_empty_reply_is_asked_for_again(stack: Stack, http: httpx.AsyncClient, after_a_tool: bool) -> None:
    call = '<tool_call>\n{"name": "Bash", "arguments": {"command": "ls"}}\n</tool_call>'
    stack.say(call if after_a_tool else "Hi.", "", "Here.", "Sorry.")
    tools = [{"name": "Bash", "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}}}]
    messages: list[Any] = [{"role": "user", "content": "Do it."}]
    blocks = (await say(http, messages, tools=tools)).json()["content"]
    asked: list[Any] = [{"type": "text", "text": "And now?"}]
    if after_a_tool:
        asked = [{"type": "tool_result", "tool_use_id": blocks[0]["id"], "content": "a.py"}]
    messages += [{"role": "assistant", "content": blocks}, {"role": "user", "content": asked}]
    assert (await say(http, messages, tools=tools)).json()["content"] == []
    messages[-1] = {"role": "user", "content": [*asked, {"type": "text", "text": EMPTY}]}
    last = (await say(http, messages, tools=tools)).json()["content"]
    messages += [{"role": "assistant", "content": last}, {"role": "user", "content": "Wrong."}]
    await say(http, messages, tools=tools)
    first, empty, again, _ = stack.turns()
    assert EMPTY not in str(first.next_state)
    assert empty.next_state is None
    assert empty.reason == "regenerated"
    assert again.next_state == [{"role": "user", "content": "Wrong."}]


def test_words_beside_the_clients_are_the_users() -> None:
    reminder = {"type": "text", "text": "<system-reminder>\nBe kind.\n</system-reminder>"}
    own = {"type": "text", "text": LIMIT}
    assert is_internal({"role": "user", "content": [reminder, own]})
    assert not is_internal({"role": "user", "content": [own, {"type": "text", "text": "Stop."}]})
    assert not is_internal({"role": "user", "content": f"{LIMIT}\n\nWhat does this mean?"})
    assert not is_internal({"role": "user", "content": [reminder]})
    assert not is_internal({"role": "assistant", "content": LIMIT})
    assert (
        user_words({"role": "user", "content": [{"type": "text", "text": "And now?"}, {"type": "text", "text": EMPTY}]})
        == "And now?"
    )
