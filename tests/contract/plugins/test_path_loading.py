"""What the rollout loads by path keeps its contract: rewards, filters, the data source, flags of a method's own."""

from __future__ import annotations

import pytest

from slime.contract import check


@pytest.mark.parametrize(
    "plugin",
    [
        "reward",
        "dynamic_filter",
        "buffer_filter",
        "sample_filter",
        "all_samples",
        "data_source",
        "sample_hook",
        "arguments",
    ],
    indirect=True,
)
def test_contract(plugin: tuple[str, str, list[str]]) -> None:
    check(*plugin)
