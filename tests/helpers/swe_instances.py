"""Generated instances for tests: one of each mistake, and their tests run beside this process, since no agent wrote them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from agentrl.tasks.names import SPLITS
from agentrl.tasks.swe.draft import HIDDEN, Draft
from agentrl.tasks.swe.families import FAMILIES
from agentrl.tasks.swe.generate import TASKS_PER_FAMILY, draft_of, task_name
from agentrl.tasks.swe.logs import Status, lines_of_unittest

RUNNER = Path(draft_of.__code__.co_filename).parent / "runner.py"


def names() -> list[str]:
    """Return the names of all instances that a pool offers."""
    return [
        task_name(family, split, number)
        for family in FAMILIES
        for split in SPLITS
        for number in range(TASKS_PER_FAMILY[split])
    ]


def of_each_mistake() -> list[str]:
    """Return one name for each mistake, told apart by the tests that it breaks and by how its text begins."""
    found: dict[tuple[str, ...], str] = {}
    for name in names():
        mistake = draft_of(name).mistake
        found.setdefault((name.split("/")[1], *mistake.breaks, mistake.right[:7]), name)
    return list(found.values())


def ran(folder: Path, files: Mapping[str, str], draft: Draft) -> tuple[int, dict[str, Status]]:
    """Return exit status and results of the tests of a repository, with the hidden ones."""
    for path, text in {**files, HIDDEN: draft.hidden}.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    asked = json.dumps({"modules": ["tests.test_issue", "tests.test_package"]})
    command = [sys.executable, "-I", "-S", "-B", str(RUNNER)]
    done = subprocess.run(command, cwd=folder, input=asked, capture_output=True, text=True, check=False, timeout=100)
    return done.returncode, dict(lines_of_unittest(done.stdout))
