"""Each finding of the self-test that breaks a promise is an error that names it."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.sandbox import probe
from tests.helpers.sandbox_findings import GOOD

BROKEN: list[tuple[str, Any, str]] = [
    ("uid", 0, "as root"),
    ("capabilities", 0x200000, "capabilities (200000)"),
    ("no_new_privileges", False, "gain privileges"),
    ("interfaces", ["lo", "eth0"], "interfaces"),
    ("env", ["HOME", "E2B_API_KEY"], "leak in: ['E2B_API_KEY']"),
    ("open_files", probe.CHECKED.open_files + 1, "files"),
    ("reached", ["8.8.8.8"], "addresses"),
    ("written", ["/etc"], "writable"),
    ("memory_held", False, "memory"),
    ("disk_mib", probe.CHECKED.disk_mib + 1, "MiB could be written"),
    ("processes", probe.CHECKED.processes + 1, "processes"),
]


def test_a_sandbox_that_holds() -> None:
    assert probe.broken_promises(GOOD, probe.CHECKED) == []


@pytest.mark.parametrize(("name", "value", "text"), BROKEN, ids=[name for name, _, _ in BROKEN])
def test_a_broken_promise_is_named(name: str, value: Any, text: str) -> None:
    (said,) = probe.broken_promises({**GOOD, name: value}, probe.CHECKED)
    assert text in said
    assert {each for each, _, _ in BROKEN} == set(GOOD), "every finding can break a promise"
