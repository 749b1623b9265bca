"""Which screen tasks an agent gets, by the variables TASK_TYPE, SCREENSHOT_BACKEND and GUI_FAMILIES, and their rows for ``--prompt-data``.

* ``miniwob``: families of MiniWoB++, of GUI_FAMILIES or all. A domain is a family.
* ``desktop``: windows on a desktop by pyautogui, in families as well.
* ``osworld``: tasks below GUI_TEST_CONFIG_BASE_DIR, split by GUI_TRAIN_META_PATH and GUI_EVAL_META_PATH.

Guarantee: no task is in both splits.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, Self

from agentrl.tasks.gui.desktop import windows
from agentrl.tasks.gui.miniwob import pages
from agentrl.tasks.gui.osworld.settings import VmSettings
from agentrl.tasks.gui.osworld.source import ids as osworld_ids
from agentrl.tasks.gui.settings import BROWSER_DRIVERS, DESKTOP_DRIVERS, GuiSettings
from agentrl.tasks.names import Split
from groundwork.exceptions import ConfigError
from groundwork.variables import EnvironmentConfig, variable


class Kind(NamedTuple):
    """A value of TASK_TYPE.

    Attributes:
        environment: as ``agentrl.pool --env`` takes it.
        drivers: values of SCREENSHOT_BACKEND that are possible.
        families: module with the families and names of its tasks; None if files list them.
    """

    environment: str
    drivers: Sequence[str]
    families: ModuleType | None = None


KINDS = {
    "miniwob": Kind("agentrl.tasks.gui.miniwob.environment.MiniWobEnvironment", BROWSER_DRIVERS, pages),
    "desktop": Kind("agentrl.tasks.gui.desktop.environment.DesktopEnvironment", DESKTOP_DRIVERS, windows),
    "osworld": Kind("agentrl.tasks.gui.osworld.environment.OsWorldEnvironment", DESKTOP_DRIVERS),
}
"""The first one whose driver SCREENSHOT_BACKEND names is the default."""


@dataclass(frozen=True, kw_only=True)
class GuiSource(EnvironmentConfig):
    """Values of the variables; see their help."""

    task_type: str | None = variable(
        *(
            "TASK_TYPE",
            None,
            "where the tasks come from; default: miniwob, and desktop with SCREENSHOT_BACKEND=pyautogui",
        ),
        choices=tuple(KINDS),
    )
    families: str | None = variable(
        *(
            "GUI_FAMILIES",
            None,
            "families of miniwob or desktop, separated by commas, such as click_test,enter_text; default: all",
        )
    )
    backend: str | None = None
    """Value of SCREENSHOT_BACKEND."""

    @classmethod
    def from_env(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Return the configuration of this environment.

        Raises:
            ConfigError: a variable is invalid, or the library cannot drive the tasks.
        """
        settings = GuiSettings.from_env(environment)
        source = replace(super().from_env(environment), backend=settings.backend)
        settings.driver(*source.kind.drivers)
        return source

    @property
    def name(self) -> str:
        """What kind of tasks they are, a key of `KINDS`."""
        named = (name for name, kind in KINDS.items() if self.backend in (None, *kind.drivers))
        return self.task_type or next(named)

    @property
    def kind(self) -> Kind:
        """The kind of the tasks."""
        return KINDS[self.name]

    @property
    def driver(self) -> str:
        """The library that drives their screens."""
        return self.backend or self.kind.drivers[0]

    def ids(self, split: Split) -> list[str]:
        """Return the ids of a split's tasks.

        Raises:
            ConfigError: there is none, or a variable names what is not there.
        """
        of = self.kind.families
        if of is None:
            return osworld_ids(VmSettings.from_env(), split)
        chosen = [part.strip().replace("-", "_") for part in (self.families or "").split(",") if part.strip()]
        if unknown := [item for item in chosen if item not in of.families()]:
            raise ConfigError(
                f"GUI_FAMILIES: there is no family {unknown[0]}; write some of {', '.join(of.families())}"
            )
        wanted = [family for family in of.families_of(split) if not chosen or family in chosen]
        if not wanted:
            raise ConfigError(f"GUI_FAMILIES={self.families} has only held-out families; add one to train on")
        return [of.task_name(item, split, number) for number in range(of.TASKS_PER_FAMILY[split]) for item in wanted]


def domain_of(task_id: str) -> str:
    """Return the domain of a task: the family, or the application of OSWorld."""
    return task_id.split("/")[1]


def write_rows(ids: list[str], file: Path) -> int:
    """Write the rows of tasks to a file; return their number."""
    rows = [{"prompt": item, "metadata": {"task_id": item, "seed": 0, "domain": domain_of(item)}} for item in ids]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return len(rows)
