"""The tasks below a folder in OSWorld's layout, and their two splits.

Guarantees: an id leads to a file that was found here. No task is in both splits.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from agentrl.exceptions import ConfigError
from agentrl.tasks.gui.osworld.getters import GETTERS
from agentrl.tasks.gui.osworld.metrics import METRICS
from agentrl.tasks.gui.osworld.settings import VmSettings
from agentrl.tasks.gui.osworld.setup import STEPS
from agentrl.tasks.gui.osworld.task_file import TaskFile, read_meta, read_task
from agentrl.tasks.names import Split

EXAMPLES = "examples"


def task_files(settings: VmSettings) -> dict[str, Path]:
    """Return the files of all tasks by id, such as ``osworld/chrome/ID``.

    Raises:
        ConfigError: there is none.
    """
    if settings.task_dir is None:
        raise ConfigError("GUI_TEST_CONFIG_BASE_DIR is not set; name a folder with examples/DOMAIN/ID.json")
    found = sorted(Path(settings.task_dir).absolute().glob(f"{EXAMPLES}/*/*.json"))
    if not found:
        raise ConfigError(f"GUI_TEST_CONFIG_BASE_DIR={settings.task_dir} has no {EXAMPLES}/DOMAIN/ID.json")
    return {f"osworld/{path.parent.name}/{path.stem}": path for path in found}


def ids(settings: VmSettings, split: Split) -> list[str]:
    """Return the ids of a split, by the meta files.

    Raises:
        ConfigError: there is no meta file, one names a task that is not there, or both name one.
    """
    known = task_files(settings)
    listed: dict[str, list[str]] = {}
    for name, variable, path in (
        ("train", "GUI_TRAIN_META_PATH", settings.train_meta),
        ("heldout", "GUI_EVAL_META_PATH", settings.eval_meta),
    ):
        meta = read_meta(Path(path)) if path else {}
        listed[name] = [f"osworld/{domain}/{each}" for domain, many in meta.items() for each in many]
        if missing := [each for each in listed[name] if each not in known]:
            raise ConfigError(f"{variable}={path} names {missing[0]}, which GUI_TEST_CONFIG_BASE_DIR does not have")
    if both := sorted(set(listed["train"]) & set(listed["heldout"])):
        raise ConfigError(
            f"{len(both)} tasks are in GUI_TRAIN_META_PATH and GUI_EVAL_META_PATH, such as {both[0]}; take them out of one"
        )
    if not listed[split]:
        variable = "GUI_TRAIN_META_PATH" if split == "train" else "GUI_EVAL_META_PATH"
        raise ConfigError(f"{variable} names no task; set it to a meta file of OSWorld")
    return listed[split]


@cache
def load(path: Path) -> TaskFile:
    """Return a task's file, checked."""
    return read_task(path, STEPS, GETTERS, METRICS)
