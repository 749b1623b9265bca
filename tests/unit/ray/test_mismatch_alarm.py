"""A run says when trainer and engines disagree about the tokens that they share."""

from __future__ import annotations

import pytest

from slime.observability.metric_utils import STEPS
from slime.ray.reports import AGE, DIFFERENCE, KL, ROLLOUTS_BETWEEN, MismatchAlarm


def steps(*values: float) -> dict[str, object]:
    return {STEPS: [{KL: value, DIFFERENCE: 10 * value} for value in values]}


@pytest.mark.parametrize("metrics", [{}, steps(0.0, 0.01), {STEPS: [{}]}], ids=["no step", "agreement", "no metric"])
def test_agreement_is_silent(metrics: dict[str, object]) -> None:
    assert MismatchAlarm().line(0, metrics) is None


def test_the_worst_step_is_named_with_the_age_of_its_samples() -> None:
    line = MismatchAlarm().line(3, {**steps(0.001, 0.5, 0.02), AGE: 2.25})
    assert line is not None
    assert line.startswith(
        "warning: trainer and engines disagree by 0.500 nats per token at step 3 (mean difference 5.000)"
    )
    assert "2.2 updates old" in line
    fresh = MismatchAlarm().line(3, {**steps(0.5), AGE: 0.0})
    assert fresh is not None
    assert "updates old" not in fresh


def test_a_run_that_keeps_disagreeing_says_so_from_time_to_time() -> None:
    alarm = MismatchAlarm()
    said = [number for number in range(2 * ROLLOUTS_BETWEEN + 5) if alarm.line(number, steps(1.0))]
    assert said == [0, ROLLOUTS_BETWEEN, 2 * ROLLOUTS_BETWEEN]
