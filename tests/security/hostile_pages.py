"""Attacks by a web page of another origin: as raw requests with a browser's headers, and by a real Chromium.

Both have one aim: to have something answered, stored, trained or deleted. They know a `Victim`: its session and its reply.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from lab.testkit.waiting import wait_until
from openclaw.ledger.store import Ledger
from tests.security.attack import attack, brief, happened
from tests.security.chromium import REBOUND, visit
from tests.security.raw_http import Raw, exchange, head, request
from tests.security.server import CHAT, MODEL, Server

EVIL = "https://evil.example"
NAVIGATION = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe", "Sec-Fetch-Site": "cross-site"}
BROWSERS: dict[str, dict[str, str]] = {
    "fetch with no-cors": {"Origin": EVIL, "Sec-Fetch-Site": "cross-site", "Content-Type": "text/plain;charset=UTF-8"},
    "fetch from a file": {"Origin": "null", "Sec-Fetch-Site": "cross-site", "Content-Type": "text/plain"},
    "JSON in spite of it": {"Origin": EVIL, "Sec-Fetch-Site": "cross-site", "Content-Type": "application/json"},
    "another port": {"Origin": "http://127.0.0.1:1", "Sec-Fetch-Site": "same-site", "Content-Type": "text/plain"},
    "a form": {"Origin": EVIL, **NAVIGATION, "Content-Type": "application/x-www-form-urlencoded"},
    "no origin": {"Sec-Fetch-Site": "cross-site", "Content-Type": "text/plain"},
    "an old browser": {"Origin": EVIL, "Content-Type": "text/plain"},
    "an old browser's image": {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"},
}
"""The headers of a page's simple requests."""


@dataclass(frozen=True)
class Victim:
    """A user's session, one reply in it, and the words that the page wants to plant there."""

    session: str
    reply: str
    words: str

    def routes(self) -> list[tuple[str, str, bytes]]:
        """Return what a page tries: method, path, body."""
        question = {"messages": [{"role": "user", "content": self.words}], "session_id": self.session}
        return [
            ("POST", CHAT, json.dumps(question).encode()),
            ("POST", "/v1/feedback", json.dumps({"response_id": self.reply, "thumbs": "down"}).encode()),
            ("POST", f"/v1/sessions/{self.session}/done", b""),
            ("DELETE", f"/v1/sessions/{self.session}", b""),
            ("GET", "/v1/models", b""),
            ("GET", f"/v1/turns/{self.reply}", b""),
            ("GET", "/v1/rollouts", b""),
            ("GET", "/metrics", b""),
            ("GET", "/openapi.json", b""),
            ("GET", "/healthz", b""),
        ]

    def state(self, server: Server) -> dict[str, Any]:
        """Return what a page could change: turns, samples, feedback, and whether the session goes on."""
        ledger = Ledger(server.ledger_path)
        try:
            records = [
                record for record in ledger.views.turn_records() if record.turn.session_id.endswith(self.session)
            ]
            stored = {record.turn.session_id for record in records}
            ended = [dict(row) for row in ledger.database.rows("SELECT * FROM sessions") if row["id"] in stored]
            return {
                "turns": [(record.turn.state, record.turn.next_state, len(record.samples)) for record in records],
                "feedback": len(ledger.feedback.of(self.reply)),
                "session": ended,
                "planted": server.stored(self.words),
            }
        finally:
            ledger.close()


@contextmanager
def unharmed(server: Server) -> Iterator[Victim]:
    """Let a user talk, and hold the ledger to what it was after the block."""
    name = f"victim-{secrets.token_hex(4)}"
    answer = server.chat("alice", "my own words", session=name)
    assert answer.status_code == 200, brief(answer)
    victim = Victim(name, answer.json()["id"], f"planted in {name}")
    before = victim.state(server)
    yield victim
    after = victim.state(server)
    changed = [f"{part}: {before[part]} became {after[part]}" for part in before if before[part] != after[part]]
    assert not changed, "; ".join(changed)


