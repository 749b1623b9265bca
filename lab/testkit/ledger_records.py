"""Turns, verdicts and samples for tests, with values that are easy to tell apart."""

from __future__ import annotations

from typing import Any

from openclaw.credit.baseline import record_judged
from openclaw.ledger.records import Turn, Verdict, VersionSpan
from openclaw.ledger.store import Ledger
from openclaw.training.samples import make_sample

USER_NEXT = [{"role": "user", "content": "No bold please, write it again."}]


def make_turn(turn_id: str = "turn-0", **changes: Any) -> Turn:
    """Return a valid waiting main turn of three response tokens; ``changes`` replace fields."""
    values: dict[str, Any] = {
        "id": turn_id,
        "session_id": "session",
        "index": 0,
        "kind": "main",
        "created_at": 100.0,
        "finished_at": 101.0,
        "messages": [{"role": "user", "content": "What is 2 + 3?"}],
        "prompt_ids": [1, 2, 3, 4],
        "response_ids": [5, 6, 7],
        "response_logprobs": [-0.1, -1.0 / 3.0, -2.5e-7],
        "finish_reason": "stop",
        "response_message": {"role": "assistant", "content": "The sum is **5**."},
        "temperature": 0.6,
        "top_p": 1.0,
        "weight_versions": [VersionSpan("1", 0, 3)],
    }
    return Turn(**{**values, **changes})


def judged_sample(ledger: Ledger, turn_id: str, *, session_id: str = "session", version: str = "1") -> None:
    """Record a turn, its next state and a verdict of +1 with one sample."""
    turn = make_turn(turn_id, session_id=session_id, weight_versions=[VersionSpan(version, 0, 3)])
    ledger.turns.record(turn)
    ledger.turns.record_next_state(turn_id, USER_NEXT, 102.0)
    record_judged(ledger, turn_id, Verdict(score=1), [make_sample(ledger.turns.get(turn_id), 1.0, score=1)], None)


def failed_turn(ledger: Ledger, turn_id: str, error: str) -> None:
    """Record a turn whose judge failed once with ``error``."""
    ledger.turns.record(make_turn(turn_id))
    ledger.turns.record_next_state(turn_id, USER_NEXT, 102.0)
    ledger.judging.postpone(turn_id, error, 0.0)
