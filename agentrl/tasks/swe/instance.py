"""A task: a repository at a commit, an issue, and the tests that tell whether it is resolved. In memory, and as a SWE-bench row.

Guarantee: what only the grader knows is in `Grading`, which no representation, error or record shows. `Instance.row` is for data
files of the operator only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from agentrl.tasks.harbor import HarborTask, ImageName
from agentrl.tasks.swe.diffs import paths_of
from groundwork.exceptions import ConfigError

FRAMEWORKS = ("unittest", "pytest")
"""That this project runs and reads itself."""
PYTEST_PARSERS = tuple(
    f"parse_log_{name}"
    for name in (
        *("pytest_options", "pytest_v2", "astropy", "matplotlib", "pydicom"),
        *("pylint", "requests", "scikit", "seaborn", "sphinx"),
    )
)
"""Of swebench: this project runs pytest, and they read its log, because they write ids in another way. Other parsers need a command."""


@dataclass(frozen=True, slots=True)
class Grading:
    """What only the grader knows.

    Attributes:
        framework: one of `FRAMEWORKS`, or a parser of swebench.
        command: that runs the tests in the repository; empty for `FRAMEWORKS`, and where pytest is run for one of `PYTEST_PARSERS`.
        test_patch: diff that brings the tests.
        fail_to_pass: ids of the tests that a solution makes pass.
        pass_to_pass: ids of those that it must not break.
        gold: diff of a solution, for the check of the instance.
    """

    framework: str
    command: str
    test_patch: str
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    gold: str

    @property
    def runs(self) -> str:
        """Which of `FRAMEWORKS` is run here, with traps; empty where a command is."""
        if self.framework in FRAMEWORKS:
            return self.framework
        return "pytest" if self.framework in PYTEST_PARSERS and not self.command else ""

    @property
    def needs_swebench(self) -> bool:
        """Whether a parser of swebench reads the log."""
        return self.framework.startswith("parse_log_")


@dataclass(frozen=True, slots=True)
class Instance:
    """A task.

    Attributes:
        id: without a slash, unless it is generated.
        repo: OWNER/NAME.
        commit: that the repository is at.
        statement: the issue.
        grading: see `Grading`.
        image: of a container that has what the repository needs.
        bug: diff that brings the mistake to the commit; empty if the commit has it. It is as secret as the solution.
        benchmark: where the row is from.
        task: whose verifier grades, for an instance of a task folder.
    """

    id: str
    repo: str
    commit: str
    statement: str
    grading: Grading = field(repr=False)
    image: str | None = None
    bug: str = field(default="", repr=False)
    benchmark: str = "local"
    task: HarborTask | None = field(default=None, repr=False)

    @property
    def variables(self) -> Mapping[str, str]:
        """Of all programs, if a task folder names some."""
        return self.task.settings.environment.env if self.task is not None else {}

    def row(self) -> dict[str, Any]:
        """Return the SWE-bench row, with the columns of this project; it has the solution in it."""
        grading = self.grading
        return {
            "instance_id": self.id,
            "repo": self.repo,
            "base_commit": self.commit,
            "problem_statement": self.statement,
            "patch": grading.gold,
            "test_patch": grading.test_patch,
            "FAIL_TO_PASS": json.dumps(grading.fail_to_pass),
            "PASS_TO_PASS": json.dumps(grading.pass_to_pass),
            "log_parser": grading.framework,
            "test_cmd": grading.command,
            "image_name": self.image,
            "bug_patch": self.bug,
            "benchmark": self.benchmark,
        }


def _list(value: Any) -> Any:
    """Read a list that a data set keeps as a JSON text."""
    return json.loads(value) if isinstance(value, str) else list(value)


Ids = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_list)]


class Row(BaseModel):
    """The columns that are read, those of `Instance.row`; others are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, hide_input_in_errors=True)
    instance_id: Annotated[str, Field(pattern=r"^[\w][\w./+-]{0,199}$")]
    repo: Annotated[str, Field(pattern=r"^[\w.-]+/[\w.-]+$")]
    base_commit: Annotated[str, Field(pattern=r"^[\w./-]{1,200}$")]
    problem_statement: Annotated[str, Field(min_length=1)]
    patch: Annotated[str, Field(min_length=1)]
    test_patch: str = ""
    FAIL_TO_PASS: Annotated[Ids, Field(min_length=1)]
    PASS_TO_PASS: Ids = ()
    log_parser: str = "pytest"
    test_cmd: str | None = None
    image_name: ImageName | None = None
    bug_patch: str | None = None
    benchmark: str = "local"


def instance_of(row: Mapping[str, Any]) -> Instance:
    """Return the instance of a row.

    Raises:
        ConfigError: a column is missing or wrong; it shows the columns' names only.
    """
    named = row.get("instance_id", "a row without instance_id")
    try:
        read = Row.model_validate({name: value for name, value in row.items() if value is not None})
    except (ValidationError, ValueError) as error:
        problems = (
            [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
            if isinstance(error, ValidationError)
            else [str(error)]
        )
        raise ConfigError(f"{named}: {'; '.join(problems)}; correct these columns") from None
    if ".." in f"{read.instance_id} {read.repo} {read.base_commit}" or read.base_commit.startswith("-"):
        raise ConfigError(f"{named}: instance_id, repo and base_commit cannot have such a path; correct them")
    if read.log_parser not in (*FRAMEWORKS, *PYTEST_PARSERS) and not read.test_cmd:
        raise ConfigError(
            f"{named}: log_parser {read.log_parser} needs the test_cmd whose log it reads; add it, or use pytest"
        )
    if read.log_parser not in FRAMEWORKS and not re.fullmatch(r"parse_log_\w+", read.log_parser):
        raise ConfigError(
            f"{named}: log_parser {read.log_parser} is none; write {', '.join(FRAMEWORKS)} or parse_log_NAME of swebench"
        )
    for name, diff in (("patch", read.patch), ("test_patch", read.test_patch)):
        if diff and not paths_of(diff):
            raise ConfigError(
                f"{named}: {name} is not a diff; it has to begin its files with 'diff --git a/PATH b/PATH'"
            )
    return Instance(
        read.instance_id,
        read.repo,
        read.base_commit,
        read.problem_statement,
        Grading(
            read.log_parser, read.test_cmd or "", read.test_patch, read.FAIL_TO_PASS, read.PASS_TO_PASS, read.patch
        ),
        read.image_name,
        read.bug_patch or "",
        read.benchmark,
    )
