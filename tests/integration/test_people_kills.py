"""SIGKILL of engine, rank, manager and runtime while two people talk: nobody's accepted version is ever taken back.

Two clients of each person send and rate messages from before the first kill until after the last. Each reply is compared with the
version that the ledger had told before it was asked for; at the end each is scored by the plain model with the adapter that its
turn names.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import psutil
import pytest

from benchmarks.people_parts.crowd import checked, keep_versions
from groundwork.checkpoint_names import PEOPLE
from groundwork.people import mark_of
from lab.testkit.live_run import KEYS, LiveRun, keys_file, wait_until
from lab.testkit.processes import alive, title_of
from openclaw.ledger.store import Ledger
from openclaw.runtime.adapters import accepted_versions
from slime.checkpoints import checkpoint_folder
from tests.helpers.gated_run import TITLES

BATCH, CLIENTS = 2, 2
SECONDS = 900.0
"""For a process to start again on a busy machine."""
SETTINGS = {
    **{"ADAPTERS": "per-owner", "USE_LORA": 1, "LEARNING_RATE": "1e-3", "BATCH_SIZE": BATCH, "NUM_ROLLOUT": 1000},
    **{"MAX_RESPONSE_LENGTH": 12, "OPENCLAW_HYGIENE": "malformed_call", "OPENCLAW_FUSES": "off"},
    **{"OPENCLAW_BASELINE": 0, "OPENCLAW_LESSONS": "off", "OPENCLAW_ENGINE_WAIT_SECONDS": 240},
}
LOOK_SECONDS = 0.2
KEPT = 12
"""Checkpoints that stay, and with them the versions they name: after a restart, several updates a second come from what waited."""


@dataclass(frozen=True)
class Reply:
    """A reply that a person has read and rated; ``told``: the version in the ledger before the person asked."""

    person: str
    id: str
    told: int


@dataclass
class Talk:
    """People who talk to a run at the same time, until told to stop."""

    run: LiveRun
    replies: list[Reply] = field(default_factory=list)
    stop: Event = field(default_factory=Event)
    settled: Event = field(default_factory=Event)

    def post(self, person: str, path: str, body: dict[str, Any], session: str) -> dict[str, Any] | None:
        """Send it until it is answered, as a client does while a server starts again; None if the talk ends before."""
        headers = {"Authorization": f"Bearer {KEYS[person]}", "X-Session-Id": session}
        while True:
            try:
                answer = httpx.post(f"{self.run.base_url}/{path}", json=body, headers=headers, timeout=SECONDS)
                if answer.status_code == 200:
                    return answer.json()
                assert answer.status_code in (502, 503), answer.text
            except httpx.TransportError:
                pass
            if self.stop.wait(LOOK_SECONDS):
                return None

    def client(self, person: str, name: str) -> None:
        """Ask and rate, one message after another; half of the replies are liked."""
        with closing(Ledger(self.run.ledger_path)) as ledger:
            number = 0
            while not self.stop.is_set():
                number, session = number + 1, f"{name}-{number}"
                told = int(ledger.samples.live_weight_version(person) or 0)
                message = {"role": "user", "content": f"What is {number} plus {len(name)}?"}
                reply = self.post(person, "chat/completions", {"model": "tiny", "messages": [message]}, session)
                if reply is None:
                    return
                thumbs = {"response_id": reply["id"], "thumbs": "up" if number % 2 else "down"}
                if self.post(person, "feedback", thumbs, session) is None:
                    return
                self.replies.append(Reply(person, reply["id"], told))

    def watch(self) -> None:
        """Keep the adapter of each accepted version, also of those that the last replies wait for."""
        while not self.settled.wait(LOOK_SECONDS):
            keep_versions(self.run.folder)
        keep_versions(self.run.folder)


class PeopleRun:
    """A run with its ledger, and what has become of people's versions."""

    def __init__(self, run: LiveRun) -> None:
        self.run, self.talk = run, Talk(run)
        self.ledger = Ledger(run.ledger_path)
        self.watch: Future[None] | None = None
        self.clients: list[Future[None]] = []

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait for a condition; fail if the run or a client ends before."""

        def look() -> Any:
            assert self.run.process.poll() is None, f"the run ended, waiting for {what}:\n{self.run.text()[-3000:]}"
            for future in [self.watch, *self.clients]:
                if future is not None and future.done():
                    future.result()  # raises what ended it
            return condition()

        return wait_until(look, lambda: f"{what}:\n{self.run.text()[-3000:]}", SECONDS)

    def told(self) -> dict[str, int]:
        """The version of each person in the ledger."""
        return {person: int(self.ledger.samples.live_weight_version(person) or 0) for person in KEYS}

    def served(self) -> dict[str, int]:
        """The version of each person in the book."""
        versions = {person: accepted_versions(self.run.folder, person) for person in KEYS}
        return {person: line[0].number if line else 0 for person, line in versions.items()}

    def member(self, kind: str) -> psutil.Process:
        """The oldest process of that kind; of an engine the one that serves the policy."""
        lines = [line for line in self.run.text().splitlines() if line.startswith("policy engine: ")]
        words = TITLES.get(kind) or f"--port {lines[-1].rpartition(':')[2]} "
        found = [each for each in self.run.family() if words in title_of(each) + " "]
        assert found, f"no process {words!r}:\n{self.run.text()[-3000:]}"
        return min(found, key=psutil.Process.create_time)

    def learn(self, since: dict[str, int]) -> None:
        """Wait until each person has a version after those, told and served, and a reply that was asked for afterwards."""
        begun = len(self.talk.replies)
        self.until(lambda: all(self.told()[each] > since[each] for each in KEYS), f"versions after {since}")
        told = self.told()

        def answered() -> bool:
            new = self.talk.replies[begun:]
            return all(any(reply.person == each and reply.told >= told[each] for reply in new) for each in KEYS)

        self.until(answered, f"replies under {told}")

    def settled(self) -> bool:
        """Whether nothing waits for the judge or for a step, and none is under way."""
        samples = self.ledger.samples
        waits = (
            samples.untrained_leases()
            or samples.saved_not_live()
            or any(samples.ready_count(person) >= BATCH for person in KEYS)
        )
        return not waits and not self.ledger.views.counts()["turns"].get("pending", 0)

    def kill(self, kind: str) -> None:
        """Kill a process; each person learns and is answered again."""
        told = self.told()
        victim = self.member(kind)
        victim.kill()
        assert not alive([victim])
        self.learn(self.told())
        assert all(self.served()[each] >= told[each] for each in KEYS)


@pytest.fixture
def people(repository: Path, tmp_path: Path) -> Iterator[PeopleRun]:
    from lab.tiny_models.build import ensure_built

    keys = keys_file(tmp_path)
    flags = ("--save-keep", str(KEPT))
    run = LiveRun(repository, tmp_path / "run", ensure_built(0), "rl", *flags, OPENCLAW_API_KEYS_FILE=keys, **SETTINGS)
    try:
        wait_until(run.healthy, lambda: f"the gateway did not come up:\n{run.text()[-3000:]}", SECONDS)
        people = PeopleRun(run)
        with ThreadPoolExecutor(len(KEYS) * CLIENTS + 1) as pool:
            try:
                people.watch = pool.submit(people.talk.watch)
                people.clients = [
                    pool.submit(people.talk.client, person, f"{person}{number}")
                    for person in KEYS
                    for number in range(CLIENTS)
                ]
                yield people
            finally:
                people.talk.stop.set()
                people.talk.settled.set()
                if run.process.poll() is None:
                    run.process.kill()
                    run.process.wait()
        people.ledger.close()
    finally:
        if run.process.poll() is None:
            run.process.kill()


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_nobodys_version_is_taken_back_by_a_kill(people: PeopleRun) -> None:
    started = time.monotonic()
    people.learn(dict.fromkeys(KEYS, 0))
    for victim in ("engine", "rank", "manager", "runtime"):
        people.kill(victim)
        print(f"{victim} {time.monotonic() - started:.0f} s, {people.told()}, {len(people.talk.replies)} replies")
    people.talk.stop.set()
    for client in people.clients:
        client.result(SECONDS)
    people.until(people.settled, "the last step")
    people.talk.settled.set()
    people.watch.result(SECONDS)
    assert people.run.stop() == 0, people.run.text()[-3000:]

    ledger, folder = people.ledger, people.run.folder
    older = [
        (reply, versions)
        for reply in people.talk.replies
        for versions in [[int(span.version) for span in ledger.turns.get(reply.id).weight_versions]]
        if min(versions) < reply.told
    ]
    assert not older, "replies of versions before the one that was told"

    rows = ledger.database.rows("SELECT rollout_id, person, weight_version, undone_at FROM steps ORDER BY number")
    assert [row["rollout_id"] for row in rows] == list(range(len(rows))), "no step is missing, taken back or told twice"
    assert not any(row["undone_at"] for row in rows)
    told = people.told()
    for person in KEYS:
        own = [int(row["weight_version"]) for row in rows if row["person"] == person]
        assert own == list(range(1, told[person] + 1))
    samples = ledger.database.rows("SELECT turn_id, person, state, rollout_id FROM samples")
    assert len({row["turn_id"] for row in samples}) == len(samples), "a turn has two samples"
    assert {reply.id for reply in people.talk.replies} <= {row["turn_id"] for row in samples}
    assert {row["state"] for row in samples} <= {"trained", "ready"}
    for row in rows:
        batch = [sample for sample in samples if sample["rollout_id"] == row["rollout_id"]]
        assert [(sample["person"], sample["state"]) for sample in batch] == [(row["person"], "trained")] * BATCH
    trained = [sample for sample in samples if sample["state"] == "trained"]
    assert len(trained) == BATCH * len(rows)

    newest = checkpoint_folder.find(folder / "checkpoints")
    assert newest is not None
    named = json.loads((newest / "meta.json").read_text())[PEOPLE]
    assert people.served() == told == {each: int(named[mark_of(each)].split("-")[1]) for each in KEYS}

    found = checked(folder, print)
    assert found["by a foreign adapter"] == 0, found["examples"]
    assert found["not checked, adapter not kept"] == 0
    assert found["replies"] >= len(people.talk.replies)
    seen = found["error under another owner's adapter"]
    assert seen["seen"] > 0, "the check tells people's adapters apart"
