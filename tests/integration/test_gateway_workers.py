"""Two workers behind one port: one ledger, one session of a conversation, one quota of a key, and no turn lost or doubled.

The gateway is the real command before a stand-in engine, both processes of their own. A test chooses the worker by connecting
until that one has the connection.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.gateway import Server, build_workload, start_engine, start_gateway
from lab.testkit.tiny_random import build_tokenizer
from lab.testkit.waiting import wait_until
from openclaw.ledger.records import Turn
from openclaw.ledger.store import Ledger

CHAT = "/v1/chat/completions"
SECONDS = 120.0
REQUESTS_A_MINUTE = 24
PEOPLE = ("ann", "ben", "cas", "dot", "eve", "fay", "gus", "hal")
ADMIN = "sk-admin-0123456789"


@dataclass
class Answer:
    """What a request got."""

    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Connection:
    """One connection, with the key of one person."""

    def __init__(self, port: int, key: str) -> None:
        self.http = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
        self.key = key

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        sent = {"Authorization": f"Bearer {self.key}", **headers}
        if body is not None:
            sent["Content-Type"] = "application/json"
        self.http.request(method, path, None if body is None else json.dumps(body), sent)
        answer = self.http.getresponse()
        return Answer(answer.status, answer.read(), {name.lower(): value for name, value in answer.getheaders()})

    def chat(self, *texts: str, **more: Any) -> Answer:
        """Ask for a reply to a conversation, the user's words first."""
        roles = ("user", "assistant")
        messages = [{"role": roles[number % 2], "content": text} for number, text in enumerate(texts)]
        return self.ask("POST", CHAT, {"model": "policy", "messages": messages, **more})


class Gateway:
    """The leading process, its two workers, and its ledger."""

    def __init__(self, server: Server, ledger: Path) -> None:
        self.server = server
        self.path = ledger
        self.ledger = Ledger(ledger)

    @property
    def workers(self) -> list[psutil.Process]:
        """The workers that serve, by number."""
        found = {}
        for process in psutil.Process(self.server.child.pid).children(recursive=True):
            line = process.cmdline()
            if "openclaw.runtime.worker" in line:
                found[line[line.index("openclaw.runtime.worker") + 1]] = process
        return [found[number] for number in sorted(found)]

    def at(self, number: int, name: str) -> Connection:
        """Return a connection that a certain worker has."""
        worker = self.workers[number]
        for _ in range(64):
            connection = Connection(self.server.port, key_of(name))
            connection.ask("GET", "/healthz")
            ours = connection.http.sock.getsockname()[1]
            if any(each.raddr and each.raddr.port == ours for each in worker.net_connections("tcp")):
                return connection
            connection.http.close()
        raise AssertionError(f"no connection reached worker {number}")

    def both(self, name: str) -> list[Connection]:
        """Return a connection to each worker."""
        return [self.at(number, name) for number in (0, 1)]

    def turns(self, name: str) -> list[Turn]:
        """Return the recorded turns of a person, oldest first."""
        turns = [record.turn for record in self.ledger.views.turn_records()]
        return [turn for turn in turns if turn.session_id.startswith(f"@{name}:")]


def key_of(name: str) -> str:
    return ADMIN if name == "root" else f"sk-{name}-0123456789"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("workers")
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(folder / "tokenizer")
    keys = folder / "keys"
    keys.write_text("".join(f"{name}:{key_of(name)}\n" for name in PEOPLE) + f"root (admin):{ADMIN}\n")
    keys.chmod(0o600)
    engine = start_engine(build_workload(tokenizer, 12), 10.0, folder)
    try:
        server = start_gateway(
            engine,
            folder / "tokenizer",
            folder,
            GATEWAY_WORKERS="2",
            OPENCLAW_API_KEYS_FILE=str(keys),
            OPENCLAW_RATE_LIMIT_REQUESTS=str(REQUESTS_A_MINUTE),
            OPENCLAW_COMMANDS="1",
        )
        try:
            yield Gateway(server, folder / f"ledger-{server.port}.sqlite")
        finally:
            server.stop()
    finally:
        engine.stop()


def test_a_conversation_over_both_workers_is_one_session_of_exact_tokens(gateway: Gateway) -> None:
    one, other = gateway.both("ann")
    first = one.chat("hello").json
    words = first["choices"][0]["message"]["content"]
    second = other.chat("hello", words, "go on").json
    third = one.chat("hello", words, "go on", second["choices"][0]["message"]["content"], "thanks").json
    turns = gateway.turns("ann")
    assert [turn.id for turn in turns] == [first["id"], second["id"], third["id"]]
    assert len({turn.session_id for turn in turns}) == 1
    assert [turn.index for turn in turns] == [0, 1, 2]
    assert [turn.next_state and turn.next_state[0]["content"] for turn in turns] == ["go on", "thanks", None]
    assert len({tuple(turn.response_ids) for turn in turns}) == 1, "the engine has one reply"
    assert all(len(turn.response_logprobs) == len(turn.response_ids) for turn in turns)


