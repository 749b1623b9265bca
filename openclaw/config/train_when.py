"""When a run may train: the value of ``OPENCLAW_TRAIN_WHEN``. Imports only the standard library and the errors."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Self

from groundwork.exceptions import ConfigError

ALWAYS, IDLE = "always", "idle"
HOURS = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)-([01]?\d|2[0-3]):([0-5]\d)")


@dataclass(frozen=True)
class TrainWhen:
    """Always, while nobody talks, or between two times of the day.

    Attributes:
        text: as it was written.
        idle: whether it waits until nobody talks.
        hours: first minute of the day, and the one after the last; None: all day. The first may be the later one.

    Example:
        >>> from datetime import datetime
        >>> night = TrainWhen.read("22:30-06:00")
        >>> [night.open_at(datetime(2026, 11, 29, hour, 30).timestamp()) for hour in (21, 22, 5, 6)]
        [False, True, True, False]
    """

    text: str = ALWAYS
    idle: bool = False
    hours: tuple[int, int] | None = None

    @classmethod
    def read(cls, text: str) -> Self:
        """Return what a value means.

        Raises:
            ConfigError: it means nothing; the message says what to type.
        """
        if text in (ALWAYS, IDLE):
            return cls(text, idle=text == IDLE)
        if match := HOURS.fullmatch(text):
            hour, minute, end_hour, end_minute = map(int, match.groups())
            begin, end = 60 * hour + minute, 60 * end_hour + end_minute
            if begin != end:
                return cls(text, hours=(begin, end))
        raise ConfigError(
            f"OPENCLAW_TRAIN_WHEN={text!r} is no time; write {ALWAYS}, {IDLE} or hours of the day such as 22:00-06:00"
        )

    def open_at(self, now: float) -> bool:
        """Return whether the hours include a time in seconds since the epoch, by this machine's clock and time zone."""
        if self.hours is None:
            return True
        begin, end = self.hours
        local = time.localtime(now)
        minute = 60 * local.tm_hour + local.tm_min
        return begin <= minute < end if begin < end else minute >= begin or minute < end
