"""The process looks for garbage when nothing is under way, and at any moment when there is much of it."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from groundwork.garbage import MAX_NEW_OBJECTS
from lab.testkit.waiting import eventually
from openclaw.runtime.serve import collect_when_quiet, settle


class Knot:
    """Refers to itself, so that only the collector frees it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def nothing_else_to_look_at() -> None:
    """What other tests made makes each collection take long; it stays out of the collector's sight."""
    gc.freeze()


@pytest.fixture
def no_automatic_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_automatic_collection")
async def test_garbage_waits_until_nothing_is_under_way() -> None:
    busy, looks = True, 0

    def look() -> bool:
        nonlocal looks
        looks += 1
        return busy

    knot = weakref.ref(Knot())
    collecting = asyncio.create_task(collect_when_quiet(look, every=0.001))
    await eventually(lambda: looks > 3, True)
    assert knot() is not None
    busy = False
    await eventually(lambda: knot() is None, True)
    collecting.cancel()


def test_much_garbage_is_collected_whatever_goes_on() -> None:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    try:
        settle()
        assert gc.get_freeze_count() > frozen
        knots = [weakref.ref(Knot()) for _ in range(2 * MAX_NEW_OBJECTS)]
        assert sum(knot() is not None for knot in knots) < 1.1 * MAX_NEW_OBJECTS
    finally:
        gc.set_threshold(*before)
