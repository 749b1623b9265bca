"""Findings of the self-test of `agentrl.sandbox.probe` that a test decides."""

from __future__ import annotations

import json
from typing import Any

from agentrl.sandbox.probe import CHECKED

GOOD: dict[str, Any] = {
    "uid": 1000,
    "capabilities": 0,
    "no_new_privileges": True,
    "interfaces": ["lo"],
    "env": ["HOME", "LANG", "PATH"],
    "open_files": CHECKED.open_files,
    "reached": [],
    "written": [],
    "memory_held": True,
    "disk_mib": CHECKED.disk_mib,
    "processes": CHECKED.processes - 2,
}


def saying(findings: dict[str, Any]) -> str:
    """Return a program that prints findings without looking."""
    return f"print({json.dumps(findings)!r})"
