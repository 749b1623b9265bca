"""Which machine a process runs on, as far as sharing memory goes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from slime.exceptions import ConfigurationError


def this_host() -> str:
    """Return the same text for two processes if one can open the other's files in ``/proc``: same kernel, same container."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"


def check_same_host(hosts: Sequence[Sequence[str]]) -> None:
    """Compare the machines of each policy engine, in order, with this process's.

    Raises:
        ConfigurationError: when one cannot share memory with it.
    """
    here = this_host()
    for position, machines in enumerate(hosts):
        if set(machines) != {here}:
            raise ConfigurationError(
                f"policy engine {position} is not on the machine of training rank 0; use --update-weight-transport nccl"
            )
