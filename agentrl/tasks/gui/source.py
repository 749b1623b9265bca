"""Which screen tasks an agent gets, by the variables TASK_TYPE and GUI_FAMILIES, and their rows for ``--prompt-data``.

* ``miniwob``: families of MiniWoB++, of GUI_FAMILIES or all. A domain is a family.
* ``osworld``: tasks below GUI_TEST_CONFIG_BASE_DIR, split by GUI_TRAIN_META_PATH and GUI_EVAL_META_PATH.

Guarantee: no task is in both splits.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agentrl.tasks.gui.miniwob.pages import TASKS_PER_FAMILY, families, families_of, task_name
from agentrl.tasks.gui.osworld.settings import VmSettings
from agentrl.tasks.gui.osworld.source import ids as osworld_ids
from agentrl.tasks.names import Split
from groundwork.exceptions import ConfigError
from groundwork.variables import EnvironmentConfig, variable

ENVIRONMENTS = {
    "miniwob": "agentrl.tasks.gui.miniwob.environment.MiniWobEnvironment",
    "osworld": "agentrl.tasks.gui.osworld.environment.OsWorldEnvironment",
}


@dataclass(frozen=True, kw_only=True)
class GuiSource(EnvironmentConfig):
    """Values of the variables; see their help."""

    task_type: Literal["miniwob", "osworld"] = variable("TASK_TYPE", "miniwob", "where the tasks come from")
    families: str | None = variable(
        "GUI_FAMILIES", None, "families of miniwob, separated by commas, such as click_test,enter_text; default: all"
    )

    @property
    def environment(self) -> str:
        """The environment of the tasks, as ``agentrl.pool --env`` takes it."""
        return ENVIRONMENTS[self.task_type]

    def ids(self, split: Split) -> list[str]:
        """Return the ids of a split's tasks.

        Raises:
            ConfigError: there is none, or a variable names what is not there.
        """
        if self.task_type == "osworld":
            return osworld_ids(VmSettings.from_env(), split)
        chosen = [part.strip().replace("-", "_") for part in (self.families or "").split(",") if part.strip()]
        if unknown := [item for item in chosen if item not in families()]:
            raise ConfigError(f"GUI_FAMILIES: there is no family {unknown[0]}; write some of {', '.join(families())}")
        wanted = [family for family in families_of(split) if not chosen or family in chosen]
        if not wanted:
            raise ConfigError(f"GUI_FAMILIES={self.families} has only held-out families; add one to train on")
        return [task_name(item, split, number) for number in range(TASKS_PER_FAMILY[split]) for item in wanted]


def domain_of(task_id: str) -> str:
    """Return the domain of a task: the family, or the application of OSWorld."""
    return task_id.split("/")[1]


def write_rows(ids: list[str], file: Path) -> int:
    """Write the rows of tasks to a file; return their number."""
    rows = [{"prompt": item, "metadata": {"task_id": item, "seed": 0, "domain": domain_of(item)}} for item in ids]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return len(rows)