def refused_all(answers: Mapping[str, Raw]) -> str:
    """Hold answers to refusals that tell nothing."""
    answered = [
        f"{what}: {raw.status}" for what, raw in answers.items() if raw.status == 0 or not 400 <= raw.status < 500
    ]
    told = [what for what, raw in answers.items() if MODEL in raw.text]
    assert not answered, f"{len(answered)} of {len(answers)} were not refused, such as {answered[:6]}"
    assert not told, f"the model is told to: {told[:6]}"
    return happened(raw.status for raw in answers.values())


def _cross_site(server: Server, key: Mapping[str, str]) -> str:
    host, answers = {"Host": f"127.0.0.1:{server.port}"}, {}
    with unharmed(server) as victim:
        for name, headers in BROWSERS.items():
            for method, path, body in victim.routes():
                # A page cannot send DELETE without a preflight; with keys, /healthz is open to all.
                if method == "DELETE" or (key and path == "/healthz") or ("image" in name and method != "GET"):
                    continue
                answers[f"{name}: {method} {path}"] = request(server, method, path, {**host, **headers, **key}, body)
    return refused_all(answers)


@attack("H1", "simple requests of a page of another origin, no keys", keys=False, real=False)
def cross_site_without_keys(server: Server) -> str:
    """A foreign origin, a cross-site fetch and a body that is not JSON are refused."""
    return _cross_site(server, {})


@attack("H1", "simple requests of a page that knows a key", real=False)
def cross_site_with_a_key(server: Server) -> str:
    """The same with a key: a browser's page is not a client."""
    return _cross_site(server, server.headers("alice"))


@attack("H1", "rebound and odd Host headers on a server without keys", keys=False, real=False)
def rebound_hosts(server: Server) -> str:
    """Only loopback names are served."""
    port = server.port
    hosts = (
        f"{REBOUND}:{port}",
        REBOUND,
        f"127.0.0.1.evil.example:{port}",
        f"localhost.evil.example:{port}",
        f"evil.example:{port}@127.0.0.1",
        f"127.0.0.1:{port}, evil.example",
        "192.168.0.1",
        "0.0.0.0.nip.io",
        "",
    )
    answers = {}
    with unharmed(server) as victim:
        for host in hosts:
            for method, path, body in victim.routes():
                headers = {"Host": host, "Content-Type": "application/json"}
                answers[f"Host {host!r}: {method} {path}"] = request(server, method, path, headers, body)
        here = [("Host", f"127.0.0.1:{port}"), ("Connection", "close")]
        answers["two Hosts"] = exchange(server, head("GET", "/v1/models", [*here, ("Host", REBOUND)]))
        asked = [("Origin", EVIL), ("Access-Control-Request-Method", "POST")]
        answers["a preflight"] = exchange(server, head("OPTIONS", CHAT, [*here, *asked]))
    return refused_all(answers)


@attack("H1", "Chromium: a page of another origin and a rebound name, no keys", keys=False, real=False)
def chromium_without_keys(server: Server) -> str:
    """Nothing is answered, stored, trained or deleted."""
    return _chromium(server, None)


@attack("H1", "Chromium: the same before a server with keys, with and without a key", real=False)
def chromium_with_keys(server: Server) -> str:
    """Nothing is answered, stored, trained or deleted."""
    return _chromium(server, server.keys["alice"])


def _chromium(server: Server, key: str | None) -> str:
    with unharmed(server) as victim:
        facts = {"victim": victim.session, "reply": victim.reply, "words": victim.words, "key": key, "chat": CHAT}
        seen = visit(server.port, facts)
        wait_until(lambda: server.in_flight() == 0, lambda: "the page's requests are still under way", 60)
    read = {what: text for what, text in seen.items() if text.startswith("read:")}
    answered = [what for what, text in read.items() if MODEL in text or text.startswith("read: 200")]
    assert not answered, f"the page read the answers to {answered[:6]}"
    assert len(seen) > 50, f"the pages made {len(seen)} attempts only: {sorted(seen)}"
    return f"{len(seen)} attempts; read: {happened(text[:9] for text in read.values()) or 'nothing'}"
