"""Which instances an agent gets, by the variables SWE_BENCHMARK and SWE_BENCH_PATH.

Without a path, and with ``local`` or ``easy``, which have no path, the instances are generated. Otherwise they are the rows of ``BENCHMARK.jsonl`` below the path, or of all files
``*.jsonl`` there. ``python -m agentrl.tasks.swe import`` writes such files. With ``harbor`` they are the task folders below the
path. Guarantees: the benchmarks of `FOR_EVALUATION` are never
offered for training, but for the one of `TRAINED_IF_NAMED` where SWE_BENCHMARK names it. What is offered for training otherwise is
in no benchmark for evaluation (`agentrl.tasks.swe.contamination`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

from agentrl.environment import Task, Weight
from agentrl.sandbox.interface import Limits
from agentrl.tasks.harbor import TASK_TOML, read_task
from agentrl.tasks.links import unlinked
from agentrl.tasks.names import SPLITS
from agentrl.tasks.swe.contamination import overlaps
from agentrl.tasks.swe.external import packages
from agentrl.tasks.swe.families import EASY, FAMILIES
from agentrl.tasks.swe.folders import FRAMEWORK, instance_of_folder
from agentrl.tasks.swe.generate import EASY_PER_FAMILY, TASKS_PER_FAMILY, generate, is_generated, task_name
from agentrl.tasks.swe.instance import Instance, instance_of
from groundwork.data_rows import json_objects
from groundwork.exceptions import ConfigError
from groundwork.variables import EnvironmentConfig, variable

LOCAL, SIMPLE = "local", "easy"
FOR_EVALUATION = ("swe-bench-lite", "swe-bench-verified")
TRAINED_IF_NAMED = ("swe-bench-lite",)
"""Guides train on it. Whoever does has to evaluate on another benchmark."""
BENCHMARKS = (LOCAL, SIMPLE, *FOR_EVALUATION, "swe-gym", "swe-smith", FRAMEWORK)
DATA_SETS = {
    "swe-bench-lite": "princeton-nlp/SWE-bench_Lite",
    "swe-bench-verified": "princeton-nlp/SWE-bench_Verified",
    "swe-gym": "SWE-Gym/SWE-Gym",
    "swe-smith": "SWE-bench/SWE-smith",
}
"""Where the rows of a benchmark come from, on the hub."""
INSTEAD = f"; or play generated instances, with SWE_BENCHMARK={LOCAL} and no SWE_BENCH_PATH"
REFUSED = "r2e-gym"
WHY_REFUSED = (
    f"{REFUSED} cannot be imported: its rows name neither a patch nor FAIL_TO_PASS, and its hidden tests are in its own images; write "
    f"its tasks as Harbor task folders, and set SWE_BENCHMARK={FRAMEWORK} and SWE_BENCH_PATH to their folder"
)
GENERATED_LIMITS = Limits(memory_mib=256, cpus=1.0, disk_mib=64)
ROW_LIMITS = Limits(memory_mib=2048, cpus=1.0, disk_mib=512)


@dataclass(frozen=True, kw_only=True)
class InstanceSource(EnvironmentConfig):
    """Values of the variables; see their help."""

    benchmark: str | None = variable(
        *("SWE_BENCHMARK", None, "which instances; default: generated ones, or all of SWE_BENCH_PATH"),
        choices=BENCHMARKS,
        flags=("--benchmark",),
    )
    path: str | None = variable("SWE_BENCH_PATH", None, "folder of instances: BENCHMARK.jsonl and repos/")
    step_limit: int = variable(
        "SWE_STEP_LIMIT", 20, "most commands of an episode", minimum=1, aliases=("STEP_LIMIT", "MAX_STEPS")
    )
    command_s: float = variable("SWE_COMMAND_SECONDS", 180.0, "most seconds of a command", above=0.0, maximum=600.0)
    test_s: float = variable(
        "SWE_TEST_SECONDS", 600.0, "most seconds of the tests of a verdict", above=0.0, maximum=3600.0
    )
    actions: str = variable(
        "SWE_ACTIONS", "code_block", "how an agent writes commands", choices=("code_block", "tool_calls")
    )

    @classmethod
    def from_env(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Return the configuration of this environment.

        Raises:
            ConfigError: a variable is invalid; the benchmark is known and cannot be played, or does not fit the path.
        """
        if environment.get("SWE_BENCHMARK") == REFUSED:
            raise ConfigError(WHY_REFUSED)
        return super().from_env(environment)

    def __post_init__(self) -> None:
        """Refuse a path that nothing would read.

        Raises:
            ConfigError: the instances are generated.
        """
        if self.benchmark in (LOCAL, SIMPLE) and self.path:
            raise ConfigError(
                f"SWE_BENCHMARK={self.benchmark} has generated instances, and SWE_BENCH_PATH={self.path} would not be read; "
                "leave one of them out"
            )

    @property
    def generated(self) -> bool:
        """Whether the instances are generated ones."""
        return self.benchmark in (LOCAL, SIMPLE) or (self.benchmark is None and self.path is None)

    @property
    def folder(self) -> Path | None:
        """The folder of the instances."""
        return Path(self.path) if self.path else None

    def limits(self, name: str) -> Limits:
        """Return the bounds of an instance's sandbox."""
        if self.generated or is_generated(name):
            return GENERATED_LIMITS
        task = self.instances[name].task if name in self.instances else None
        return task.settings.environment.limits if task is not None else ROW_LIMITS

    def ids(self, split: str | None = None) -> list[str]:
        """Return the ids of the instances, or those of one split.

        Raises:
            ConfigError: there is none, a file is unusable, or the benchmark is for evaluation only.
        """
        if split == "train":
            self.check_trainable()
        if self.generated:
            if shutil.which("git") is None:
                raise ConfigError("the instances need git; install it")
            simple = self.benchmark == SIMPLE
            families, number_of = (EASY, EASY_PER_FAMILY) if simple else (FAMILIES, TASKS_PER_FAMILY)
            return [
                task_name(family, item, number)
                for family in families
                for item in SPLITS
                if split in (None, item)
                for number in range(number_of[item])
            ]
        parts: dict[str, list[Instance]] = {"train": [], "heldout": []}
        for instance in self.instances.values():
            parts["heldout" if instance.benchmark in FOR_EVALUATION else "train"].append(instance)
        if common := overlaps(parts["train"], parts["heldout"]):
            raise ConfigError(
                f"{common[0]} ({len(common)} in all); import the training rows again, with --without EVALUATION.jsonl"
            )
        if split and self.benchmark in TRAINED_IF_NAMED:
            split = "heldout"  # the run is told which of the two it may have
        part = parts[split] if split else [*parts["train"], *parts["heldout"]]
        if not part:
            raise ConfigError(
                f"SWE_BENCH_PATH={self.path} has no instance for {split or 'anything'}; import some there"
            )
        return sorted(item.id for item in part)

    def check_trainable(self) -> None:
        """Refuse a benchmark for evaluation, unless it may be trained on where it is named.

        Raises:
            ConfigError: it is one.
        """
        if self.benchmark in FOR_EVALUATION and self.benchmark not in TRAINED_IF_NAMED:
            raise ConfigError(
                f"SWE_BENCHMARK={self.benchmark} is for evaluation only; train on another one, such as {LOCAL} or swe-gym"
            )

    def tasks(self) -> list[Task]:
        """Return the instances as tasks of a pool.

        Raises:
            ConfigError: a file is unusable.
        """
        bounds = {item: self.limits(item) for item in self.ids()}
        return [Task(bound, weight=Weight(of.memory_mib + of.disk_mib, of.cpus)) for bound, of in bounds.items()]

    def load(self, name: str) -> Instance:
        """Return an instance.

        Raises:
            ConfigError: there is none of this id.
        """
        if self.generated or is_generated(name):
            return generate(name)
        if (instance := self.instances.get(name)) is None:
            raise ConfigError(f"there is no instance {name!r} below SWE_BENCH_PATH={self.path}")
        return instance

    @cached_property
    def instances(self) -> dict[str, Instance]:
        """The instances of the rows, or of the task folders, by id."""
        if self.benchmark == FRAMEWORK and self.folder is not None:
            folders = sorted(path.parent for path in self.folder.rglob(TASK_TOML))
            if not folders:
                raise ConfigError(f"SWE_BENCH_PATH={self.folder} has no task folder; each has a {TASK_TOML}")
            return {folder.name: instance_of_folder(read_task(folder)) for folder in folders}
        results = {row.id: row for file in self._files for row in read_rows(file)}
        read = [result.id for result in results.values() if result.grading.needs_swebench]
        if read:
            try:
                packages()
            except ConfigError as error:
                raise ConfigError(f"{error}; it reads the logs of {len(read)} instances, such as {read[0]}") from error
        return results

    @property
    def _files(self) -> list[Path]:
        """The files of rows.

        Raises:
            ConfigError: there is none.
        """
        if self.folder is None:
            raise ConfigError(
                f"SWE_BENCHMARK={self.benchmark} needs SWE_BENCH_PATH=FOLDER; {self._how_to_import('FOLDER')}"
            )
        files = [self.folder / f"{self.benchmark}.jsonl"] if self.benchmark else sorted(self.folder.glob("*.jsonl"))
        missing = [file for file in files if not file.is_file()]
        if missing or not files:
            raise ConfigError(
                f"{missing[0] if missing else self.folder / '*.jsonl'} is missing; {self._how_to_import(str(self.folder))}"
            )
        return [unlinked(self.folder, file) for file in files]

    def _how_to_import(self, folder: str) -> str:
        if self.benchmark == FRAMEWORK:
            return f"set it to the folder of the task folders{INSTEAD}"
        benchmark = self.benchmark or "swe-gym"
        return (
            f"write it with: python -m agentrl.tasks.swe import {benchmark} ROWS {folder}, where ROWS has the data set "
            f"{DATA_SETS[benchmark]}{INSTEAD}"
        )


def read_rows(file: Path) -> list[Instance]:
    """Return the instances of a file of rows.

    Raises:
        ConfigError: it cannot be read, or a row is wrong.
    """
    try:
        return [instance_of(row) for _, row in json_objects(file)]
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}; name a file of rows") from error
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error
    except ValueError as error:
        raise ConfigError(f"{file} is not JSON lines: {error}; write one row per line") from error
