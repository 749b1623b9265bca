"""Batches of flipped verdicts on a policy of a few styles: refused with the gate, learned without; healthy ones pass."""

from __future__ import annotations

from benchmarks.gate_parts.tabular import Case, run

STEADY = 40
WRONG = (40, 41, 42)
SEEDS = range(2)


def lowest(case: Case) -> tuple[float, list[int]]:
    """Return how far the liked share falls below that before the flipped batches, and the refused batches."""
    found = run(case)
    return found.liked[STEADY] - min(found.liked[STEADY + 1 :]), found.refused


def test_the_gate_stops_flipped_verdicts() -> None:
    gated = [lowest(Case(seed, STEADY + 3, flipped=WRONG)) for seed in SEEDS]
    ungated = [lowest(Case(seed, STEADY + 3, flipped=WRONG, gated=False)) for seed in SEEDS]
    assert all(fall <= 0.05 for fall, _ in gated), gated
    assert all(set(refused) & set(WRONG) for _, refused in gated), gated
    assert sum(fall for fall, _ in ungated) > 2 * sum(max(fall, 0.0) for fall, _ in gated), (gated, ungated)


def test_a_new_taste_is_followed_once_it_is_accepted() -> None:
    found = run(Case(0, STEADY + 50, new_taste_from=STEADY, accepts=True))
    assert found.accepted_at
    assert found.liked[-1] < found.liked[STEADY] - 0.2, found.liked
