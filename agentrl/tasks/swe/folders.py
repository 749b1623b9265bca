"""Instances as task folders in the Harbor layout: generated ones are written so, and folders of others are read.

``environment/`` has the repository, ``tests/test.sh`` writes the reward, ``solution/solve.sh`` applies the solution. Guarantee: of such a folder's
instance the agent's changes are graded as those of any other, by the folder's own verifier.
"""

from __future__ import annotations

import json
from pathlib import Path

from agentrl.tasks.harbor import SOLUTION, TEST, File, HarborTask
from agentrl.tasks.shell.generate import SETTINGS, TEST_SH
from agentrl.tasks.swe.draft import HIDDEN, SHOWN
from agentrl.tasks.swe.generate import draft_of, files_of, generate
from agentrl.tasks.swe.instance import Grading, Instance

FRAMEWORK = "harbor"
JUDGE_SH = '# The tests in files/ run with unittest.\ncp -r files/. "$home"\nexec python3 -I judge.py wanted.json "$home" "$reward"\n'
SOLVE_SH = '#!/bin/bash\nset -eu\nhere=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)\ncd "${TASK_HOME:-/work}"\ngit apply "$here/solution.diff"\n'


def folder_of(name: str) -> HarborTask:
    """Return the task folder of a generated instance.

    Raises:
        ConfigError: there is no such instance.
    """
    instance, draft, here = generate(name), draft_of(name), Path(__file__).parent
    wanted = [*instance.grading.fail_to_pass, *instance.grading.pass_to_pass]
    tests = {
        TEST: File((TEST_SH + JUDGE_SH).encode(), 0o755),
        "judge.py": File((here / "judge.py").read_bytes()),
        "runner.py": File((here / "runner.py").read_bytes()),
        "wanted.json": File(json.dumps(wanted).encode()),
        f"files/{HIDDEN}": File(draft.hidden.encode()),
        f"files/{SHOWN}": File(draft.shown.encode()),
    }
    solution = {SOLUTION: File(SOLVE_SH.encode(), 0o755), "solution.diff": File(instance.grading.gold.encode())}
    return HarborTask(name.replace("/", "-"), instance.statement, files_of(name), tests, solution, SETTINGS)


def instance_of_folder(task: HarborTask) -> Instance:
    """Return the instance of a task folder."""
    return Instance(
        task.name,
        f"{FRAMEWORK}/{task.name}",
        "base",
        task.instruction,
        Grading(FRAMEWORK, "", "", (), (), ""),
        task.settings.environment.docker_image,
        benchmark=FRAMEWORK,
        task=task,
    )
