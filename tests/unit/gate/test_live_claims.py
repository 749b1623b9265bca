"""The claims of `benchmarks.gate_live` about a run."""

from __future__ import annotations

from benchmarks.gate_parts.told import Told, claims

FELL, REFUSED, FOLLOWED = "fell_by_at_most_0.05", "refused_flipped_verdicts", "followed_after_acceptance"


def told(*batches: tuple[str, str, float]) -> Told:
    """Return a run from parts, decisions and held-out shares."""
    return Told([{"part": part, "kind": kind, "liked": liked} for part, kind, liked in batches])


def test_all_claims_of_a_good_run_hold() -> None:
    run = told(
        ("healthy", "step", 0.70),
        ("flipped", "step", 0.65),
        ("flipped", "refused", 0.66),
        ("changed", "refused", 0.66),
        ("after", "step", 0.60),
        ("after", "step", 0.46),
    )
    assert claims(run) == {FELL: True, REFUSED: True, FOLLOWED: True}


def test_no_claim_of_a_bad_run_holds() -> None:
    run = told(
        ("healthy", "step", 0.70),
        ("flipped", "step", 0.64),
        ("again", "step", 0.90),
        ("changed", "step", 0.66),
        ("after", "step", 0.30),
        ("after", "step", 0.47),
    )
    assert claims(run) == {FELL: False, REFUSED: False, FOLLOWED: False}


def test_a_batch_of_the_changed_taste_may_be_the_refused_one() -> None:
    rows = [("healthy", "step", 0.70), ("flipped", "step", 0.70)]
    assert claims(told(*rows, ("changed", "refused", 0.70)))[REFUSED]
    assert not claims(told(*rows, ("changed", "step", 0.70)))[REFUSED]


def test_a_claim_that_the_run_did_not_reach_is_neither_held_nor_broken() -> None:
    assert claims(told(("healthy", "step", 0.7))) == {FELL: None, REFUSED: None, FOLLOWED: None}


def test_the_healthy_part_ends_with_enough_liked_replies_and_enough_probes() -> None:
    run = told(("healthy", "step", 0.7))
    assert not run.healthy_enough(0.65), "the gate compared no opinions"
    run.rows[-1]["gate/margin"] = 0.01
    assert run.healthy_enough(0.65)
    assert not run.healthy_enough(0.75)
    assert not Told().healthy_enough(0.0)
