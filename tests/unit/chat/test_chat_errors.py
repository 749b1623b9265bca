"""Servers that are away, refuse, break off or are none: one line each, and the conversation goes on."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

from openclaw.chat import server as chat_server
from openclaw.chat.server import events
from tests.unit.chat.conftest import Scripted

Talk = Callable[..., tuple[int, str]]


def chunk(text: str | None = None, **fields: Any) -> dict[str, Any]:
    """Return one event of a reply."""
    delta = {} if text is None else {"content": text}
    return {"id": "r", "choices": [{"index": 0, "delta": {**delta, **fields.pop("delta", {})}, **fields}]}


def test_nothing_answers(talk: Talk, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    assert talk(url, [])[0] == 2
    assert capsys.readouterr().err == (
        f"openclaw-rl chat: nothing answers on {url}/v1; start a server: bash openclaw-combine/run_tiny_cpu.sh --live "
        f"--port {url.rpartition(':')[2]}\n"
    )


@pytest.mark.parametrize("url", ["127.0.0.1:30000", "ftp://host/v1", "http://", "http://[::1", "http://host:port"])
def test_a_url_that_is_none(url: str, talk: Talk, capsys: pytest.CaptureFixture[str]) -> None:
    assert talk(url, [])[0] == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith(f"openclaw-rl chat: --base-url {url!r}")


@pytest.mark.parametrize("models", [(200, b"<html>"), (200, b"[]"), (200, b'{"data": []}'), (200, b'{"data": 3}')])
def test_a_server_of_another_kind(
    models: tuple[int, bytes], scripted: Scripted, talk: Talk, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted.models = models
    assert talk(scripted.url, [])[0] == 2
    assert "is not an OpenAI-compatible server; check --base-url" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (
            (503, b'{"error": {"message": "the engine is\\nunavailable", "code": null}}'),
            "503: the engine is unavailable",
        ),
        ((500, b"<html>"), "answered 500"),
        (
            (200, b'data: {"error": {"message": "no engine"}}\n\n'),
            "the reply broke off: no engine; send the message again",
        ),
        ((200, b"data: {\n\n"), "is not an OpenAI-compatible server"),
        ((200, b"data: 3\n\n"), "is not an OpenAI-compatible server"),
        ((200, b""), "the reply broke off; send the message again"),
    ],
)
def test_a_message_without_a_reply_can_be_sent_again(
    answer: tuple[int, bytes], line: str, scripted: Scripted, talk: Talk
) -> None:
    scripted.answers.append(answer)
    scripted.say(chunk("Hi."))
    status, text = talk(scripted.url, ["Hello?", "Hello?"])
    assert status == 1
    [error] = [each for each in text.splitlines() if each.startswith("error: ")]
    assert line in error
    assert text.endswith("Hi.\n")
    assert [each["messages"] for each in scripted.asked] == [[{"role": "user", "content": "Hello?"}]] * 2


def test_a_reply_that_breaks_off_is_shown_and_forgotten(scripted: Scripted, talk: Talk) -> None:
    scripted.say(chunk("One."))
    scripted.say(chunk("Half"), cut=True)
    scripted.say(chunk("Two."))
    text = talk(scripted.url, ["a", "b", "c"])[1]
    assert "Half\nerror: the reply broke off; send the message again\nTwo.\n" in text
    assert [each["content"] for each in scripted.asked[-1]["messages"]] == ["a", "One.", "c"]


def test_a_server_that_keeps_silent(scripted: Scripted, talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_server, "ANSWER_SECONDS", 0.1)
    scripted.silence = threading.Event()
    scripted.say(chunk("late"))
    try:
        text = talk(scripted.url, ["Hello?"])[1]
    finally:
        scripted.silence.set()
    assert f"error: {scripted.url} took too long to answer; send the message again\n" in text


def test_a_server_without_verdicts_and_sessions(scripted: Scripted, talk: Talk) -> None:
    scripted.say(chunk("One."))
    scripted.say(chunk("Two."))
    status, text = talk(scripted.url, ["a", "+", "b", "/new"])
    assert status == 0
    assert text.count("error: ") == 1
    assert "404" in text
    assert "weights" not in text


def test_thoughts_limits_and_nothing_at_all(scripted: Scripted, talk: Talk) -> None:
    scripted.say(chunk(delta={"reasoning_content": "hm"}), chunk("Yes."), chunk(finish_reason="length"))
    scripted.say(chunk(finish_reason="stop"))
    text = talk(scripted.url, ["a", "b"])[1]
    assert "hm\nYes.\nthe reply reached the limit of its length\n(an empty reply)\n" in text
    assert scripted.asked[-1]["messages"][1] == {"role": "assistant", "content": "Yes."}


def test_a_reply_cannot_control_the_terminal(scripted: Scripted, talk: Talk) -> None:
    scripted.say(chunk("a\x1b[2Jb\u0085\u2028c\td"))
    assert talk(scripted.url, ["a"])[1].endswith("a[2Jb\u2028c\td\n")


def test_events_in_any_pieces() -> None:
    stream = ": keep-alive\n\ndata: é\u2028\u0085\r\n\nevent: x\ndata:[DONE]\n\n".encode()
    for size in (1, 2, 5, 100):
        pieces = (stream[start : start + size] for start in range(0, len(stream), size))
        assert list(events(pieces)) == ["é\u2028\u0085", "[DONE]"]
