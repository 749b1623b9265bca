"""The trainer's side of a weight update group."""

from __future__ import annotations

from datetime import timedelta

import pytest
from torch.distributed.distributed_c10d import _world

from slime.weight_sync.group import HostedGroup, group_named


def hosted(name: str) -> HostedGroup:
    return HostedGroup(address="127.0.0.1", world_size=1, name=name, backend="gloo", timeout=timedelta(seconds=30))


def test_a_group_that_is_closed_before_it_was_taken_is_left() -> None:
    """An engine that dies once it has joined: rank 0 has joined too, and nobody has the group."""
    before = set(_world.pg_names.values())
    group = hosted("closed-early")
    group._joining.result(30)
    assert group_named("closed-early") is not None
    group.close(broken=True)
    with pytest.raises(LookupError, match="has not joined a group closed-early"):
        group_named("closed-early")
    assert set(_world.pg_names.values()) == before


def test_a_group_that_was_taken_is_left() -> None:
    group = hosted("taken")
    assert group.joined() is group_named("taken")
    group.close()
    with pytest.raises(LookupError, match="has not joined a group taken"):
        group_named("taken")
