"""HTTP rules: transport errors and 5xx are tried again, a 4xx is told at once."""

from __future__ import annotations

import contextlib
import pickle
import socket
from collections.abc import Callable

import httpx
import pytest

from groundwork import network
from groundwork.network import find_available_port, is_port_available
from slime.args import Arguments
from slime.exceptions import HttpStatusError
from slime.utils import http_utils
from slime.utils.http_utils import get, post

Answer = httpx.Response | Exception


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[httpx.Request]]:
    """Script the answers; returns the requests that came in."""
    monkeypatch.setattr(http_utils, "FIRST_DELAY_SECONDS", 0.0)

    def script(*answers: Answer) -> list[httpx.Request]:
        requests: list[httpx.Request] = []

        def handle(request: httpx.Request) -> httpx.Response:
            answer = answers[min(len(requests), len(answers) - 1)]
            requests.append(request)
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr(http_utils, "_http_client", httpx.AsyncClient(transport=httpx.MockTransport(handle)))
        return requests

    return script


async def test_transport_errors_and_5xx_are_tried_again(server: Callable[..., list[httpx.Request]]) -> None:
    requests = server(httpx.ConnectError("refused"), httpx.Response(503), httpx.Response(200, json={"ok": 1}))
    assert await post("http://engine/generate", {"x": 1}, headers={"X-Key": "v"}) == {"ok": 1}
    assert len(requests) == 3
    assert requests[-1].headers["X-Key"] == "v"


@pytest.mark.parametrize("status", [400, 404, 413, 422])
async def test_a_4xx_is_raised_at_once(server: Callable[..., list[httpx.Request]], status: int) -> None:
    requests = server(httpx.Response(status, text="input is too long"))
    with pytest.raises(HttpStatusError, match=f"answered {status}: input is too long") as error:
        await post("http://engine/generate", {})
    assert len(requests) == 1
    again = pickle.loads(pickle.dumps(error.value))
    assert (again.status, again.body) == (status, "input is too long")


async def test_it_gives_up_after_the_last_try(server: Callable[..., list[httpx.Request]]) -> None:
    requests = server(httpx.Response(500, text="boom"))
    with pytest.raises(HttpStatusError, match="500: boom"):
        await post("http://engine/x", {}, max_retries=3)
    assert len(requests) == 3
    requests = server(httpx.ConnectError("refused"))
    with pytest.raises(httpx.ConnectError):
        await get("http://engine/x", max_retries=2)
    assert len(requests) == 2


async def test_an_answer_that_is_not_json_is_text(server: Callable[..., list[httpx.Request]]) -> None:
    server(httpx.Response(200, text="fine"))
    assert await post("http://engine/x", {}) == "fine"


def test_a_found_port_is_free() -> None:
    assert is_port_available(find_available_port())
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", find_available_port()))
        taken.listen()
        port = taken.getsockname()[1]
        assert not is_port_available(port)
        assert find_available_port(port) > port


def test_a_found_port_is_no_connections_and_nobody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    end = network._first_port_of_connections()
    assert find_available_port() in range(network.QUIET_PORT, end) or end <= network.QUIET_PORT
    monkeypatch.setattr(network, "QUIET_PORT", 20000)  # ten ports
    monkeypatch.setattr(network, "_first_port_of_connections", lambda: 20010)
    monkeypatch.setattr(network, "_claims", claims := [])
    with contextlib.ExitStack() as stack:
        # As another process has it; if one really does, that is as good.
        another = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        with contextlib.suppress(OSError):
            another.bind("\0slime-port-20005")
        found = [find_available_port() for _ in range(12)]
        for claim in claims:
            stack.enter_context(claim)
    quiet, others = found[: len(claims)], found[len(claims) :]
    assert len(set(quiet)) == len(claims) <= 9
    assert 20005 not in quiet
    assert others, "a full range leaves what the operating system picks"
    assert all(port not in range(20000, 20010) for port in others) or end <= 20010


@pytest.mark.parametrize("flag", [True, False])
def test_the_proxy_is_asked_for_other_machines_only(monkeypatch: pytest.MonkeyPatch, flag: bool) -> None:
    monkeypatch.setattr(http_utils, "_proxy", "http://proxy.example:3128" if flag else None)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name)
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://proxy.example:3128")
    client = http_utils._new_client(4)
    direct = [
        client._transport_for_url(httpx.URL(f"http://{host}:30000/x")) for host in ("127.0.0.1", "localhost", "[::1]")
    ]
    other = client._transport_for_url(httpx.URL("http://reward.example/score"))
    assert other not in direct
    assert isinstance(other, httpx.AsyncHTTPTransport)
    assert type(other._pool).__name__ == "AsyncHTTPProxy"
    assert all(type(transport._pool).__name__ == "AsyncConnectionPool" for transport in direct)


def test_the_proxy_comes_from_its_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_utils, "_proxy", None)
    monkeypatch.setattr(http_utils, "_http_client", None)
    http_utils.init_http_client(Arguments(http_proxy="http://proxy.example:3128", rollout_num_gpus=1))
    assert http_utils._proxy == "http://proxy.example:3128"
