"""A clock that jumps makes nothing old, and time in which nobody ran does."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from openclaw.gateway.app import SECONDS_A_DAY, SteadyClock, delete_old, uptime
from openclaw.gateway.auth import EpisodeKey, EpisodeKeys
from openclaw.ledger.store import Ledger
from tests.helpers.episodes import create

DAYS = 30.0


class Times:
    """A wall clock and an uptime that a test moves."""

    def __init__(self) -> None:
        self.wall, self.passed = 1e9, 100.0
        self.clock = SteadyClock(lambda: self.wall, lambda: self.passed)

    def pass_(self, seconds: float) -> None:
        self.wall += seconds
        self.passed += seconds


class Kept:
    """Remembers up to when sessions or episodes were deleted."""

    def __init__(self) -> None:
        self.since: list[float] = []

    async def forget_quiet(self, since: float) -> int:
        self.since.append(since)
        return 0


async def deleted_until(clock: SteadyClock) -> float:
    kept = Kept()
    service: Any = SimpleNamespace(config=SimpleNamespace(retention_days=DAYS), sessions=kept, episodes=kept)
    await delete_old(service, clock)
    assert len(set(kept.since)) == 1, "sessions and episodes alike"
    return kept.since[0]


@pytest.mark.parametrize("jump", [40 * SECONDS_A_DAY, 3600.0, -40 * SECONDS_A_DAY])
async def test_a_jump_deletes_nothing_and_time_that_passes_does(jump: float) -> None:
    times = Times()
    start = times.wall
    times.pass_(SECONDS_A_DAY)
    times.wall += jump
    assert await deleted_until(times.clock) <= start + (1 - DAYS) * SECONDS_A_DAY
    times.pass_(39 * SECONDS_A_DAY)
    assert await deleted_until(times.clock) == start + (40 - DAYS) * SECONDS_A_DAY + min(jump, 0)


async def test_the_next_start_believes_the_clock() -> None:
    """So that what lay for 40 days in a run that was down is deleted; a jump is believed then, too."""
    times = Times()
    last = times.wall
    times.wall += 40 * SECONDS_A_DAY
    times.passed = 5.0  # the machine has booted again
    again = SteadyClock(lambda: times.wall, lambda: times.passed)
    assert await deleted_until(again) == last + (40 - DAYS) * SECONDS_A_DAY


def test_a_jump_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    times = Times()
    for jump in (86400.0, -86400.0):
        times.pass_(10.0)
        assert times.clock.jump() == 0.0
        times.wall += jump
        assert [times.clock.jump(), times.clock.jump()] == [jump, 0.0]
    times.wall += 20.0
    assert times.clock.jump() == 0.0, "a correction"
    assert [line.split(":")[0].rpartition(" by ")[2] for line in caplog.messages] == ["+86400 s", "-86400 s"]


def test_uptime_goes_on() -> None:
    assert 0.0 <= uptime() <= uptime()


@pytest.mark.parametrize("jump", [40 * SECONDS_A_DAY, -40 * SECONDS_A_DAY])
def test_open_episodes_keep_the_time_they_had_left(tmp_path: Path, jump: float) -> None:
    now = [1e9]
    ledger = Ledger(tmp_path / "ledger.sqlite", clock=lambda: now[0])
    keys = EpisodeKeys(lambda: now[0])
    episode = create(ledger, ttl=50.0)
    keys.add(b"k", EpisodeKey(episode.id, "alice", "alice", episode.expires_at))
    now[0] += 20.0 + jump
    ledger.episodes.move_expiry(jump)
    keys.move_expiry(jump)
    now[0] += 29.0
    assert ledger.episodes.expire() == []
    assert keys.find(b"k") is not None
    now[0] += 1.0
    assert [each.id for each in ledger.episodes.expire()] == [episode.id]
    assert keys.find(b"k") is None
