"""The variables of screen tasks.

Guarantee: an invalid value is a `ConfigError` that names the variable and says what to type.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from groundwork.exceptions import ConfigError
from groundwork.variables import EnvironmentConfig, variable

BROWSER_DRIVERS, DESKTOP_DRIVERS = ("playwright", "selenium"), ("pyautogui",)


@dataclass(frozen=True, kw_only=True)
class GuiSettings(EnvironmentConfig):
    """Values of the variables; see their help."""

    backend: str | None = variable(
        "SCREENSHOT_BACKEND",
        None,
        "library that acts and takes the pictures: playwright or selenium in a browser, pyautogui on a desktop; default: "
        "playwright, and pyautogui for TASK_TYPE=desktop",
        choices=(*BROWSER_DRIVERS, *DESKTOP_DRIVERS),
    )
    coordinates: Literal["relative", "absolute", "qwen25"] = variable(
        "GUI_COORDINATE_TYPE",
        "relative",
        "what a model's coordinates count: thousandths, the screenshot's pixels, or Qwen2.5-VL's pixels",
    )
    observation: Literal["screenshot", "a11y_tree", "screenshot_a11y_tree"] = variable(
        "GUI_OBSERVATION_TYPE", "screenshot", "what the agent sees: a picture, the elements as text, or both"
    )
    sleep_seconds: float = variable(
        "GUI_SLEEP_AFTER_EXECUTION", 0.0, "seconds between an action and the next look", minimum=0.0, maximum=60.0
    )
    reset_wait_seconds: float = variable(
        "GUI_WAIT_AFTER_RESET", 0.0, "seconds between a reset and the first look", minimum=0.0, maximum=600.0
    )
    result_dir: str | None = variable(
        "GUI_RESULT_DIR", None, "folder for recordings of episodes; default: none are made"
    )
    video: bool = variable("GUI_VIDEO", False, "add an animation to each recording")

    def driver(self, *possible: str) -> str:
        """Return the library that drives a screen: the chosen one, else the first of the possible ones.

        Raises:
            ConfigError: the chosen one cannot.
        """
        if self.backend is None or self.backend in possible:
            return self.backend or possible[0]
        others = "miniwob" if self.backend in BROWSER_DRIVERS else "desktop"
        raise ConfigError(
            f"SCREENSHOT_BACKEND={self.backend} cannot drive these screens; use {' or '.join(possible)}, or set TASK_TYPE={others}"
        )

    @property
    def pictures(self) -> bool:
        """Whether the agent sees pictures."""
        return self.observation != "a11y_tree"

    @property
    def text(self) -> bool:
        """Whether the agent sees elements as text."""
        return self.observation != "screenshot"
