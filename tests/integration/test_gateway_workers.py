"""Two workers behind one port: one ledger, one session of a conversation, one quota of a key, and no turn lost or doubled.

The gateway is the real command before a stand-in engine, both processes of their own. A test chooses the worker by connecting
until that one has the connection.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import ssl
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import trustme

from benchmarks.gateway import build_workload, start_engine, start_gateway
from benchmarks.machine import REPOSITORY
from groundwork.network import find_available_port
from lab.testkit.tiny_random import build_tokenizer
from lab.testkit.waiting import wait_until
from openclaw.gateway.tls import own_certificate_context
from openclaw.ledger.records import Turn
from openclaw.ledger.store import Ledger
from openclaw.runtime.start import supervise

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

    def __init__(self, port: int, key: str, certificate: Path | None = None) -> None:
        """Connect, over https if the gateway has a ``certificate``, which alone is trusted."""
        self.http = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
        if certificate is not None:
            context = own_certificate_context(str(certificate))
            self.http = http.client.HTTPSConnection("127.0.0.1", port, timeout=SECONDS, context=context)
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

    def __init__(self, server: Any, ledger: Path, certificate: Path | None = None) -> None:
        """``server`` has the ``child`` that leads and its ``port``, as `benchmarks.gateway.Server`."""
        self.server = server
        self.certificate = certificate
        self.path = ledger
        self.ledger = Ledger(ledger)

    @property
    def workers(self) -> list[psutil.Process]:
        """The workers that serve, by number."""
        found = {}
        for process in psutil.Process(self.server.child.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                line = process.cmdline()
                if "openclaw.runtime.worker" in line:
                    found[line[line.index("openclaw.runtime.worker") + 1]] = process
        return [found[number] for number in sorted(found)]

    def at(self, number: int, name: str) -> Connection:
        """Return a connection that a certain worker has."""
        worker = self.workers[number]
        for _ in range(64):
            connection = Connection(self.server.port, key_of(name), self.certificate)
            connection.ask("GET", "/healthz")
            ours = connection.http.sock.getsockname()[1]
            if any(each.raddr and each.raddr.port == ours for each in worker.net_connections("tcp")):
                return connection
            connection.http.close()
        raise AssertionError(f"no connection reached worker {number}")

    def alive(self) -> int:
        """Return how many workers serve."""
        connection = Connection(self.server.port, ADMIN, self.certificate)
        return connection.ask("GET", "/healthz").json["workers"]

    def when_ready(self) -> Gateway:
        """Return this gateway once both workers serve; until then the leading process does."""
        assert Connection(self.server.port, ADMIN, self.certificate).ask("GET", "/v1/models").status == 200
        wait_until(lambda: self.alive() == 2, lambda: "a worker does not serve")
        return self

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
            yield Gateway(server, folder / f"ledger-{server.port}.sqlite").when_ready()
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
    wait_until(lambda: gateway.workers[0].pid != victim.pid and gateway.alive() == 2, lambda: "the worker is not back")
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


def write_certificate(folder: Path) -> Path:
    """Write a new certificate and its private key over those that are there, and return the certificate's file."""
    issued = trustme.CA().issue_cert("127.0.0.1")
    key, certificate = folder / "tls.key", folder / "tls.pem"
    for path, text in ((key, issued.private_key_pem.bytes()), (certificate, issued.cert_chain_pems[0].bytes())):
        path.touch(0o600)
        path.write_bytes(text)
    return certificate


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[Gateway]:
    """A supervised runtime process with a certificate and two workers, as a run starts it."""
    tokenizer, certificate, port = build_tokenizer(), write_certificate(tmp_path), find_available_port()
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    keys = tmp_path / "keys"
    keys.touch(0o600)
    keys.write_text(f"ann:{key_of('ann')}\nroot (admin):{ADMIN}\n")
    engine = start_engine(build_workload(tokenizer, 12), 1.0, tmp_path)
    try:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "slime")]),
            "PORT": str(port),
            "GATEWAY_WORKERS": "2",
            "OPENCLAW_POLICY_URL": f"http://127.0.0.1:{engine.port}",
            "OPENCLAW_TOKENIZER": str(tmp_path / "tokenizer"),
            "OPENCLAW_LEDGER": str(tmp_path / "ledger.sqlite"),
            "OPENCLAW_API_KEYS_FILE": str(keys),
            "OPENCLAW_TLS_CERT": str(certificate),
            "OPENCLAW_TLS_KEY": str(tmp_path / "tls.key"),
        }
        supervisor, url = supervise(environment, tmp_path / "runtime.log")
        try:
            supervisor.start()
            assert url == f"https://127.0.0.1:{port}"
            server = SimpleNamespace(child=supervisor._child, port=port)
            yield Gateway(server, tmp_path / "ledger.sqlite", certificate).when_ready()
            supervisor.check()
            assert supervisor.restarts == 0
        finally:
            supervisor.stop()
    finally:
        engine.stop()


def test_each_worker_serves_a_certificate_and_its_renewal_and_new_keys(secure: Gateway, tmp_path: Path) -> None:
    assert secure.certificate is not None
    words = "hello"
    for connection in secure.both("ann"):
        answer = connection.chat(words)
        assert answer.status == 200, answer.body
        assert connection.ask("GET", "/", Accept="*/*").json["base_url"].startswith("https://")
    with pytest.raises((OSError, http.client.HTTPException)):
        Connection(secure.server.port, ADMIN).ask("GET", "/healthz")

    (old := tmp_path / "old.pem").write_bytes(secure.certificate.read_bytes())
    write_certificate(tmp_path)
    with (tmp_path / "keys").open("a") as keys:
        keys.write(f"ben:{key_of('ben')}\n")

    def renewed() -> bool:
        """Whether so many connections that both workers got some are served with the new certificate."""
        try:
            for _ in range(12):
                Connection(secure.server.port, ADMIN, secure.certificate).ask("GET", "/healthz")
        except ssl.SSLCertVerificationError:
            return False
        return True

    wait_until(renewed, lambda: "a worker still has the old certificate")
    wait_until(
        lambda: [connection.chat(words).status for connection in secure.both("ben")] == [200, 200],
        lambda: "a worker does not know the new key",
    )
    with pytest.raises(ssl.SSLCertVerificationError):
        Connection(secure.server.port, ADMIN, old).ask("GET", "/healthz")

    victim = secure.workers[0]
    victim.send_signal(signal.SIGKILL)
    wait_until(lambda: secure.workers[0].pid != victim.pid and secure.alive() == 2, lambda: "the worker is not back")
    assert secure.at(0, "ben").chat(words).status == 200
    assert len(secure.turns("ann")) == 2
    assert len(secure.turns("ben")) >= 3
