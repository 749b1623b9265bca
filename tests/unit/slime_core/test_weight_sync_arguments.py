"""Flags of the weight sync that have no effect are refused."""

from __future__ import annotations

import pytest

from slime.arguments.weight_sync import check_weight_sync
from tests.helpers.arguments import default_args


@pytest.mark.parametrize("changes", [{"update_weight_disk_dir": "weights"}, {"update_weight_disk_keep_files": True}])
def test_disk_flags_need_the_disk(changes: dict[str, object]) -> None:
    (problem,) = check_weight_sync(default_args(**changes))
    flag = "--" + next(iter(changes)).replace("_", "-")
    assert problem == f"{flag} has no effect without --update-weight-transport disk"
    assert not check_weight_sync(default_args(update_weight_transport="disk", **changes))