def test_a_quota_is_exact_over_both_workers(gateway: Gateway) -> None:
    with ThreadPoolExecutor(8) as threads:

        def ask(number: int) -> int:
            connection = Connection(gateway.server.port, key_of("ben"))
            try:
                return connection.chat(f"question {number}").status
            finally:
                connection.http.close()

        statuses = Counter(threads.map(ask, range(2 * REQUESTS_A_MINUTE)))
    assert statuses == {200: REQUESTS_A_MINUTE, 429: REQUESTS_A_MINUTE}
    assert len(gateway.turns("ben")) == REQUESTS_A_MINUTE
    metrics = Connection(gateway.server.port, ADMIN).ask("GET", "/metrics").body.decode()
    assert f'openclaw_rate_limited_total{{key="ben",limit="requests"}} {REQUESTS_A_MINUTE}.0' in metrics
    assert f'openclaw_key_requests_total{{code="200",key="ben"}} {REQUESTS_A_MINUTE}.0' in metrics


def test_what_is_forgotten_is_forgotten_by_both(gateway: Gateway) -> None:
    one, other = gateway.both("cas")
    reply = one.chat("my secret", session_id="s").json
    words = reply["choices"][0]["message"]["content"]
    assert other.chat("my secret", words, "and", session_id="s").status == 200
    assert other.ask("DELETE", "/v1/sessions/s").json["turns"] == 2
    assert gateway.turns("cas") == []
    for connection in (one, other):
        assert connection.chat("my secret", words, "and", session_id="t").status == 200
    forgotten = gateway.turns("cas")
    assert {turn.session_id for turn in forgotten} == {"@cas:t"}
    assert one.ask("GET", f"/v1/turns/{reply['id']}").status == 404


def test_commands_responses_and_episodes_reach_the_process_that_has_them(gateway: Gateway) -> None:
    one, other = gateway.both("dot")
    first = one.chat("hello").json["choices"][0]["message"]["content"]
    said = other.chat("hello", first, "/rl bad too long").json["choices"][0]["message"]["content"]
    assert "thumbs down" in said
    assert len(gateway.turns("dot")) == 1, "a command is no turn"
    stored = one.ask("POST", "/v1/responses", {"model": "policy", "input": "hello"}).json
    went_on = other.ask(
        "POST", "/v1/responses", {"model": "policy", "input": "go on", "previous_response_id": stored["id"]}
    )
    assert went_on.status == 200
    assert other.ask("GET", f"/v1/responses/{stored['id']}").json["id"] == stored["id"]
    episode = other.ask("POST", "/v1/episodes", {"task": "t", "ttl_s": 60.0}).json
    one.key = other.key = episode["api_key"]
    assert one.chat("act").status == other.chat("act").status == 200
    assert one.ask("GET", "/metrics").status == 403
    one.key = key_of("dot")
    reward = one.ask("POST", f"/v1/episodes/{episode['id']}/reward", {"status": "ok", "reward": 1.0})
    assert reward.json["counts"]["turns"] == 2
    assert other.chat("act").status == 401, "the key of an episode that has ended opens no worker"


def test_a_stream_is_cancelled_by_way_of_the_other_worker(gateway: Gateway) -> None:
    one, other = gateway.both("eve")
    body = {"model": "policy", "input": "hello", "stream": True}
    headers = {"Authorization": f"Bearer {one.key}", "Content-Type": "application/json"}
    one.http.request("POST", "/v1/responses", json.dumps(body), headers)
    stream = one.http.getresponse()
    event = next(json.loads(line[6:]) for line in iter(stream.readline, b"") if line.startswith(b"data: "))
    cancelled = other.ask("POST", f"/v1/responses/{event['response']['id']}/cancel")
    assert cancelled.json["status"] == "cancelled", cancelled.body
    assert b"response.completed" not in stream.read()
    wait_until(lambda: [turn.finish_reason for turn in gateway.turns("eve")] == ["abort"], lambda: "it is not recorded")


