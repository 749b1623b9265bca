"""The gate in a real run on the tiny model: opinions that flip are refused, accepted on command, and a rollback serves.

The user rates each reply by the student's rule, so no judge is asked. One story, told once; the tests look at what it left.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from openclaw.ledger.decisions import DecisionRecord
from openclaw.ledger.probes import PROBE
from openclaw.ledger.reports import TurnRecord
from openclaw.ledger.store import Ledger
from tests.helpers.live_run import LiveRun

pytestmark = pytest.mark.timeout(1500)

BATCH_SIZE = 8
PARALLEL = 8
MOST_ROUNDS = 120
SETTINGS = {
    "BATCH_SIZE": BATCH_SIZE,
    "NUM_ROLLOUT": 1000,
    "SAVE_INTERVAL": 1,
    "LEARNING_RATE": 1e-3,
    "MAX_RESPONSE_LENGTH": 96,
    "OPENCLAW_FUSES": "off",
    "OPENCLAW_GATE_SHARE": 0.4,
    "OPENCLAW_JUDGE_CLASS": "tests.helpers.no_judge.NoJudge",
}


@dataclass
class Story:
    """What happened."""

    before: DecisionRecord
    refused: list[DecisionRecord]
    served_after_refusals: str | None
    health: dict[str, Any]
    accepted: subprocess.CompletedProcess[str]
    after: DecisionRecord
    rolled_back: subprocess.CompletedProcess[str]
    oldest: str
    versions: dict[str, Any]
    served_at_end: str
    turns: list[TurnRecord]
    quarantined: list[set[tuple[str, str | None]]]
    statuses: set[int]
    exit_code: int


class User:
    """Asks problems, several at a time, and rates each reply at once; ``flipped`` turns every opinion over."""

    def __init__(self, run: LiveRun, ledger: Ledger) -> None:
        self._run = run
        self._ledger = ledger
        self._rng = random.Random(0)
        self._sessions = 0
        self.statuses: set[int] = set()
        self.flipped = False

    def talk_until(self, condition: Callable[[], bool]) -> None:
        """Talk in rounds until ``condition`` holds; wait while two batches are ready, because the trainer is behind."""
        with ThreadPoolExecutor(PARALLEL) as pool:
            for _ in range(MOST_ROUNDS):
                while self._ledger.ready_count() >= 2 * BATCH_SIZE and not condition():
                    self._run.healthy()
                if condition():
                    return
                list(pool.map(self._ask, [self._question() for _ in range(PARALLEL)]))
        raise AssertionError(f"it did not happen:\n{self._run.text()[-4000:]}")

    def _question(self) -> tuple[str, str]:
        from tiny_models.problems import draw_short

        self._sessions += 1
        return f"session-{self._sessions}", draw_short(self._rng, "train").question

    def _ask(self, asked: tuple[str, str]) -> None:
        from tiny_models.replies import follows_rule

        session, question = asked
        with httpx.Client(base_url=self._run.base_url, timeout=300.0, trust_env=False) as client:
            body = {"model": "tiny", "messages": [{"role": "user", "content": question}]}
            reply = client.post("/chat/completions", json=body, headers={"X-Session-Id": session})
            self.statuses.add(reply.status_code)
            liked = follows_rule(reply.json()["choices"][0]["message"]["content"] or "") != self.flipped
            thumbs = {"response_id": reply.json()["id"], "thumbs": "up" if liked else "down"}
            self.statuses.add(client.post("/feedback", json=thumbs).status_code)

    def served(self) -> str:
        """Return the weight version that answers now."""
        with httpx.Client(base_url=self._run.base_url, timeout=300.0, trust_env=False) as client:
            body = {"model": "tiny", "messages": [{"role": "user", "content": "2 + 3?"}], "max_tokens": 1}
            headers = {"X-Turn-Type": "side", "X-Session-Id": "look", "X-Session-Done": "1"}
            return client.post("/chat/completions", json=body, headers=headers).headers["x-weight-version"]


def command(repository: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run ``openclaw-rl`` as a user does."""
    line = [sys.executable, "-m", "openclaw", *words]
    return subprocess.run(line, cwd=repository, capture_output=True, text=True, check=False, timeout=400)


