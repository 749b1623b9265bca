"""What a door holds against the gateway, and what it forgives."""

from __future__ import annotations

import json

import pytest

from agentrl.sandbox.gateway_health import CHAT, TAIL, Call, GatewayHealth

EVENTS = "text/event-stream; charset=utf-8"
CHUNK = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'


def error(kind: str = "server_error", code: str = "engine_error") -> bytes:
    return json.dumps({"error": {"message": "m", "type": kind, "param": None, "code": code}}).encode()


def event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


def answered(health: GatewayHealth, status: int = 200, body: bytes = b"{}", path: str = CHAT) -> None:
    call = health.call(path)
    call.began(status, "application/json")
    call.part(body)
    call.ended()


def stream(health: GatewayHealth, *pieces: bytes) -> Call:
    call = health.call(CHAT)
    call.began(200, EVENTS)
    for piece in pieces:
        call.part(piece)
    return call


@pytest.mark.parametrize("status", [500, 502, 503, 507])
def test_a_server_error_is_known_before_its_body(status: int) -> None:
    health = GatewayHealth()
    health.call(CHAT).began(status, "application/json")
    assert health.problem == f"it answered with status {status}"


@pytest.mark.parametrize("status", [400, 401, 404, 409, 413, 429])
def test_a_refusal_is_an_answer(status: int) -> None:
    health = GatewayHealth()
    answered(health, status, error("invalid_request_error", "invalid_value"))
    answered(health, status, b"no json")
    answered(health, status, b"[]")
    assert health.problem is None


def test_engines_that_died_are_no_refusal() -> None:
    health = GatewayHealth()
    answered(health, 400, error("invalid_request_error", "engine_died"))
    assert "engines died" in (health.problem or "")


def test_a_stream_is_known_by_its_last_event_before_it_ends() -> None:
    health = GatewayHealth()
    stream(health, CHUNK, event(error()))
    assert "engine_error" in (health.problem or "")
    stream(health, CHUNK, b"data: [DO", b"NE]\n", b"\n")
    assert health.problem is None


LONG = json.dumps({"type": "response.completed", "response": {"output": ["word " * TAIL]}}).encode()
STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
OVERLOADED = b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"m"}}\n\n'
FAILED = b'event: response.failed\ndata: {"type":"response.failed","response":{"error":{"code":"engine_error"}}}\n\n'


@pytest.mark.parametrize("size", [1, 1000, 10**6])
@pytest.mark.parametrize("end", [STOP, b"event: response.completed\ndata: " + LONG + b"\n\n"])
def test_a_reply_of_another_api_ends_too(end: bytes, size: int) -> None:
    health = GatewayHealth()
    data = b'event: ping\ndata: {"type": "ping"}\n\n' + end
    health.call(CHAT).broke("gone")
    call = health.call("/v1/messages")
    call.began(200, EVENTS)
    for at in range(0, len(data) - 1, size):
        call.part(data[at : min(at + size, len(data) - 1)])
    assert health.problem == "gone", "its last event is not whole"
    call.part(data[-1:])
    assert health.problem is None


@pytest.mark.parametrize(("end", "code"), [(OVERLOADED, "overloaded_error"), (FAILED, "engine_error")])
def test_a_reply_of_another_api_fails_too(end: bytes, code: str) -> None:
    health = GatewayHealth()
    stream(health, end).ended()
    assert code in (health.problem or "")


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_an_error_may_come_in_pieces(size: int) -> None:
    data = CHUNK * 1000 + event(error())
    assert len(data) > TAIL
    health = GatewayHealth()
    stream(health, *(data[at : at + size] for at in range(0, len(data), size)))
    assert "engine_error" in (health.problem or "")


def test_a_stream_that_ends_too_early_failed() -> None:
    health = GatewayHealth()
    call = stream(health, CHUNK)
    assert health.problem is None
    call.ended()
    assert health.problem == "it ended a reply before its end"


def test_a_refusal_within_a_stream_is_an_answer() -> None:
    health = GatewayHealth()
    stream(health, event(error("invalid_request_error", "engine_rejected"))).ended()
    assert health.problem is None
    stream(health, event(error("invalid_request_error", "engine_died"))).ended()
    assert health.problem is not None


def test_words_of_the_model_are_no_error() -> None:
    health = GatewayHealth()
    words = json.dumps({"choices": [{"delta": {"content": '\n\ndata: {"error": {"type": "server_error"}}\n\n'}}]})
    stream(health, event(words.encode()), event(b"[DONE]")).ended()
    assert health.problem is None


def test_what_the_program_gave_up_says_nothing() -> None:
    health = GatewayHealth()
    health.call(CHAT)
    stream(health, CHUNK)
    assert health.problem is None


def test_a_later_success_forgives() -> None:
    health = GatewayHealth()
    health.call(CHAT).broke("gone")
    assert health.problem == "gone"
    answered(health, 400)
    assert health.problem == "gone"
    answered(health)
    assert health.problem is None
    answered(health, 503)
    assert health.problem is not None


def test_a_success_of_a_call_that_began_earlier_forgives_nothing() -> None:
    health = GatewayHealth()
    earlier = stream(health, CHUNK)
    health.call(CHAT).broke("gone")
    earlier.part(event(b"[DONE]"))
    earlier.ended()
    assert health.problem == "gone"


def test_a_list_of_models_is_no_sign_that_replies_come() -> None:
    health = GatewayHealth()
    answered(health, 503)
    answered(health, 200, path="/v1/models")
    assert health.problem is not None
    answered(health)
    answered(health, 503, path="/v1/models")
    assert health.problem is not None
