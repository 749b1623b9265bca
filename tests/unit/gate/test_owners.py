"""Several people behind one gate: none pays for another, and nobody's sessions or thumbs weigh more than another's."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from benchmarks.gate_parts.owners import EFFECT, KNOWN, decides, history
from openclaw.config.runtime_variables import GateVariables
from openclaw.gate.decision import BY_MARGIN, OWNERS, WORST_OWNER, Evidence, Margin, Scored, decide_on, student_chance
from tests.unit.gate.test_decision import scored

BOUNDS = GateVariables()


def of(owner: str, liked: float, disliked: float, **changes: object) -> list[Scored]:
    """Return probes of an owner whose scores change by ``liked`` and ``disliked``."""
    return [
        replace(each, owner=owner, turn_id=f"{owner}-{each.turn_id}", part=f"{owner}-{each.part}")
        for each in scored(liked, disliked, **changes)  # type: ignore[arg-type]
    ]


@pytest.mark.parametrize("name", ["alice", ""])
def test_one_of_two_owners_may_not_fall(name: str) -> None:
    found = decide_on(Evidence([*of(name, -0.025, 0.025), *of("bob", 0.1, -0.1, count=16)]), BOUNDS)
    assert found.metrics["gate/margin"] > 0.05, "all together gain"
    assert found.refusals[0].startswith("it moves away from what one of 2 owners liked: margin -0.050 ± ")
    assert found.refusals[0].endswith("compared with the serving version")
    assert (found.by_margin, found.metrics[BY_MARGIN], found.metrics[OWNERS]) == (True, 1.0, 2.0)
    assert found.metrics[WORST_OWNER] == pytest.approx(-0.05)


def test_a_small_or_uncertain_fall_of_one_owner_passes() -> None:
    for fall, noise, count in ((0.004, 0.001, 8), (0.025, 0.1, 8), (0.2, 0.001, 3)):
        few = of("alice", -fall, fall, noise=noise, count=count)
        assert decide_on(Evidence([*few, *of("bob", 0.2, -0.2, count=16)]), BOUNDS).accepted


def test_small_falls_of_one_owner_add_up() -> None:
    now = [*of("alice", -0.004, 0.004), *of("bob", 0.1, -0.1, count=16)]
    earlier = {each.turn_id: each.serving + (0.02 if each.liked else -0.02) * (each.owner == "alice") for each in now}
    found = decide_on(Evidence(now, earlier={"7": earlier}), BOUNDS)
    assert found.refusals[0].endswith("compared with version 7")
    assert "one of 2 owners" in found.refusals[0]
    assert "alice" not in found.refusals[0]


def test_thumbs_of_one_owner_do_not_outweigh_verdicts_of_another() -> None:
    both = [*of("alice", 0.03, -0.03), *of("mallory", -0.009, 0.009, stated=True)]
    assert decide_on(Evidence(both), BOUNDS).metrics["gate/margin"] == pytest.approx(0.021)
    half = [replace(each, stated=number % 4 < 2) for number, each in enumerate(of("alice", 0.03, -0.03))]
    assert decide_on(Evidence(half), BOUNDS).metrics["gate/margin"] == pytest.approx(0.06, abs=0.01)


@pytest.mark.parametrize("people", [2, 5, 16, 40])
def test_many_people_whom_an_update_does_not_concern_refuse_nothing_by_chance(people: int) -> None:
    """Of 128 opinions each has its part; the noise is as large as the bound on one owner's fall."""
    rng = random.Random(people)
    refused = 0
    for _ in range(100):
        probes = [
            Scored(
                str(n),
                str(n),
                n % 2 == 0,
                False,
                0.0,
                (0.01 if n % 2 else -0.01) * -1 + rng.gauss(0, 0.02),
                f"o{n // 2 % people}",
            )
            for n in range(128)
        ]
        refused += not decide_on(Evidence(probes), BOUNDS).accepted
    assert refused <= 5


@pytest.mark.parametrize(
    ("known", "contrary", "helpful_refused"), [(False, "named", False), (True, "named", True), (False, "all", True)]
)
def test_a_quiet_person_is_never_harmed_and_a_secret_draw_keeps_a_loud_one_from_stopping_what_helps(
    known: bool, contrary: str, helpful_refused: bool
) -> None:
    """Where tastes really differ, the weights stay as they are: nobody can tell which of two people is right."""
    rng = random.Random(3)
    turns = history(rng, KNOWN if known else rng.randbytes(32), BOUNDS.gate_share, contrary=contrary)
    assert not any(decides(rng, turns, -EFFECT, BOUNDS) for _ in range(10))
    refused = sum(not decides(rng, turns, EFFECT, BOUNDS) for _ in range(10))
    assert refused >= 7 if helpful_refused else refused == 0


@pytest.mark.parametrize(
    ("value", "freedom", "chance"),
    [(0.0, 1, 0.5), (-1.0, 1, 0.25), (-2.353363, 3, 0.05), (-1.943180, 6, 0.05), (-3.249836, 9, 0.005), (2.457262, 30, 0.99)],
)  # fmt: skip
def test_students_t_against_tables(value: float, freedom: int, chance: float) -> None:
    assert student_chance(value, freedom) == pytest.approx(chance, abs=1e-6)


def test_a_fall_without_spread_is_certain() -> None:
    assert [Margin(value, 0.0, 4, 4).fell_by_chance() for value in (-0.1, 0.0, 0.1)] == [0.0, 1.0, 1.0]
