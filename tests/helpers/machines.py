"""GPUs on machines, without Ray."""

from __future__ import annotations

from slime.arguments.placement import Placement
from slime.ray.placement import Bundle, ReservedPlacement


def reserved(*places: str, per_engine: int = 2, judge: int = 0) -> ReservedPlacement:
    """Rollout GPUs and after them ``judge`` GPUs of judges, each on the named machine, where GPUs are numbered from 0."""
    bundles = tuple(
        Bundle(index, f"10.0.0.{place}", places[:index].count(place), place) for index, place in enumerate(places)
    )
    first = len(places) - judge
    rollout, judges = tuple(range(first)), tuple(range(first, len(places)))
    return ReservedPlacement(Placement((), rollout, judges, per_engine, per_engine), None, bundles)
