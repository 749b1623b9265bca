"""A reply that comes back in another dress is known again, and is never taken for another reply."""

from __future__ import annotations

import unicodedata
from typing import Any

import httpx
import pytest

from openclaw.messages.fingerprint import message_digest
from tests.helpers.conversations import World, assistant, user
from tests.unit.gateway.conftest import Stack

SESSIONS = pytest.mark.parametrize("session", ["s", None], ids=["stated", "plain"])
THOUGHT = "3 + 4 = 7.\n\nSo <b>7</b>."
TEXT = "Voilà, 7 pommes:\n\n1. One\n2. Two\n\n```python\nif x:\n    y = 1\n```\n"
REPLY = {**assistant(TEXT), "reasoning_content": THOUGHT}
DRESSES: dict[str, Any] = {
    "as it was": TEXT,
    "stripped": TEXT.strip(),
    "more line ends": f"\n{TEXT}\n\n",
    "CRLF": TEXT.replace("\n", "\r\n"),
    "CR": TEXT.replace("\n", "\r"),
    "line separators": TEXT.replace("\n", "\u2028"),
    "no empty lines": TEXT.replace("\n\n", "\n"),
    "one line": TEXT.replace("\n", " "),
    "spaces at line ends": TEXT.replace("\n", "  \n"),
    "tabs": TEXT.replace("    ", "\t"),
    "no-break spaces": TEXT.replace(" ", "\xa0"),
    "byte order mark": f"\ufeff{TEXT}",
    "NFC": unicodedata.normalize("NFC", TEXT),
    "NFD": unicodedata.normalize("NFD", TEXT),
    "a part": [{"type": "text", "text": TEXT}],
    "parts": [{"type": "text", "text": TEXT[:9]}, {"type": "text", "text": TEXT[9:]}],
    "thought before": f"<think>{THOUGHT}</think>{TEXT}",
    "thought on lines": f"<think>\n{THOUGHT}\n</think>\n\n{TEXT}",
    "empty thought": f"<think>\n\n</think>\n\n{TEXT}",
    "two thoughts": f"<think>a</think>\n<think>b</think>{TEXT}",
    "thinking": f"<thinking>{THOUGHT}</thinking>\n{TEXT}",
    "reasoning": f"<reasoning>{THOUGHT}</reasoning>\n{TEXT}",
    "folded thought": f'<details type="reasoning" done="true">\n<summary>Thought</summary>\n> 7\n</details>\n{TEXT}',
    "fenced thought": f":::thinking\n{THOUGHT}\n:::\n\n{TEXT}",
    "all at once": [{"type": "text", "text": f"<think>\r\n{THOUGHT}</think>\r\n{unicodedata.normalize('NFD', TEXT)}"}],
}
OTHERS = {
    "another word": TEXT.replace("One", "Won"),
    "another case": TEXT.replace("One", "one"),
    "another accent": TEXT.replace("à", "a"),
    "less": TEXT.replace("2. Two\n", ""),
    "bold": TEXT.replace("One", "**One**"),
    "a thought in the middle": TEXT.replace("\n\n1.", "\n\n<think>x</think>1."),
    "only the thought": f"<think>{TEXT}</think>",
}
DRESSED = pytest.mark.parametrize("content", DRESSES.values(), ids=DRESSES.keys())


@DRESSED
def test_the_comparison_ignores_the_dress(content: Any) -> None:
    assert message_digest({"role": "assistant", "content": content}) == message_digest(REPLY)


@pytest.mark.parametrize("content", OTHERS.values(), ids=OTHERS.keys())
def test_the_comparison_sees_everything_else(content: str) -> None:
    assert message_digest({"role": "assistant", "content": content}) != message_digest(REPLY)
    assert message_digest({"role": "user", "content": TEXT}) != message_digest(REPLY)
    assert message_digest(user(f"<think>x</think>{TEXT}")) != message_digest(user(TEXT)), "a user's words all count"


def test_every_white_space_is_ignored_and_nothing_else() -> None:
    joined = message_digest(assistant("ab"))
    for code in [*range(0x3100), 0xFEFF, 0xFF0C, 0xFF1A]:
        same = message_digest(assistant(f"a{chr(code)}b")) == joined
        assert same == (chr(code).isspace() or code in (0x200B, 0xFEFF)), hex(code)


@pytest.mark.parametrize("arguments", ["", " ", "{}", "{ }"])
def test_calls_without_arguments_are_equal(arguments: str) -> None:
    assert message_digest(assistant("", ("f", arguments))) == message_digest(assistant(None, ("f", "{}")))


