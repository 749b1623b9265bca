"""A generated task from its name: family, split and number.

Guarantee: a name always gives the same task, byte for byte; see `agentrl.tasks.names`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

from agentrl.tasks.harbor import SOLUTION, TEST, File, HarborTask, Machine, Settings, Stage, VerifierStage
from agentrl.tasks.names import Split, known_parts, random_of
from agentrl.tasks.shell.draft import Content
from agentrl.tasks.shell.families import FAMILIES

TRIAL = "trial.sh"
SETTINGS = Settings(
    agent=Stage(timeout_sec=600.0),
    verifier=VerifierStage(timeout_sec=60.0),
    environment=Machine(cpus=1.0, memory_mb=256, storage_mb=64),
)
TEST_SH = """#!/bin/bash
# Writes 1 or 0 to $REWARD_FILE. The agent's working directory is $TASK_HOME.
set -eu
cd "$(dirname "${BASH_SOURCE[0]}")"
home=${TASK_HOME:-/work}
reward=${REWARD_FILE:-/logs/verifier/reward.txt}
"""
TRIAL_SH = """\
# Who grades in several sandboxes has tried the agent's program in another one, without the answers beside it.
if [ -z "${TRIED:-}" ]; then cp -r trial "$home" && (cd "$home" && bash) < trial.sh || true; fi
"""
TASK_TOML = """\
version = "1.0"

[metadata]
category = {category}

[agent]
timeout_sec = {settings.agent.timeout_sec}

[verifier]
timeout_sec = {settings.verifier.timeout_sec}

[environment]
cpus = {settings.environment.cpus}
memory_mb = {settings.environment.memory_mb}
storage_mb = {settings.environment.storage_mb}
"""


def task_name(family: str, split: Split, number: int) -> str:
    """Return the name of a task, such as ``shell/sum_column/train/7``."""
    return f"shell/{family}/{split}/{number}"


def parse_name(name: str) -> tuple[str, Split, int]:
    """Return family, split and number of a name.

    Raises:
        ConfigError: there is no such task.
    """
    return known_parts("shell", name, lambda _: FAMILIES)


def generate(name: str) -> HarborTask:
    """Return the task of a name.

    Raises:
        ConfigError: there is no such task.
    """
    family, split, number = parse_name(name)
    draft = FAMILIES[family](random_of(family, split, number))
    tests = {
        TEST: _script(
            TEST_SH + TRIAL_SH * bool(draft.trial) + 'exec python3 -I check.py expected.json "$home" "$reward"\n'
        ),
        "check.py": File(_check_program()),
        "expected.json": File((json.dumps([*map(dict, draft.checks)], indent=1) + "\n").encode()),
    }
    if draft.trial:
        tests[TRIAL] = _script(f"{draft.trial}\n")
        tests |= _files(draft.trial_files, {})
    return HarborTask(
        name=name.replace("/", "-"),
        instruction=f"{draft.instruction}\n",
        environment=MappingProxyType(_files(draft.files, draft.modes)),
        tests=MappingProxyType(tests),
        solution=MappingProxyType({SOLUTION: _script(f"#!/bin/bash\nset -eu\n{draft.solution}\n")}),
        settings=SETTINGS,
    )


def task_toml(family: str) -> str:
    """Return the text of the settings of a family's tasks."""
    return TASK_TOML.format(category=json.dumps(family), settings=SETTINGS)


@cache
def _check_program() -> bytes:
    return (Path(__file__).parent / "check.py").read_bytes()


def _script(text: str) -> File:
    return File(text.encode(), 0o755)


def _files(contents: Mapping[str, Content], modes: Mapping[str, int]) -> dict[str, File]:
    return {
        path: File(content.encode() if isinstance(content, str) else content, modes.get(path, 0o644))
        for path, content in contents.items()
    }
