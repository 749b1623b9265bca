"""Where the tasks are that a run names in OSWorld's layout, and their two splits.

Guarantees: an id leads to a file that was found and can be judged here; a listed task that asks for more is left out, and a
warning counts and names all of these with the reasons. No task is in both splits.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from agentrl.tasks.gui.osworld.settings import VmSettings
from agentrl.tasks.gui.osworld.task_file import TaskFile, UnsupportedTask, read_meta, read_task
from agentrl.tasks.links import unlinked
from agentrl.tasks.names import Split
from groundwork.exceptions import ConfigError

logger = logging.getLogger(__name__)
EXAMPLES = "examples"
VARIABLES: dict[Split, str] = {"train": "GUI_TRAIN_META_PATH", "heldout": "GUI_EVAL_META_PATH"}


def ids(settings: VmSettings, split: Split) -> list[str]:
    """Return the ids of a split, by the meta files, without those that are left out.

    Raises:
        ConfigError: there is no meta file, one names a task that is not there, both name one, or none can be played.
    """
    listed, variable = _listed(settings), VARIABLES[split]
    if not listed[split]:
        raise ConfigError(f"{variable} names no task; set it to a meta file of OSWorld")
    known = _files(settings)
    return [*_supported(settings, variable, {item: known[item] for item in listed[split]})]


def pool_files(settings: VmSettings) -> Mapping[str, Path]:
    """Return the files of a pool's tasks by id: of both splits, or of the whole folder if there is no meta file.

    Raises:
        ConfigError: as for `ids`.
    """
    known, listed = _files(settings), _listed(settings)
    if not (settings.train_meta or settings.eval_meta):
        return _supported(settings, "GUI_TEST_CONFIG_BASE_DIR", known)
    both = {item: known[item] for many in listed.values() for item in many}
    return _supported(settings, " and ".join(name for split, name in VARIABLES.items() if listed[split]), both)


@cache
def load(path: Path, password: bool) -> TaskFile:
    """Return a task's file, checked; see `read_task`."""
    return read_task(path, password=password)


def _files(settings: VmSettings) -> dict[str, Path]:
    """Return the files of all tasks by id, such as ``osworld/chrome/ID``; none is read."""
    if settings.task_dir is None:
        raise ConfigError("GUI_TEST_CONFIG_BASE_DIR is not set; name a folder with examples/DOMAIN/ID.json")
    paths = sorted(Path(settings.task_dir).absolute().glob(f"{EXAMPLES}/*/*.json"))
    if not paths:
        raise ConfigError(f"GUI_TEST_CONFIG_BASE_DIR={settings.task_dir} has no {EXAMPLES}/DOMAIN/ID.json")
    root = Path(settings.task_dir).absolute()
    return {f"osworld/{path.parent.name}/{path.stem}": unlinked(root, path) for path in paths}


def _listed(settings: VmSettings) -> dict[Split, list[str]]:
    """Return the ids that the meta files name."""
    known = _files(settings)
    listed: dict[Split, list[str]] = {}
    paths: dict[Split, str | None] = {"train": settings.train_meta, "heldout": settings.eval_meta}
    for split, path in paths.items():
        meta = read_meta(Path(path)) if path else {}
        listed[split] = [f"osworld/{domain}/{item}" for domain, many in meta.items() for item in many]
        if missing := [item for item in listed[split] if item not in known]:
            said = f"{VARIABLES[split]}={path} names {missing[0]}"
            raise ConfigError(f"{said}, which GUI_TEST_CONFIG_BASE_DIR={settings.task_dir} does not have")
    if both := sorted(set(listed["train"]) & set(listed["heldout"])):
        raise ConfigError(
            f"{len(both)} tasks are in GUI_TRAIN_META_PATH and GUI_EVAL_META_PATH, such as {both[0]}; take them out of one"
        )
    return listed


def _supported(settings: VmSettings, variable: str, files: Mapping[str, Path]) -> dict[str, Path]:
    """Return the files that can be played and judged; a warning names the others."""
    reasons: dict[str, list[str]] = {}
    for name, path in files.items():
        try:
            load(path, settings.password is not None)
        except UnsupportedTask as error:
            reasons.setdefault(error.why, []).append(name)
    left_out = {name for many in reasons.values() for name in many}
    if not reasons:
        return dict(files)
    said = f"{len(left_out)} of the {len(files)} tasks of {variable} are left out:\n{_told(reasons.items())}"
    if len(left_out) == len(files):
        raise ConfigError(f"no task is left; {said}")
    logger.warning("%s", said)
    return {name: path for name, path in files.items() if name not in left_out}


def _told(reasons: Iterable[tuple[str, list[str]]]) -> str:
    """Return a line for each reason with the tasks that it concerns, the most frequent reason first."""
    most_first = sorted(reasons, key=lambda reason: (-len(reason[1]), reason[0]))
    return "\n".join(f"  {len(names)}: {why}; in {', '.join(sorted(names))}" for why, names in most_first)
