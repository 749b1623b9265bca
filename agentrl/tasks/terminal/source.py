"""Which tasks a terminal agent gets, by the variables TASK_TYPE and DATASET_DIR.

* ``bash_commands``: the generated families of `agentrl.tasks.shell`.
* ``harbor``: task folders of Harbor or SETA below DATASET_DIR; ``tbench``: those of terminal-bench.
* ``jsonl``: the folders that the rows of a file name, below the file's folder.

Guarantees: an id of a client leads to a folder that the server found itself, below DATASET_DIR. A folder that cannot run
raises an error with its name.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from agentrl.environment import Task, Weight
from agentrl.tasks.harbor import TASK_TOML, HarborTask, read_task
from agentrl.tasks.links import unlinked
from agentrl.tasks.names import SPLITS
from agentrl.tasks.shell.environment import TASKS_PER_FAMILY
from agentrl.tasks.shell.families import FAMILIES, NEEDS
from agentrl.tasks.shell.generate import generate, task_name
from agentrl.tasks.terminal.tbench import PREFIX_VARIABLE, is_tbench, read_tbench
from groundwork.data_rows import json_objects
from groundwork.exceptions import ConfigError
from groundwork.variables import EnvironmentConfig, variable


@dataclass(frozen=True, kw_only=True)
class TaskSource(EnvironmentConfig):
    """Values of the variables; see their help."""

    task_type: Literal["bash_commands", "harbor", "tbench", "jsonl"] = variable(
        "TASK_TYPE", "bash_commands", "where the tasks come from"
    )
    dataset_dir: str | None = variable(
        "DATASET_DIR", None, "folder of task folders; of jsonl, the file whose rows name them"
    )
    image_prefix: str | None = variable(
        PREFIX_VARIABLE, None, "before a terminal-bench folder's name, the name of its image"
    )

    @property
    def has_splits(self) -> bool:
        """Whether some of the tasks are held out; folders of others say nothing of it."""
        return self.task_type == "bash_commands"

    def ids(self, split: str | None = None) -> list[str]:
        """Return the ids of the tasks; with splits (`has_splits`), those of one.

        Raises:
            ConfigError: there is none, or DATASET_DIR is missing.
        """
        if self.task_type == "bash_commands":
            return [
                task_name(family, item, number)
                for family in FAMILIES
                if family not in NEEDS or shutil.which(NEEDS[family])
                for item in SPLITS
                if split in (None, item)
                for number in range(TASKS_PER_FAMILY[item])
            ]
        folders = sorted(self._folders)
        if not folders:
            raise ConfigError(f"DATASET_DIR={self.dataset_dir} has no task of TASK_TYPE={self.task_type}; name another")
        return folders

    def tasks(self) -> list[Task]:
        """Return the tasks with what each takes from a pool.

        Raises:
            ConfigError: a folder cannot run.
        """
        if self.task_type == "bash_commands":
            limits = generate(task_name("write_word", "train", 0)).settings.environment.limits
            return [Task(item, weight=Weight(limits.memory_mib + limits.disk_mib, limits.cpus)) for item in self.ids()]
        return [_weighed(item, self.load(item)) for item in self.ids()]

    def load(self, task_id: str) -> HarborTask:
        """Return a task.

        Raises:
            ConfigError: there is none of this id, or its folder cannot run.
        """
        if self.task_type == "bash_commands":
            return generate(task_id)
        folder = self._folders.get(task_id)
        if folder is None:
            raise ConfigError(f"there is no task {task_id!r} below DATASET_DIR={self.dataset_dir}")
        return read_tbench(folder, self.image_prefix) if is_tbench(folder) else read_task(folder)

    @cached_property
    def _folders(self) -> dict[str, Path]:
        """The task folders by id: their path below DATASET_DIR; found once, since a search reads the whole tree."""
        if not self.dataset_dir:
            raise ConfigError(f"TASK_TYPE={self.task_type} needs DATASET_DIR; set it to the folder of the tasks")
        root = Path(self.dataset_dir)
        if self.task_type == "jsonl":
            return dict(_named(root))
        if not root.is_dir():
            raise ConfigError(f"DATASET_DIR={root} is not a folder; set it to the folder of the tasks")
        marker = TASK_TOML if self.task_type == "harbor" else "task.yaml"
        return {path.parent.relative_to(root).as_posix(): path.parent for path in root.rglob(marker)}


def _named(file: Path) -> Iterator[tuple[str, Path]]:
    """Yield id and folder of the tasks that a file of rows names.

    Raises:
        ConfigError: the file or a row is unusable; a path that leaves the file's folder is.
    """
    root = file.parent.resolve()
    try:
        rows = list(json_objects(file))
    except OSError as error:
        raise ConfigError(f"DATASET_DIR={file}: {error.strerror}; name a file with rows of tasks") from error
    except ValueError as error:
        raise ConfigError(f"DATASET_DIR={file} is not JSON lines: {error}; write one row per line") from error
    for number, row in rows:
        try:
            name = row["task"]["task_path"]
            folder = Path(os.path.normpath(root / name))
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{file}: line {number} has no task with a task_path ({error}); correct it") from error
        if not folder.is_relative_to(root):
            raise ConfigError(f"{file}: line {number}: {name} leaves {root}; put the task below it")
        yield name, unlinked(root, folder)


def _weighed(name: str, task: HarborTask) -> Task:
    limits = task.settings.environment.limits
    return Task(name, weight=Weight(limits.memory_mib + limits.disk_mib, limits.cpus))
