"""How new weights reach the policy engines."""

from __future__ import annotations

from slime.arguments.option import Group, Option

WEIGHT_SYNC = Group(
    "weight sync",
    (Option("--check-weight-update-equal", "after every push compare a checksum of each tensor on each engine", bool),),
)
