"""Runs that are made for tests with the real writers: the ledger, the tracker's files, the note of a pause.

A `MadeRun` has its own clock, so that hours of traffic take no time.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from groundwork.chat_messages import Message
from lab.testkit.ledger_records import make_turn
from openclaw.credit.baseline import record_judged
from openclaw.ledger.records import Verdict, VersionSpan, Vote
from openclaw.ledger.store import Ledger
from openclaw.training.samples import make_sample
from slime.args import Arguments
from slime.tracking.trackers import JsonLines

START = 1.7e9
COMPLAINT: list[Message] = [{"role": "user", "content": "No bold please, write it again."}]
BATCH = 4


class MadeRun:
    """A run in a folder; its methods are what gateway, judge and trainer do."""

    def __init__(self, folder: Path, **arguments: Any) -> None:
        self.folder = folder
        self.now = START
        values = {"rollout_batch_size": BATCH, "max_weight_staleness": 2, **arguments}
        self.tracker = JsonLines(Arguments.of({"run_dir": str(folder), **values}))
        self.ledger = Ledger(folder / "ledger.sqlite", clock=lambda: self.now)
        self._all = contextlib.ExitStack()
        self._all.enter_context(self.ledger.transaction())  # one commit instead of hundreds
        self.version = 0
        self._numbers = itertools.count()

    def turn(self, *, seconds: float = 30.0, **changes: Any) -> str:
        """Record a reply in a session of its own, ``seconds`` after the one before; return its id."""
        self.now += seconds
        number = next(self._numbers)
        values = {
            "session_id": f"session-{number}",
            "created_at": self.now - 2,
            "finished_at": self.now - 1,
            "weight_versions": [VersionSpan(str(self.version), 0, 3)],
            **changes,
        }
        turn_id = f"turn-{number}"
        self.ledger.turns.record(make_turn(turn_id, **values))
        return turn_id

    def react(self, turn_id: str, messages: Sequence[Message] = COMPLAINT) -> str:
        """Record what follows a reply."""
        self.ledger.turns.record_next_state(turn_id, messages, self.now)
        return turn_id

    def judge(
        self,
        turn_id: str,
        score: int | None,
        *,
        reason: str | None = None,
        votes: Sequence[Vote] | None = None,
        **verdict: Any,
    ) -> str:
        """Record a verdict with one sample, or with the reason for none."""
        given = Verdict(
            score=score, votes=tuple(votes or (Vote("prm", "because \\boxed{1}", score),)), seconds=1.5, **verdict
        )
        samples = []
        if reason is None:
            teacher = verdict.get("teacher_log_probs")
            turn = self.ledger.turns.get(turn_id)
            samples = [make_sample(turn, float(score or 0), score=score, teacher_log_probs=teacher)]
        record_judged(self.ledger, turn_id, given, samples, reason)
        return turn_id

    def talk(self, score: int, **changes: Any) -> str:
        """Record a reply, the reaction to it, and its verdict."""
        return self.judge(self.react(self.turn(**changes)), score, reason=None if score else "score_zero")

    def step(self, **metrics: float) -> None:
        """Train a batch if there is one: lease it, push the weights, save, and log the step's metrics."""
        rollout = self.version
        assert self.ledger.samples.claim(rollout, BATCH)
        self.version += 1
        self.ledger.samples.record_step(rollout, str(self.version), self.now, self.now + 1)
        self.ledger.samples.mark_trained(rollout)
        shown = {
            "rollout/reward": 0.1,
            "openclaw/runtime_restarts": 0.0,
            "train/train_rollout_kl": 0.001,
            "train/train_rollout_logprob_abs_diff": 0.05,
            **metrics,
        }
        self.tracker.log({**shown, "rollout/step": rollout}, "rollout/step")

    def healthy(self, updates: int = 6) -> MadeRun:
        """Let people talk, complain and praise, and take ``updates`` steps."""
        for _ in range(updates):
            for score in (1, -1, 1, -1):
                hint = {"hint": "Write plain prose.", "teacher_log_probs": (-0.2, -0.3, -0.1)} if score < 0 else {}
                turn_id = self.react(self.turn())
                votes = [Vote("prm", "so \\boxed{1}", score), Vote("hint", "so", 1 if score < 0 else -1)]
                self.judge(turn_id, score, votes=votes, **hint)
            self.talk(0)
            self.step()
        return self

    def close(self) -> Path:
        """Close what the run holds open; return its folder."""
        self._all.close()
        self.tracker.finish()
        self.ledger.close()
        return self.folder
