"""Space beside the ledger for deleting a session when the disk is full.

A deletion overwrites what it deletes, and SQLite first writes the overwritten pages to its log, so it needs about as much
space as the session has. Guarantees: the reserve never takes the last free space of a disk, and keeping or releasing it
never fails. Stateless: the file ``LEDGER.reserve`` is the state; it is empty while the reserve is released.
"""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

from groundwork.private_files import private

logger = logging.getLogger(__name__)

RESERVE_BYTES = 16 * 1024 * 1024
LEAST_FREE = 4
"""The disk must have this many times the reserve before the ledger takes it."""


def reserve_path(ledger: Path) -> Path:
    """Return the file of a ledger's reserve."""
    return ledger.with_name(f"{ledger.name}.reserve")


def keep_reserve(ledger: Path, size: int = RESERVE_BYTES) -> bool:
    """Take ``size`` bytes of the disk if there is plenty; return whether the reserve is there."""
    try:
        with open(reserve_path(ledger), "ab", opener=private) as file:
            if os.fstat(file.fileno()).st_size >= size:
                return True
            if shutil.disk_usage(ledger.parent).free < LEAST_FREE * size:
                return False
            try:
                os.posix_fallocate(file.fileno(), 0, size)
            except OSError:
                file.truncate(0)
                raise
    except OSError as error:
        logger.warning("no space is reserved for deleting sessions on a full disk: %s", error)
        return False
    return True


def renew_reserve(ledger: Path) -> None:
    """Take a released reserve again; a ledger that never had one gets none."""
    if reserve_path(ledger).exists():
        keep_reserve(ledger)


def release_reserve(ledger: Path) -> bool:
    """Give the reserve back to the disk; return whether there was one."""
    path = reserve_path(ledger)
    try:
        held = path.stat().st_size > 0
        os.truncate(path, 0)
    except OSError:
        return False
    return held
