"""Attacks below the request: headers, stalled and half-open connections, smuggling, keys, disconnects."""

from __future__ import annotations

import json
import time
from contextlib import suppress

from lab.testkit.waiting import wait_until
from tests.security.attack import attack, happened
from tests.security.hostile_requests import never_silent
from tests.security.raw_http import connected, exchange, head, is_closed, many_connected, read_answer, request
from tests.security.server import CHAT, MAX_REQUESTS, Server

QUESTION = json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode()
MAX_HEADER_BYTES = 8_000_000
TIMED_OUT_SECONDS = 150.0
"""Longer than any time-out of the server."""
HALF_OPEN = 300
DISCONNECTS = 150
ROUTES = (
    ("POST", CHAT),
    ("POST", "/v1/feedback"),
    ("POST", "/v1/sessions/s/done"),
    ("DELETE", "/v1/sessions/s"),
    ("GET", "/v1/turns/chatcmpl-1"),
    ("GET", "/v1/rollouts"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/tiny-policy"),
    ("GET", "/metrics"),
    ("GET", "/openapi.json"),
    ("GET", "/nothing"),
)
WRONG_KEYS = (
    {},
    {"Authorization": "Bearer "},
    {"Authorization": "Bearer wrong"},
    {"Authorization": "bearer \x00"},
    {"Authorization": "Basic YWxpY2U6"},
    {"X-Api-Key": ""},
    {"X-Api-Key": "alice"},
    {"Cookie": "key=alice"},
)


@attack("H3", "8 MB of headers that never end; 20,000 header lines; one header of 1 MB")
def huge_headers(server: Server) -> str:
    """Headers are capped, and the server says so before it keeps them."""
    sent = 0
    with connected(server) as connection, never_silent(server, "the headers"):
        connection.settimeout(30)
        try:
            connection.sendall(f"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n".encode())
            line = b"X-Filler: " + b"f" * 1000 + b"\r\n"
            while sent < MAX_HEADER_BYTES:
                connection.sendall(line * 64)
                sent += 64 * len(line)
            ended = is_closed(connection, 3)
        except OSError:
            ended = True
    assert ended, f"the server took {sent} bytes of headers without a word"
    host = ("Host", f"127.0.0.1:{server.port}")
    key = next(iter(server.headers("alice").items()))
    lines = exchange(server, head("GET", "/v1/models", [host, key, *((f"X-{n}", "1") for n in range(20_000))]))
    big = exchange(server, head("GET", "/v1/models", [host, key, ("X-Big", "b" * 1_000_000)]))
    assert lines.status != 200, "20,000 header lines were accepted"
    assert big.status != 200, "a header of 1 MB was accepted"
    return f"ended after {sent / 1e6:.1f} MB; {lines.status}, {big.status}"


@attack("H3", f"{HALF_OPEN} half-open requests")
def half_open(server: Server) -> str:
    """Others are served meanwhile."""
    with many_connected(server, HALF_OPEN, b"POST /v1/chat/comp") as connections, never_silent(server, "them"):
        assert server.chat("bob").status_code == 200
        return f"{len(connections)} connections, bob was served"


@attack("H3", f"{HALF_OPEN} half-open requests, until they time out", long=True)
def half_open_ends(server: Server) -> str:
    """A head that does not end times out."""
    with many_connected(server, HALF_OPEN, b"POST /v1/chat/comp") as connections:
        return _all_end(connections)


@attack("M4", f"{MAX_REQUESTS + 36} POSTs whose bodies stall")
def stalled_bodies(server: Server) -> str:
    """A request counts once its body is there, so the others' places stay free."""
    with many_connected(server, MAX_REQUESTS + 36, _stalled(server)):
        statuses = [server.chat("bob").status_code for _ in range(3)]
    assert set(statuses) == {200}, f"bob got {happened(statuses)}"
    return "bob was served"


@attack("M4", "100 POSTs whose bodies stall, until they time out", long=True)
def stalled_bodies_end(server: Server) -> str:
    """A body that does not arrive times out."""
    with many_connected(server, 100, _stalled(server)) as connections:
        return _all_end(connections)


@attack("M4", f"{MAX_REQUESTS + 16} endless replies for one key", real=False)
def all_places(server: Server) -> str:
    """One key never holds all places."""
    body = json.dumps(
        {"messages": [{"role": "user", "content": "x"}], "stream": True, "ignore_eos": True, "max_tokens": 100_000}
    ).encode()
    data = head("POST", CHAT, _headers(server, len(body))) + body
    with many_connected(server, MAX_REQUESTS + 16, data):
        statuses = [server.chat("bob").status_code for _ in range(3)]
    assert set(statuses) == {200}, f"bob got {happened(statuses)}"
    return "bob was served"


@attack("held", "11 routes with 8 kinds of wrong keys")
def wrong_keys(server: Server) -> str:
    """Nothing is answered without a key."""
    host = {"Host": f"127.0.0.1:{server.port}", "Content-Type": "application/json"}
    statuses = [
        request(server, method, path, {**host, **_from(n), **key}, QUESTION if method == "POST" else b"").status
        for n, (method, path) in enumerate(ROUTES)
        for key in WRONG_KEYS
    ]
    assert set(statuses) <= {400, 401}, happened(statuses)
    return happened(statuses)


def _from(number: int) -> dict[str, str]:
    """Return the header by which a proxy says who sends a request."""
    return {"X-Forwarded-For": f"203.0.113.{number}"}


@attack("window", "300 guessed keys from one address, then a right one")
def guessed_keys(server: Server) -> str:
    """Who guesses has to wait, with the right key too, and nobody else."""
    host = {"Host": f"127.0.0.1:{server.port}"}
    address = _from(200)
    keys = [{"X-Api-Key": f"guess-{n}"} for n in range(300)]
    statuses = [request(server, "GET", "/v1/models", {**host, **address, **key}, b"").status for key in keys]
    assert statuses == [401] * 20 + [429] * 280, happened(statuses)
    right = request(server, "GET", "/v1/models", {**host, **address, **server.headers("bob")}, b"").status
    assert right == 429, "a right guess passes the limit"
    assert server.chat("bob").status_code == 200
    return f"{happened(statuses)}; bob was served"


@attack("held", "two lengths, a chunked body with a length, line breaks in headers, odd paths")
def smuggling(server: Server) -> str:
    """The server and a proxy before it always agree where a request ends, and no path leads around a check."""
    host = f"Host: 127.0.0.1:{server.port}\r\n"
    key = "".join(f"{name}: {value}\r\n" for name, value in server.headers("alice").items())
    smuggled = b"DELETE /v1/sessions/victim HTTP/1.1\r\n" + host.encode() + key.encode() + b"\r\n"
    heads = (
        f"Content-Length: 4\r\nContent-Length: {len(smuggled)}\r\n",
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Content-Length: -1\r\n",
        "Content-Length: 4 \r\n x: y\r\n",
        "X-Session-Id: a\rb\r\n",
    )
    statuses: list[int] = []
    kept = server.chat("alice", "keep me", session="victim").json()["id"]
    for lines in heads:
        data = f"POST {CHAT} HTTP/1.1\r\n{host}{key}{lines}Content-Type: application/json\r\n\r\n".encode()
        statuses.append(exchange(server, data + b"0\r\n\r\n" + smuggled, seconds=2).status)
    paths = ("/v1/../healthz", "//v1/models", "/v1/models/..%2f..%2fetc%2fpasswd", "/v1/sessions/%00", "/v1/turns/'--")
    statuses += [
        exchange(server, head("GET", path, [("Host", f"127.0.0.1:{server.port}"), ("Connection", "close")])).status
        for path in paths
    ]
    assert 200 not in statuses, happened(statuses)
    assert not [status for status in statuses if status >= 500], happened(statuses)
    assert kept in {record.turn.id for record in server.records()}, "a smuggled request was carried out"
    return happened(statuses)


@attack("held", f"{DISCONNECTS} clients that leave at different moments")
def disconnects(server: Server) -> str:
    """Nothing of them stays."""
    body = json.dumps({"messages": [{"role": "user", "content": "bye"}], "stream": True}).encode()
    data = head("POST", CHAT, _headers(server, len(body))) + body
    for number in range(DISCONNECTS):
        with connected(server) as connection, suppress(OSError):
            connection.sendall(data[: len(data) * (number % 5 + 1) // 5])
            if number % 5 == 4:  # the whole request is sent
                connection.recv(64)
    wait_until(lambda: server.in_flight() == 0, lambda: f"{server.in_flight():g} requests are still under way", 60)
    return "none under way afterwards"


@attack("held", "200 streams at once", long=True)
def many_streams(server: Server) -> str:
    """Those beyond the places get 503 with Retry-After; the others end."""
    body = json.dumps({"messages": [{"role": "user", "content": "x"}], "stream": True}).encode()
    data = head("POST", CHAT, [*_headers(server, len(body)), ("Connection", "close")]) + body
    with many_connected(server, 200, data) as connections:
        statuses = [read_answer(connection).status for connection in connections]
    assert set(statuses) <= {200, 429, 503}, happened(statuses)
    return happened(statuses)


def _headers(server: Server, length: int) -> list[tuple[str, str]]:
    host = ("Host", f"127.0.0.1:{server.port}")
    return [
        host,
        *server.headers("alice").items(),
        ("Content-Type", "application/json"),
        ("Content-Length", str(length)),
    ]


def _stalled(server: Server) -> bytes:
    return head("POST", CHAT, _headers(server, 1000)) + b'{"messages'


def _all_end(connections: list) -> str:
    began = time.monotonic()
    for connection in connections:
        left = max(0.1, TIMED_OUT_SECONDS - (time.monotonic() - began))
        assert is_closed(connection, left), f"still open after {TIMED_OUT_SECONDS:g} s"
    return f"all ended after {time.monotonic() - began:.0f} s"
