"""Folders of terminal-bench as tasks: ``task.yaml``, ``run-tests.sh``, ``tests/``, ``solution.sh``, files, perhaps an image.

The limits of ``task.yaml`` become the task's. The score is the share of pytest's tests that passed. Files beside these
are what the agent finds in its working directory. A folder with a Dockerfile or a compose file needs an image, which has a
name and is built beforehand. Guarantee: a folder that cannot run raises an error that says what to type.

The reward: It is computed in the pool, from what the tests printed and the status that the supervisor saw. Guarantees: 1 needs a test that passed, none that did
not, and status 0 of the test script. Printed lines alone never give it where the tests have a decoy (`agentrl.tasks.decoys`): whoever passes that
scores 0, and so does a log whose tests are not those of the files. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentrl.protocol import Verdict
from agentrl.tasks.harbor import (
    OF_AN_IMAGE,
    SOLUTION,
    File,
    Files,
    HarborTask,
    Machine,
    Settings,
    Stage,
    VerifierStage,
    files_below,
    read_settings,
    services_of,
)
from agentrl.tasks.pytest_log import BAD, COLOR, Status, results
from agentrl.tasks.shell.verify import Control, Ran, key_of, keys_in
from groundwork.exceptions import ConfigError

HEADER = re.compile(r"^=* ?short test summary info ?=*\r?$", re.MULTILINE)
COUNTED: tuple[Status, ...] = ("PASSED", "FAILED", "ERROR", "XFAIL")
MAX_DETAIL = 500
TASK_YAML = "task.yaml"
RUN_TESTS = "run-tests.sh"
PREFIX_VARIABLE = "TBENCH_DOCKER_PULL_PREFIX"
NOT_SEEN = (TASK_YAML, RUN_TESTS, "solution.sh", "solution.yaml", "solution.yml", *OF_AN_IMAGE)
FOLDERS_NOT_SEEN = ("tests/", "solution/")
Seconds = Annotated[float, Field(gt=0, le=7200)]


def statuses(log: str) -> Mapping[str, Status]:
    """Return the status of each test in the last summary of a log; skipped ones do not count."""
    plain = COLOR.sub("", log)
    headers = list(HEADER.finditer(plain))
    found: dict[str, Status] = {}
    for name, status in results(plain[headers[-1].end() :]) if headers else ():
        if status in COUNTED and found.get(name) not in BAD:
            found[name] = status
    return found


def share(log: str, status: int) -> float:
    """Return the share of passed tests; 0 if a summary without failures contradicts the status."""
    found = statuses(log)
    passed = sum(item == "PASSED" for item in found.values())
    return 0.0 if not found or (status != 0 and passed == len(found)) else passed / len(found)


def judge(tests: Files, ran: Ran, control: Control | None) -> Verdict:
    """Return the verdict on a run of the tests.

    Args:
        tests: the verifier's files.
        ran: what the tests printed, and how they ended.
        control: the run of the decoys; None if nothing in the tests can be changed.
    """
    if ran.result.timed_out or ran.result.exit_code is None:
        return Verdict(status="task_failed", score=0.0, detail="the tests did not end in time")
    log = _log(ran)
    score, found = share(log, ran.result.exit_code), statuses(log)
    detail = log.strip()[-MAX_DETAIL:]
    if control is not None and score:
        known = keys_in(tests)
        ours = {name for name in found if known.get(key_of(name), False) or ("[" not in name and key_of(name) in known)}
        passed = {name for name in ours if found[name] == "PASSED"}
        if why := _deceived(found, passed, control, score):
            score, detail = 0.0, why
        elif ours:
            score = len(passed) / len(found)
    return Verdict(status="ok" if score else "task_failed", score=score, detail=detail)


def _deceived(found: Mapping[str, Status], passed: set[str], control: Control, score: float) -> str:
    """Return why a run is not proof, by its control; empty if it may be one."""
    log = _log(control.ran)
    if not any(key_of(name) in control.failing for name in found):
        same = share(log, _status(control.ran)) >= score
        return "the tests pass with wrong expected values, too" if same else ""
    again = statuses(log)
    trapped = {key_of(name) for name in passed} & control.failing
    if any(status == "PASSED" and key_of(name) in trapped for name, status in again.items()):
        return "a test passes with a wrong expected value, too"
    if trapped and not any(status in BAD for status in again.values()):
        return "no test fails with wrong expected values"
    return ""


def _log(ran: Ran) -> str:
    return ran.result.output.decode(errors="replace")


def _status(ran: Ran) -> int:
    return 1 if ran.result.exit_code is None else ran.result.exit_code


class _Yaml(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)
    instruction: Annotated[str, Field(min_length=1)]
    parser_name: str = "pytest"
    max_agent_timeout_sec: Seconds = 360.0
    max_test_timeout_sec: Seconds = 60.0


def is_tbench(folder: Path) -> bool:
    """Return whether a folder is a task of terminal-bench."""
    return (folder / TASK_YAML).is_file()


def read_tbench(folder: Path, image_prefix: str | None = None) -> HarborTask:
    """Return the task in a folder.

    Args:
        folder: of the task.
        image_prefix: what stands before the folder's name in the name of its image, such as ``registry/tasks/``.

    Raises:
        ConfigError: something is missing or unusable.
    """
    settings = read_settings(folder, TASK_YAML, _Yaml, yaml.safe_load, yaml.YAMLError, "YAML")
    if settings.parser_name != "pytest":
        raise ConfigError(
            f"{folder / TASK_YAML}: parser_name {settings.parser_name!r} is not supported; use tests of pytest, or write a "
            "Harbor folder whose test.sh writes the reward"
        )
    below = files_below(folder)
    if RUN_TESTS not in below:
        raise ConfigError(f"{folder / RUN_TESTS} is missing; add the script that runs the tests")
    tests = {path.removeprefix("tests/"): file for path, file in below.items() if path.startswith("tests/")}
    return HarborTask(
        name=folder.name,
        instruction=settings.instruction,
        environment=MappingProxyType({} if _needs_image(below) else _seeds(below)),
        tests=MappingProxyType({**tests, RUN_TESTS: below[RUN_TESTS]}),
        solution=MappingProxyType({SOLUTION: below["solution.sh"]} if "solution.sh" in below else {}),
        settings=Settings(
            agent=Stage(timeout_sec=settings.max_agent_timeout_sec),
            verifier=VerifierStage(timeout_sec=settings.max_test_timeout_sec),
            environment=_machine(folder, _image(folder, below, image_prefix)),
        ),
        script=RUN_TESTS,
        judge=judge,
    )


def _needs_image(below: Files) -> bool:
    return any(name in below for name in OF_AN_IMAGE)


def _seeds(below: Files) -> dict[str, File]:
    """Return the files that the agent finds; it sees neither tests nor solution."""
    return {
        path: file for path, file in below.items() if path not in NOT_SEEN and not path.startswith(FOLDERS_NOT_SEEN)
    }


def _machine(folder: Path, image: str | None) -> Machine:
    try:
        return Machine(docker_image=image)
    except ValidationError:
        raise ConfigError(f"{folder}: {image!r} is not a name of an image; correct it") from None


def _image(folder: Path, below: Files, prefix: str | None) -> str | None:
    """Return the name of the folder's image; None if it needs none."""
    if not _needs_image(below):
        return None
    for name in OF_AN_IMAGE[1:]:
        services = services_of(folder, name) if name in below else []
        named = [
            service["image"] for service in services if isinstance(service.get("image"), str) and "build" not in service
        ]
        if len(named) == len(services) == 1 and "$" not in named[0]:
            return named[0]
        if len(services) > 1:
            raise ConfigError(
                f"{folder / name} has {len(services)} services; a sandbox is one machine, so leave it out"
            )
    if prefix is None:
        raise ConfigError(
            f"{folder} needs an image; build it with: docker build -t tasks/{folder.name} {folder}, then set "
            f"{PREFIX_VARIABLE}=tasks/ and start the pool with --sandbox docker --sandbox-image tasks/{folder.name}"
        )
    return f"{prefix}{folder.name}"