@pytest.fixture(scope="module")
def story(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Story:
    from tiny_models.build import ensure_built

    model = ensure_built(0)
    folder = tmp_path_factory.mktemp("gate")
    run = LiveRun(repository, folder, model, "rl", GATE=1, **SETTINGS)
    try:
        run.wait_ready()
        ledger = Ledger(run.ledger_path)
        user = User(run, ledger)

        def last(kind: str) -> DecisionRecord | None:
            return next((each for each in reversed(ledger.decisions()) if each.kind == kind), None)

        def compared() -> bool:
            step = last("step")
            return step is not None and "gate/margin_to_best" in step.metrics

        user.talk_until(compared)
        before = last("step")
        user.flipped = True
        user.talk_until(lambda: ledger.offer(3) is not None)
        refused = ledger.refusals()
        quarantined = [
            {(each.state, each.reason) for each in ledger.sample_records() if each.rollout_id == decision.rollout_id}
            for decision in refused
        ]
        served_after_refusals = user.served()
        live = ledger.live_weight_version()
        health = httpx.get(run.base_url.removesuffix("v1") + "healthz", trust_env=False).json()
        accepted = command(repository, "accept", str(folder))
        user.talk_until(lambda: (step := last("step")) is not None and step.number > refused[0].number + 1)
        after = last("step")
        oldest = json.loads(command(repository, "versions", str(folder), "--json").stdout)["versions"]
        back_to = next(each["version"] for each in oldest if each["checkpoint"])
        rolled_back = command(repository, "rollback", str(folder), "--to", back_to)
        versions = json.loads(command(repository, "versions", str(folder), "--json").stdout)
        served_at_end = user.served()
        exit_code = run.stop()
    finally:
        if run.process.poll() is None:
            run.process.kill()
    assert before is not None
    assert after is not None
    assert served_after_refusals == live
    with closing(ledger):
        return Story(
            before=before,
            refused=refused,
            served_after_refusals=live,
            health=health,
            accepted=accepted,
            after=after,
            rolled_back=rolled_back,
            oldest=back_to,
            versions=versions,
            served_at_end=served_at_end,
            turns=list(ledger.export_turns()),
            quarantined=quarantined,
            statuses=user.statuses,
            exit_code=exit_code,
        )


def test_updates_with_the_users_are_accepted(story: Story) -> None:
    assert story.before.metrics["gate/margin"] > 0


def test_flipped_opinions_are_refused_and_the_version_stays(story: Story) -> None:
    assert len(story.refused) >= 3
    assert all(each.metrics["gate/margin"] < 0 or each.metrics["gate/margin_to_best"] < 0 for each in story.refused)
    assert all("keeps serving" in each.why for each in story.refused)
    assert "openclaw-rl accept" in story.refused[0].why
    assert story.quarantined == [{("dropped", "quarantine")}] * len(story.refused)
    serving = {each.why.split(", version ")[1].split()[0] for each in story.refused}
    assert serving == {story.served_after_refusals}
    assert story.health["gate"].startswith(f"the gate refused {len(story.refused)} batches in a row")


def test_an_accepted_change_is_followed(story: Story) -> None:
    assert story.accepted.returncode == 0, story.accepted.stderr
    assert story.after.kind == "step"
    assert int(story.after.weight_version) > int(story.served_after_refusals or 0)


def test_a_rollback_serves(story: Story) -> None:
    assert story.rolled_back.returncode == 0, story.rolled_back.stderr
    assert f"back to version {story.oldest}" in story.rolled_back.stdout
    rollback = next(each for each in story.versions["versions"] if each["decision"] == "rolled back")
    assert int(rollback["version"]) > int(story.after.weight_version)
    assert int(story.served_at_end) >= int(rollback["version"])


def test_nobody_was_refused_and_no_probe_was_trained(story: Story) -> None:
    assert story.statuses <= {200, 202}
    probes = [record for record in story.turns if record.turn.reason == PROBE]
    assert len(probes) >= 8
    assert not any(record.samples for record in probes)
    assert story.exit_code == 0
