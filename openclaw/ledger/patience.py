"""Waiting for a ledger that cannot be written now; for threads that have nothing else to do."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from openclaw.ledger.exceptions import LedgerUnavailableError

logger = logging.getLogger(__name__)

PAUSE_SECONDS = 2.0
T = TypeVar("T")


def until_available(call: Callable[[], T], stopped: threading.Event) -> T:
    """Return ``call()``, made again every `PAUSE_SECONDS` while the ledger is full, locked or not writable.

    Raises:
        InterruptedError: when ``stopped`` is set meanwhile.
    """
    while True:
        try:
            return call()
        except LedgerUnavailableError as error:
            logger.error("waiting for the ledger: %s", error)
            if stopped.wait(PAUSE_SECONDS):
                raise InterruptedError(f"given up while waiting for the ledger: {error}") from error
