"""What runs between rollout and trainer keeps its contract: logs, rewards, conversion, postprocessing."""

from __future__ import annotations

import pytest

from slime.contract import check


@pytest.mark.parametrize(
    "plugin", ["rollout_log", "eval_log", "reward_post_process", "convert", "data_postprocess"], indirect=True
)
def test_contract(plugin: tuple[str, str, list[str]]) -> None:
    check(*plugin)
