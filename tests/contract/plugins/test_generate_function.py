"""Generate functions keep their contract."""

from __future__ import annotations

import pytest

from slime.contract import check


@pytest.mark.parametrize("plugin", ["generate"], indirect=True)
def test_contract(plugin: tuple[str, str, list[str]]) -> None:
    check(*plugin)
