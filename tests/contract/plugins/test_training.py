"""What runs in a training rank keeps its contract: loss, advantages, corrections, reducers, Megatron's hooks."""

from __future__ import annotations

import pytest

from slime.contract import check


@pytest.mark.parametrize(
    "plugin",
    [
        "loss",
        "advantage",
        "tis",
        "pg_loss_reducer",
        "model_provider",
        "megatron_init",
        "before_log_prob",
        "before_train_step",
    ],
    indirect=True,
)
def test_contract(plugin: tuple[str, str, list[str]]) -> None:
    check(*plugin)
