"""Judged turns, probes and batches for tests of the gate."""

from __future__ import annotations

from lab.testkit.ledger_records import USER_NEXT, make_turn
from openclaw.credit.baseline import record_judged
from openclaw.ledger.records import PROBE, ScoreSource, Verdict
from openclaw.ledger.store import Ledger
from openclaw.training.samples import make_sample


def judged(
    ledger: Ledger,
    turn_id: str,
    score: int,
    *,
    session: str | None = None,
    index: int = 0,
    probe: bool = False,
    source: ScoreSource = "judge",
    reply: int = 3,
    ids: list[int] | None = None,
    conversation: bytes | None = None,
) -> None:
    """Record a turn with a verdict: a probe, or one with a sample. ``reply``: its number of tokens; ``ids``: its tokens."""
    turn = make_turn(
        turn_id,
        session_id=session or turn_id,
        index=index,
        response_ids=ids or list(range(5, 5 + reply)),
        response_logprobs=[-0.5] * len(ids or range(reply)),
        weight_versions=[],
        conversation=conversation,
    )
    ledger.turns.record(turn)
    ledger.turns.record_next_state(turn_id, USER_NEXT, 102.0)
    samples = [] if probe else [make_sample(turn, float(score), score=score)]
    record_judged(ledger, turn_id, Verdict(score=score, score_source=source), samples, PROBE if probe else None)


def probes(ledger: Ledger, count: int, prefix: str = "probe") -> None:
    """Record ``count`` liked and ``count`` disliked probes of as many sessions."""
    for number in range(count):
        judged(ledger, f"{prefix}-liked-{number}", 1, probe=True)
        judged(ledger, f"{prefix}-disliked-{number}", -1, probe=True)


def leased_batch(ledger: Ledger, rollout_id: int, size: int = 4) -> list[int]:
    """Record a batch of judged turns and lease it; return the ids of its samples."""
    for number in range(size):
        judged(ledger, f"turn-{rollout_id}-{number}", 1)
    return [sample.metadata["ledger_id"] for sample in ledger.samples.claim(rollout_id, size)]


def states(ledger: Ledger) -> dict[int, tuple[str, str | None, int | None]]:
    """Return state, reason and batch of every sample."""
    return {each.id: (each.state, each.reason, each.rollout_id) for each in ledger.views.sample_records()}
