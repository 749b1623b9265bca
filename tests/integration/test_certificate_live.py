"""A launched LoRA run in which one fault after the other is planted: each makes the certificate red, and no update serves.

The faults: a method's own flag that no code reads, zero advantages, a judge whose answers nobody can read, and an engine that gets
the adapter before, one without effect, or another one under the update's name. In between and at the end a healthy update serves.
An option that was set and not read so far is told, and no more. The run is of a copy of the program that has the method's folder.
"""

from __future__ import annotations

import asyncio
import itertools
import queue
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp

from lab.testkit.engine import serve
from lab.testkit.live_run import LiveRun, wait_until
from openclaw.ledger.decisions import DecisionRecord
from openclaw.ledger.store import Ledger
from tests.helpers.broken_judge import BrokenJudge
from tests.helpers.driver import live_version
from tests.helpers.planted_faults import FILE
from tests.helpers.program_copy import copied

BATCH = 2
SECONDS = 300.0
SETTINGS = {
    **{
        "GATE": 1,
        "USE_LORA": 1,
        "BATCH_SIZE": BATCH,
        "NUM_ROLLOUT": 1000,
        "MAX_RESPONSE_LENGTH": 12,
    },
    **{"LEARNING_RATE": "1e-2", "OPENCLAW_FUSES": "off", "OPENCLAW_HYGIENE": "malformed_call"},
    # The gate's other checks accept everything, so that the certificate alone decides.
    **{"OPENCLAW_GATE_SHARE": 0, "OPENCLAW_GATE_DRIFT": 1000, "OPENCLAW_GATE_JUMP": 1000},
    **{"OPENCLAW_GATE_DEGENERATE": 1, "OPENCLAW_GATE_FEWEST": 1000, "OPENCLAW_PERSON_REFUSALS": 100},
}
FAULTS = {
    "zero advantages": {"advantages"},
    "stale adapter": {"digest", "stale"},
    "base weights": {"digest", "base"},
    "other weights": {"digest", "named"},
}
"""Lines that each fault makes red; others may be red, too."""