def test_a_thought_that_never_ends_costs_no_time() -> None:
    for text in ("<think>" * 40_000, "<think>a</think>" * 20_000, ":::thinking\n" * 20_000, "<details " * 40_000):
        assert message_digest(assistant(text))


@SESSIONS
@DRESSED
async def test_the_reaction_reaches_the_reply(world: World, session: str | None, content: Any) -> None:
    asked = user("Combien?")
    first, turn = await world.turn([asked], REPLY, session=session)
    await world.turn([asked], assistant("Something else."), session=session)
    carried = {"role": "assistant", "content": content}
    context, second = await world.turn([asked, carried, user("please no lists")], assistant("7."), session=session)
    assert (context.session_id, context.next_state_of) == (first.session_id, turn.id)
    third, _ = await world.turn(
        [asked, carried, user("please no lists"), assistant("7."), user("thanks")], assistant("ok"), session=session
    )
    assert third.next_state_of == second.id
    assert world.count("rewritten") == 0


@SESSIONS
async def test_after_a_restart(world: World, session: str | None) -> None:
    _, turn = await world.turn([user("q")], REPLY, session=session)
    await world.restart()
    context, _ = await world.turn([user("q"), assistant(DRESSES["CRLF"]), user("no")], assistant("7."), session=session)
    assert context.next_state_of == turn.id


@SESSIONS
@pytest.mark.parametrize("chosen", [0, 1])
async def test_replies_that_differ_in_white_space_only_are_told_apart(
    world: World, session: str | None, chosen: int
) -> None:
    start = [user("Hello."), assistant("Hi."), user("Indent it.")]
    await world.turn(start[:1], start[1], session=session)
    texts = ["if x:\n  y = 1\n  z = 2", "if x:\n  y = 1\nz = 2"]
    turns = [(await world.turn(start, assistant(text), session=session))[1] for text in texts]
    context, _ = await world.turn([*start, assistant(texts[chosen]), user("good")], assistant("ok"), session=session)
    assert context.next_state_of == turns[chosen].id
    assert world.next_state(turns[1 - chosen]) is None


async def test_of_two_plain_conversations_the_one_with_the_very_reply_is_meant(world: World) -> None:
    texts = ["a b", "a  b", "a\nb"]
    turns = [(await world.turn([user("q")], assistant(text)))[1] for text in texts]
    for number in (2, 0, 1):
        context, _ = await world.turn([user("q"), assistant(texts[number]), user("x")], assistant("y"))
        assert context.next_state_of == turns[number].id


async def test_another_owners_reply_in_another_dress_is_nobodys(world: World) -> None:
    _, turn = await world.turn([user("q")], REPLY, owner="alice")
    carried = {"role": "assistant", "content": DRESSES["CRLF"]}
    context, _ = await world.turn([user("q"), carried, user("no")], assistant("7."), owner="bob")
    assert (context.relation, world.next_state(turn)) == ("new", None)
    context, _ = await world.turn([user("q"), carried, user("no")], assistant("7."), owner="alice")
    assert context.next_state_of == turn.id


@pytest.mark.parametrize("said", ["THE REPLY", "It is eight."])
async def test_other_words_in_the_place_of_a_reply_are_told_to_the_client(
    stack: Stack, http: httpx.AsyncClient, said: str
) -> None:
    stack.say("It is 7.", "ok", "ok", "ok")
    asked, headers = user("How many?"), {"X-Session-Id": "me"}

    async def ask(messages: list[dict[str, Any]], **options: Any) -> httpx.Response:
        body = {"model": "tiny", "messages": messages, **options}
        return await http.post("/v1/chat/completions", json=body, headers=headers)

    assert "warning" not in (await ask([asked])).json()
    answer = await ask([asked, assistant(said), user("please no lists")])
    assert answer.json()["warning"] == answer.headers["x-warning"]
    assert "send the reply as it came" in answer.json()["warning"]
    assert (await ask([asked, assistant(said), user("no")], stream=True)).headers["x-warning"]
    assert stack.metric("openclaw_session_events_total", event="unlike") == 2
    assert stack.turns()[0].state == "waiting"
    answer = await ask([asked, assistant(" It is 7.\r\n"), user("please no lists")])
    assert "x-warning" not in answer.headers
    assert stack.turns()[0].next_state == [user("please no lists")]
