"""Rollout and evaluation functions keep their contract."""

from __future__ import annotations

import pytest

from slime.contract import check


@pytest.mark.parametrize("plugin", ["rollout", "eval"], indirect=True)
def test_contract(plugin: tuple[str, str, list[str]]) -> None:
    check(*plugin)