class Person:
    """Talks to the run and rates replies."""

    def __init__(self, run: LiveRun, judge: BrokenJudge) -> None:
        self.run, self.judge = run, judge
        self._sessions = map(str, itertools.count())
        self._ledger: Ledger | None = None

    def until(self, condition: Any, what: str) -> Any:
        def look() -> Any:
            assert self.run.process.poll() is None, (
                f"the run ended while waiting for {what}:\n{self.run.text()[-3000:]}"
            )
            return condition()

        return wait_until(look, lambda: f"{what}:\n{self.run.text()[-3000:]}", SECONDS)

    def _post(self, path: str, session: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = httpx.post(f"{self.run.base_url}/{path}", json=body, headers={"X-Session-Id": session}, timeout=60.0)
        return answer.raise_for_status().json()

    def _say(self, session: str, messages: list[dict[str, str]]) -> dict[str, Any]:
        return self._post("chat/completions", session, {"model": "tiny", "messages": messages})

    def feed(self) -> None:
        """Give the run one batch of rated replies."""
        for number in range(BATCH):
            session = next(self._sessions)
            reply = self._say(session, [{"role": "user", "content": f"Say {session}."}])
            thumbs = "up" if number % 2 else "down"
            self._post("feedback", session, {"response_id": reply["id"], "thumbs": thumbs})

    def complain(self, turns: int) -> None:
        """Have a conversation whose replies only the judge rates."""
        session, messages = next(self._sessions), [{"role": "user", "content": "Say it."}]
        asked = self.judge.asked
        for _ in range(turns + 1):
            message = self._say(session, messages)["choices"][0]["message"]
            messages += [
                {"role": "assistant", "content": message["content"] or ""},
                {"role": "user", "content": "No, the other one."},
            ]
        self.until(lambda: self.judge.asked >= asked + turns, "the judge")

    def ledger(self) -> Ledger:
        if self._ledger is None:
            self._ledger = Ledger(self.run.ledger_path)
        return self._ledger

    def decided(self) -> list[DecisionRecord]:
        return [each for each in self.ledger().decisions.all() if each.kind in ("step", "refused")]

    def next_decision(self) -> DecisionRecord:
        """Feed a batch and return what was decided about it."""
        count = len(self.decided())
        self.feed()
        return self.until(lambda: self.decided()[count:], "a decision")[0]

    def health(self) -> dict[str, Any]:
        return httpx.get(f"http://127.0.0.1:{self.run.port}/healthz", timeout=60.0).json()

    def engine_version(self) -> str | None:
        line = next(line for line in self.run.text().splitlines() if line.startswith("policy engine: "))
        return live_version(line.split()[-1])


def red_lines(decision: DecisionRecord) -> set[str]:
    assert decision.certificate is not None
    return {line["name"] for line in decision.certificate["lines"] if line["verdict"] == "red"}


@contextmanager
def served(app: ASGIApp) -> Iterator[str]:
    """Serve an application from a thread; yield its URL."""
    found: queue.SimpleQueue[str] = queue.SimpleQueue()
    loop, stop = asyncio.new_event_loop(), asyncio.Event()

    async def run() -> None:
        async with serve(app) as url:
            found.put(url)
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()
    try:
        yield found.get(timeout=SECONDS)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


@pytest.fixture
def person(repository: Path, tmp_path: Path, tiny_random_model: Path) -> Iterator[Person]:
    judge, program = BrokenJudge(), copied(repository, tmp_path / "program")
    plugin = program / "planted-faults" / "planted_faults.py"
    plugin.parent.mkdir()
    shutil.copy(repository / "tests" / "helpers" / "planted_faults.py", plugin)
    own = ("--custom-arguments-path", f"{plugin}:add_custom_arguments", "--planted-quixotry", "1")
    hook = (*own, "--rollout-data-postprocess-path", f"{plugin}:install")
    with served(judge.app) as url:
        variables = {**SETTINGS, "OPENCLAW_JUDGE_BASE_URL": f"{url}/v1", "OPENCLAW_JUDGE_MODEL": "judge"}
        run = LiveRun(program, tmp_path / "run", tiny_random_model, "rl", *hook, **variables)
        try:
            run.wait_ready()
            yield Person(run, judge)
            assert run.stop() == 0, run.text()[-3000:]
        finally:
            if run.process.poll() is None:
                run.process.kill()
                run.process.wait()


@pytest.mark.timeout(900)
def test_every_planted_fault_makes_the_certificate_red_and_stops_the_publication(person: Person) -> None:
    fault = person.run.folder / FILE

    def is_refused(decision: DecisionRecord, lines: set[str], serving: str) -> None:
        assert decision.kind == "refused", decision.certificate
        assert lines <= red_lines(decision), decision.certificate
        assert "its certificate is red: " in decision.why
        person.until(lambda: "certificate" in person.health(), "the cause in /healthz")
        assert person.engine_version() == serving

    fault.write_text("ignored option")
    first = person.next_decision()
    is_refused(first, {"options"}, "0")
    assert red_lines(first) == {"options"}
    assert "no code reads --planted-quixotry" in first.why
    fault.write_text("unread option")
    told = person.next_decision()
    assert (told.kind, red_lines(told)) == ("step", set()), told
    assert told.certificate is not None
    options = {line["name"]: (line["verdict"], line["words"]) for line in told.certificate["lines"]}["options"]
    assert options == ("unknown", "not read so far: --lr")
    fault.unlink()
    healthy = person.next_decision()
    assert (healthy.kind, red_lines(healthy)) == ("step", set()), healthy
    serving = healthy.weight_version
    person.until(lambda: person.engine_version() == serving, "the healthy update")
    person.until(lambda: "certificate" not in person.health(), "no cause in /healthz")
    for name, lines in FAULTS.items():
        fault.write_text(name)
        is_refused(person.next_decision(), lines, serving)
    fault.unlink()
    person.judge.mode = "words"
    person.complain(3)
    is_refused(person.next_decision(), {"judge"}, serving)
    person.judge.mode = "good"
    last = person.next_decision()
    assert (last.kind, red_lines(last)) == ("step", set()), last
    person.until(lambda: person.engine_version() == last.weight_version, "the last update")
    samples = person.ledger().views.sample_records()
    refused = {each.rollout_id for each in person.decided() if each.kind == "refused"}
    assert {each.reason for each in samples if each.rollout_id in refused} == {"quarantine"}
