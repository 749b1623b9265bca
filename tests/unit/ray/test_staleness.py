"""Stale samples are dropped, kept, or lose only their stale tokens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from slime.rollout import staleness
from slime.rollout.staleness import StalenessBound, mask_stale
from slime.utils.types import Sample


def sampled(*spans: tuple[str, int, int], **fields: Any) -> Sample:
    """Return a sample whose response those weights sampled."""
    values: dict[str, Any] = {
        "response_length": max(end for _, _, end in spans),
        "weight_spans": [list(span) for span in spans],
        "weight_versions": [version for version, _, _ in spans],
    }
    return Sample(tokens=[7] * values["response_length"], **(values | fields))


@pytest.mark.parametrize(
    ("fields", "mask"),
    [
        ({}, [0, 0, 1, 1, 0]),
        ({"loss_mask": [1, 0, 1, 0, 0]}, [0, 0, 1, 0, 0]),
        ({"weight_spans": []}, [0, 0, 0, 0, 0]),
        ({"weight_spans": [], "weight_versions": ["4"]}, [1, 1, 1, 1, 1]),
        ({"weight_spans": [], "weight_versions": []}, [1, 1, 1, 1, 1]),
    ],
)
def test_tokens_of_weights_that_are_too_far_away_lose_their_mask(fields: dict[str, Any], mask: list[int]) -> None:
    """Versions 1 (too old) and 9 (undone, ahead) are more than two updates away from 5; ``default`` counts as 0."""
    sample = sampled(("1", 0, 1), ("default", 1, 2), ("3", 2, 3), ("5", 3, 4), ("9", 4, 5), **fields)
    trained = sum(fields.get("loss_mask", [1] * 5))
    assert mask_stale(sample, 5, 2) == trained - sum(mask)
    assert sample.loss_mask == mask


@pytest.mark.parametrize("mode", ["drop", "mask", "correct"])
async def test_a_group_is_admitted_as_the_mode_says(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def live(args: Any) -> str:
        return "5"

    monkeypatch.setattr(staleness, "live_weight_version", live)
    bound = StalenessBound(SimpleNamespace(max_weight_staleness=2, stale_samples=mode))  # type: ignore[arg-type]
    fresh, mixed = [sampled(("3", 0, 2))], [sampled(("1", 0, 2)), sampled(("2", 0, 1), ("4", 1, 3))]
    gone = [sampled(("1", 0, 2)), sampled(("2", 0, 3))]
    admitted = [await bound.admits(group) for group in (fresh, mixed, gone)]
    counts = tuple(bound.take_metrics().values())  # dropped groups, corrected groups, masked tokens
    assert (admitted, counts) == {
        "drop": ([True, False, False], (2, 0, 0)),
        "mask": ([True, True, False], (1, 0, 3)),
        "correct": ([True, True, True], (0, 2, 0)),
    }[mode]
    if mode == "mask":
        assert [sample.loss_mask for sample in mixed] == [[0, 0], [0, 1, 1]]
    else:
        assert all(sample.loss_mask is None for sample in [*fresh, *mixed, *gone])
    assert tuple(bound.take_metrics().values()) == (0, 0, 0)
