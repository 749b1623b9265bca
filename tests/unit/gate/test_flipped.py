"""Flipped verdicts on a policy of a few styles: the gate stops them before they do harm, and healthy updates pass.

The policy is seeded. Three flipped batches alone do no harm, because Adam's momentum outlasts them, so these runs flip many.
`benchmarks.gate_opinions` has more seeds.
"""

from __future__ import annotations

from benchmarks.gate_parts.tabular import Case, run

STEADY, LAST = 40, 75
WRONG = tuple(range(STEADY, LAST))
SEED = 0


def test_the_gate_stops_flipped_verdicts_before_they_do_harm() -> None:
    gated = run(Case(SEED, LAST, flipped=WRONG))
    ungated = run(Case(SEED, LAST, flipped=WRONG, gated=False))
    assert len(gated.refused) >= 10
    assert set(gated.refused) <= set(WRONG)
    assert gated.liked[STEADY] - min(gated.liked[STEADY:]) <= 0.05
    assert ungated.liked[STEADY] - min(ungated.liked[STEADY:]) >= 0.15


def test_a_new_taste_is_followed_once_it_is_accepted() -> None:
    found = run(Case(SEED, 90, new_taste_from=STEADY, accepts=True))
    assert found.accepted_at
    assert found.liked[-1] < found.liked[STEADY] - 0.2, found.liked
