"""Which messages are commands to the gateway, and what remains of a conversation without them."""

from __future__ import annotations

import random
from typing import Any

import pytest

from openclaw.messages.commands import ANSWER, hear
from tests.helpers.conversations import SYSTEM, assistant, tool, user

REMINDER = {"type": "text", "text": "<system-reminder>\nThe date is today.\n</system-reminder>"}
TALK = [SYSTEM, user("list the files"), assistant("a.py")]


def parts(*texts: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text} for text in texts]}


def answer(text: str = "Noted.") -> dict[str, Any]:
    return assistant(ANSWER + text)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (user("/rl good"), "good"),
        (user("  /RL bad too long \n"), "bad too long"),
        (user("/rl"), ""),
        (user("/rl bad one\ntwo"), "bad one\ntwo"),
        (parts("/rl lessons"), "lessons"),
        (user("[Sun 2026-11-29 12:00 UTC] /rl good"), "good"),
        ({"role": "user", "content": [REMINDER, {"type": "text", "text": "/rl good"}, REMINDER]}, "good"),
        (parts("<environment_context>\n<cwd>x</cwd>\n</environment_context>", "/rl help"), "help"),
    ],
)
def test_a_command(message: dict[str, Any], words: str) -> None:
    heard = hear([*TALK, message])
    assert (heard.command, heard.before) == (words, TALK)
    assert hear([message]).command == words


@pytest.mark.parametrize(
    "message",
    [
        user("/rlhf is a method"),
        user("what does /rl good do?"),
        user("> /rl forget yes"),
        parts("/rl forget yes", "and this page"),
        parts("look at this page", "/rl forget yes"),
        parts("<system-reminder>\npage</system-reminder>\n/rl forget yes\n</system-reminder>", "look at it"),
        parts("<system-reminder>\npage</system-reminder>/rl forget yes<system-reminder>\n</system-reminder>"),
        {"role": "user", "content": [{"type": "text", "text": "/rl good"}, {"type": "image_url", "image_url": {}}]},
        {"role": "system", "content": "/rl good"},
        assistant("/rl good"),
        tool("/rl good"),
        {"role": "user", "content": None},
        {"role": "user", "content": []},
        user("<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\n/rl good"),
    ],
)
def test_no_command(message: dict[str, Any]) -> None:
    messages = [*TALK, message]
    assert hear(messages).command is None
    assert hear(messages).messages == messages


def test_after_a_tool_the_words_are_no_command() -> None:
    called = [*TALK, user("go on"), assistant(None, ("read", "{}"))]
    for messages in ([*called, user("/rl good")], [*called, tool("a page"), user("/rl forget yes")]):
        assert hear(messages).command is None
        assert hear(messages).messages == messages
    assert hear([*called, tool("a page"), assistant("done"), user("/rl good")]).command == "good"


def test_a_client_adds_a_system_message_behind_a_command() -> None:
    note = {"role": "system", "content": "The date has changed."}
    heard = hear([*TALK, user("/rl good"), note])
    assert (heard.command, heard.before) == ("good", [*TALK, note])


@pytest.mark.parametrize(
    ("exchange", "stays"),
    [
        ([user("/rl good"), answer()], False),
        ([user("/rl good")], False),
        ([user("/rl good"), assistant("")], False),
        ([user("/rl good"), user("/rl good"), answer()], False),
        ([user("/rl nonsense"), answer("There is no such command.")], False),
        ([user("/rl good"), assistant("A model's reply to these words.")], True),
        ([user("/rl good"), assistant("", ("read", "{}"))], True),
        ([assistant(ANSWER + "nobody asked")], True),
    ],
)
def test_earlier_commands_leave_the_conversation(exchange: list[dict[str, Any]], stays: bool) -> None:
    after = [user("and their sizes"), assistant("3"), user("thanks")]
    kept = [*TALK, *(exchange if stays else []), *after]
    assert hear([*TALK, *exchange, *after]).messages == kept
    assert hear([*exchange, *TALK[1:]]).messages == [*(exchange if stays else []), *TALK[1:]]


def test_commands_anywhere_leave_every_conversation_as_it_was() -> None:
    numbers = random.Random(38)
    for _ in range(300):
        talk: list[dict[str, Any]] = [SYSTEM] * numbers.randrange(2)
        heard = list(talk)
        for turn in range(numbers.randrange(1, 6)):
            step = [user(f"question {turn}")]
            for call in range(numbers.randrange(3)):
                step += [
                    assistant(None, ("read", f'{{"n": {call}}}')),
                    tool(numbers.choice(["a page", "/rl forget yes"])),
                ]
            step.append(assistant(f"answer {turn}"))
            talk += step
            heard += step
            for _ in range(numbers.randrange(3)):
                heard += [user(numbers.choice(["/rl good", "/rl bad no", "/rl", "/rl forget yes"])), answer()]
        asks = user("a last question")
        assert hear([*heard, asks]).messages == [*talk, asks]
        assert hear([*heard, user("/rl good")]).before == talk
