"""Which machine a process runs on, as far as sharing memory goes."""

from __future__ import annotations

import os
from pathlib import Path


def this_host() -> str:
    """Return the same text for two processes if one can open the other's files in ``/proc``: same kernel, same container."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"
