"""Each defect of a turn has its own reason; a clean turn has none."""

from __future__ import annotations

from typing import Any

import pytest

from openclaw.judge.hygiene import Limits, defect
from tests.helpers.ledger_records import USER_NEXT, make_turn

LIMITS = Limits(temperature=0.6, min_response_tokens=3, max_tokens=7)


def test_clean_turn_has_no_defect() -> None:
    assert defect(make_turn(next_state=USER_NEXT), LIMITS) is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kind": "side"}, "side"),
        ({"finish_reason": "abort"}, "aborted"),
        ({"next_state": None}, "no_next_state"),
        ({"next_state": []}, "no_next_state"),
        ({"response_ids": [], "response_logprobs": []}, "empty"),
        ({"prompt_ids": []}, "empty"),
        ({"response_logprobs": [-0.1]}, "length_mismatch"),
        ({"temperature": 0.7}, "temperature"),
        ({"response_ids": [5, 6], "response_logprobs": [-0.1, -0.2]}, "too_short"),
        ({"prompt_ids": [1, 2, 3, 4, 5]}, "too_long"),
        ({"response_logprobs": [-0.1, float("-inf"), -0.2]}, "non_finite_logprob"),
        ({"response_logprobs": [-0.1, float("nan"), -0.2]}, "non_finite_logprob"),
        ({"weight_versions": []}, "no_weight_version"),
    ],
)
def test_defect_has_its_reason(changes: dict[str, Any], reason: str) -> None:
    assert defect(make_turn(**{"next_state": USER_NEXT, **changes}), LIMITS) == reason