@pytest.mark.parametrize("number", [0, 1])
def test_each_worker_refuses_as_one_process_does(gateway: Gateway, number: int) -> None:
    connection = gateway.at(number, "fay")
    body = {"model": "policy", "messages": [{"role": "user", "content": "hi"}]}
    for method, path, content in (("POST", CHAT, body), ("GET", "/v1/models", None)):
        assert connection.ask(method, path, content, Origin="https://evil.example").json["error"]["code"] == (
            "origin_not_allowed"
        )
        assert connection.ask(method, path, content, Authorization="Bearer sk-nobody").status == 401
    assert connection.ask("GET", "/v1/models").json["data"][0]["id"] == "tokenizer"
    assert connection.ask("GET", "/v1/nothing").status == 404
    assert connection.ask("GET", CHAT).status == 405
    assert connection.ask("GET", "/healthz").json["workers"] == 2
    answer = connection.ask("POST", "/v1/feedback", {"response_id": "chatcmpl-none", "thumbs": "up"})
    assert answer.status == 404
    assert "x-request-id" in answer.headers
    assert connection.ask("GET", "/metrics").json["error"]["code"] == "admin_key_required"


def test_nothing_can_connect_to_what_the_processes_say_to_each_other(gateway: Gateway) -> None:
    leader = psutil.Process(gateway.server.child.pid)
    for process in (leader, *gateway.workers):
        assert {each.laddr for each in process.net_connections("unix")} <= {""}
        assert {each.laddr.port for each in process.net_connections("tcp") if each.status == "LISTEN"} <= {
            gateway.server.port
        }
    assert not os.path.exists(f"{gateway.path}.workers") or os.stat(f"{gateway.path}.workers").st_mode & 0o077 == 0


def test_a_killed_worker_loses_and_doubles_nothing_and_comes_back(gateway: Gateway) -> None:
    victim = gateway.workers[0]
    connections = [gateway.at(0, ("gus", "hal")[number % 2]) for number in range(12)]

    def send(number: int) -> str | None:
        try:
            return connections[number].chat(f"question {number}", session_id=f"s{number}").json["id"]
        except (OSError, http.client.HTTPException):
            return None

    with ThreadPoolExecutor(len(connections)) as threads:
        answers = [threads.submit(send, number) for number in range(len(connections))]
        wait_until(lambda: any(answer.done() for answer in answers) or _under_way(gateway) > 3, lambda: "no load")
        victim.send_signal(signal.SIGKILL)
        results = [answer.result() for answer in answers]
    known, lost = [name for name in results if name], results.count(None)
    assert lost, "the worker had no reply under way when it died"

    # Meanwhile and afterwards everybody is served, at both sockets.
    for number in range(6):
        connection = Connection(gateway.server.port, key_of("gus"))
        known.append(connection.chat(f"meanwhile {number}", session_id=f"m{number}").json["id"])
        connection.http.close()
    wait_until(
        lambda: Connection(gateway.server.port, ADMIN).ask("GET", "/healthz").json["workers"] == 2,
        lambda: "the worker is not back",
    )
    assert gateway.workers[0].pid != victim.pid
    known.append(gateway.at(0, "hal").chat("again", session_id="s5").json["id"])
    recorded = [turn.id for turn in gateway.turns("gus") + gateway.turns("hal")]
    assert Counter(recorded) == Counter(set(recorded)), "a turn is recorded once"
    assert set(known) <= set(recorded), "a reply that its client has is in the ledger"
    assert len(recorded) <= len(known) + lost
    metrics = Connection(gateway.server.port, ADMIN).ask("GET", "/metrics").body.decode()
    assert "openclaw_worker_restarts_total 1.0" in metrics
    assert "openclaw_requests_in_flight 0.0" in metrics
    assert "starting it again" in gateway.server.child.log_tail(200)


def _under_way(gateway: Gateway) -> float:
    metrics = Connection(gateway.server.port, ADMIN).ask("GET", "/metrics").body.decode()
    return next(float(line.split()[-1]) for line in metrics.splitlines() if line.startswith("openclaw_requests_in_f"))


def test_it_ends_with_its_workers_once_running_replies_have_ended(gateway: Gateway) -> None:
    connections = gateway.both("fay")
    workers = gateway.workers
    with ThreadPoolExecutor(2) as threads:
        answers = [threads.submit(connection.chat, "the last question") for connection in connections]
        wait_until(lambda: _under_way(gateway) == 2 or all(answer.done() for answer in answers), lambda: "no load")
        os.kill(gateway.server.child.pid, signal.SIGTERM)
        assert [answer.result().status for answer in answers] == [200, 200]
    assert gateway.server.child.wait(SECONDS) == 0
    assert not any(worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE for worker in workers)
    assert [turn.finish_reason for turn in gateway.turns("fay")] == ["stop", "stop"]
