"""The decision: what it refuses, what it must not refuse, and that it never changes its mind on equal evidence."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.config.runtime_variables import GateVariables
from openclaw.gate.decision import BY_MARGIN, TOO_FEW, Evidence, Paired, Scored, decide_on

BOUNDS = GateVariables(gate_margin=0.02)


def scored(liked: float, disliked: float, count: int = 8, *, stated: bool = False, noise: float = 0.01) -> list[Scored]:
    """Return probes whose scores change by ``liked`` and ``disliked``, give or take ``noise``."""
    found = []
    for number in range(count):
        wobble = noise * (-1) ** number
        for opinion, change in ((True, liked), (False, disliked)):
            name = f"{opinion}-{number}"
            found.append(Scored(name, name, opinion, stated, -1.0, -1.0 + change + wobble))
    return found


def test_an_update_that_follows_the_users_is_accepted() -> None:
    found = decide_on(Evidence(scored(0.1, -0.1)), BOUNDS)
    assert found.accepted
    assert not found.by_margin
    assert found.metrics["gate/margin"] == pytest.approx(0.2)
    assert "margin +0.200 ± " in found.note


def test_an_update_against_the_users_is_refused_with_its_numbers() -> None:
    found = decide_on(Evidence(scored(-0.1, 0.1)), BOUNDS)
    assert found.refusals[0].startswith("it moves towards what users disliked: margin -0.200 ± ")
    assert found.by_margin
    assert found.metrics[BY_MARGIN] == 1.0


def test_small_steps_that_add_up_are_refused() -> None:
    small = scored(-0.006, 0.006)
    assert decide_on(Evidence(small), BOUNDS).accepted
    earlier = {each.turn_id: each.serving + (0.03 if each.liked else -0.03) for each in small}
    found = decide_on(Evidence(small, earlier={"5": earlier}), BOUNDS)
    assert found.refusals[0].startswith("small steps away from version 5 add up: margin -0.072 ")
    assert found.metrics["gate/margin_to_best"] == pytest.approx(-0.072)


def test_the_best_earlier_version_counts_whatever_others_say() -> None:
    small = scored(-0.006, 0.006)
    good = {each.turn_id: each.serving + (0.03 if each.liked else -0.03) for each in small}
    bad = {each.turn_id: each.serving + (-0.5 if each.liked else 0.5) for each in small}
    few = {each.turn_id: each.serving + 9.0 for each in small[:4] if each.liked}
    assert not decide_on(Evidence(small, earlier={"5": good, "6": bad, "7": few}), BOUNDS).accepted
    assert decide_on(Evidence(small, earlier={"6": bad, "7": few}), BOUNDS).accepted


def test_too_few_probes_never_refuse() -> None:
    found = decide_on(Evidence(scored(-0.5, 0.5, count=3)), BOUNDS)
    assert found.accepted
    assert found.too_few
    assert found.metrics[TOO_FEW] == 1.0
    assert "3 liked and 3 disliked parts of sessions, 4 of each are needed" in found.note
    assert decide_on(Evidence(), BOUNDS).accepted


def test_one_session_with_many_turns_is_too_few() -> None:
    one = [replace(each, part="the same") for each in scored(-0.5, 0.5, count=20)]
    assert decide_on(Evidence(one), BOUNDS).accepted


def test_feedback_weighs_more_than_verdicts() -> None:
    judge, people = scored(0.1, -0.1), scored(-0.1, 0.1, stated=True)
    both = [*judge, *(replace(each, turn_id=f"p{each.turn_id}", part=f"p{each.part}") for each in people)]
    assert decide_on(Evidence(both), BOUNDS).metrics["gate/margin"] == pytest.approx(-0.2 / 3)


def test_degenerate_replies_are_refused_and_accidents_are_not() -> None:
    five = [Paired(True, False)] * 5 + [Paired(True, True)] * 3
    found = decide_on(Evidence(replies=five), BOUNDS)
    assert found.refusals == ("62% of its greedy replies are degenerate, of the serving version 0%",)
    assert not found.by_margin
    assert decide_on(Evidence(replies=[Paired(True, False)] * 4 + [Paired(True, True)] * 4), BOUNDS).accepted
    assert decide_on(Evidence(replies=[Paired(False, False)] * 8), BOUNDS).accepted
    assert decide_on(Evidence(replies=[Paired(True, False)] * 5 + [Paired(False, True)] * 5), BOUNDS).accepted


def test_tasks_that_are_lost_are_refused() -> None:
    assert not decide_on(Evidence(tasks=[Paired(True, False)] * 5), BOUNDS).accepted
    assert decide_on(Evidence(tasks=[Paired(True, False)] * 4), BOUNDS).accepted
    assert decide_on(Evidence(tasks=[Paired(False, True)] * 50), BOUNDS).accepted
    heavy = [Paired(True, False, 3)] * 6 + [Paired(False, True, 1)] * 3
    found = decide_on(Evidence(tasks=heavy), BOUNDS)
    assert found.refusals == ("it solves 14% of the verified tasks, the serving version 86%",)


def test_drift_and_jumps() -> None:
    assert "scores moved by 1.50 nats/token" in decide_on(Evidence(scored(1.5, 1.5)), BOUNDS).refusals[0]
    jump = [*scored(0.0, 0.0, count=12), Scored("x", "x", True, False, -1.0, -5.0)]
    found = decide_on(Evidence(jump), BOUNDS)
    assert found.refusals == ("a liked reply fell by 4.00 nats/token, more than OPENCLAW_GATE_JUMP=3",)
    assert not found.by_margin
    forgotten = [*scored(0.0, 0.0, count=12), Scored("x", "x", False, False, -1.0, -5.0)]
    assert decide_on(Evidence(forgotten), BOUNDS).accepted  # a disliked reply may fall
    broken = [replace(each, candidate=float("nan")) for each in scored(0.0, 0.0)]
    assert not decide_on(Evidence(broken), BOUNDS).accepted


def test_a_refusal_for_another_reason_is_not_offered() -> None:
    both = Evidence(scored(-0.1, 0.1), tasks=[Paired(True, False)] * 9)
    found = decide_on(both, BOUNDS)
    assert len(found.refusals) == 2
    assert not found.by_margin


CHANGES = st.lists(st.tuples(st.floats(-2, 2), st.booleans(), st.integers(0, 9)), max_size=30)


@given(CHANGES)
def test_an_update_and_its_opposite_are_never_both_refused_by_the_margin(
    changes: list[tuple[float, bool, int]],
) -> None:
    there = [Scored(str(n), str(part), liked, False, 0.0, change) for n, (change, liked, part) in enumerate(changes)]
    back = [replace(each, candidate=-each.candidate) for each in there]
    found = [decide_on(Evidence(each), BOUNDS) for each in (there, back)]
    assert not all("moves towards" in " ".join(each.refusals) for each in found)


@given(CHANGES, st.floats(0.0, 2.0))
def test_a_better_update_is_never_refused_where_a_worse_one_passes(
    changes: list[tuple[float, bool, int]], gain: float
) -> None:
    bounds = replace(BOUNDS, gate_drift=1e9, gate_jump=1e9)
    worse = [Scored(str(n), str(part), liked, False, 0.0, change) for n, (change, liked, part) in enumerate(changes)]
    better = [replace(each, candidate=each.candidate + (gain if each.liked else -gain)) for each in worse]
    if decide_on(Evidence(worse), bounds).accepted:
        assert decide_on(Evidence(better), bounds).accepted


def test_no_change_is_always_accepted() -> None:
    still = scored(0.0, 0.0, noise=0.0)
    earlier = {each.turn_id: each.serving for each in still}
    found = decide_on(Evidence(still, [Paired(True, True)], [Paired(False, False)], {"1": earlier}), BOUNDS)
    assert found.accepted
