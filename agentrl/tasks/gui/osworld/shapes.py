"""The parameters of OSWorld's steps and getters, as types.

Guarantee: a key that has no effect here is an error of the reader that names it; none is ignored. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

MAX_SLEEP_SECONDS = 120.0
PASSWORD = "{CLIENT_PASSWORD}"
PLACEHOLDERS = (PASSWORD, "{SCREEN_WIDTH}", "{SCREEN_HEIGHT}", "{SCREEN_WIDTH_HALF}", "{SCREEN_HEIGHT_HALF}")
"""What `execute` and `command` replace in a command."""
_PLACEHOLDER = re.compile(r"\{(?:CLIENT|SCREEN)_[A-Z_]+\}")

Text = Annotated[str, Field(min_length=1)]
Words = Text | Annotated[list[str], Field(min_length=1)]


class Shape(BaseModel):
    """Keys of a JSON object; every other key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Fetched(Shape):
    """A file that comes from the internet in OSWorld, and from GUI_CACHE_DIR here."""

    url: Text
    path: Text


class Uploaded(Shape):
    """A file of OSWorld's folder; it comes from GUI_CACHE_DIR too."""

    local_path: Text
    path: Text


class Download(Shape):
    """Parameters of the step."""

    files: list[Fetched]


class Upload(Shape):
    """Parameters of the step."""

    files: list[Uploaded]


class Until(Shape):
    """When a command has been repeated often enough: one of these holds."""

    returncode: int | None = None
    stdout: str | None = None
    stderr: str | None = None

    def met(self, status: int, output: str, error: str) -> bool:
        """Return whether a run of the command was the last; any is, if nothing is asked for."""
        asked = (
            None if self.returncode is None else status == self.returncode,
            None if self.stdout is None else self.stdout in output,
            None if self.stderr is None else self.stderr in error,
        )
        return any(asked) or all(item is None for item in asked)


class Execute(Shape):
    """Parameters of ``execute`` and ``command``."""

    command: Words
    shell: bool = False
    until: Until = Until()


class Launch(Shape):
    """Parameters of the step."""

    command: Words
    shell: bool = False


class Opened(Shape):
    """Parameters of ``open`` and ``change_wallpaper``."""

    path: Text


class Window(Shape):
    """Parameters of ``activate_window`` and ``close_window``."""

    window_name: Text
    strict: bool = False
    by_class: bool = False


class Sleep(Shape):
    """Parameters of the step."""

    seconds: Annotated[float, Field(ge=0.0, le=MAX_SLEEP_SECONDS)]


STEP_SHAPES: dict[str, type[Shape]] = {
    "download": Download,
    "upload_file": Upload,
    "execute": Execute,
    "command": Execute,
    "launch": Launch,
    "open": Opened,
    "activate_window": Window,
    "close_window": Window,
    "change_wallpaper": Opened,
    "sleep": Sleep,
}


class File(Shape):
    """Parameters of ``vm_file`` and ``cloud_file``; ``dest`` names OSWorld's own copy, which is not made here."""

    path: Text | Annotated[list[Text], Field(min_length=1)]
    dest: str | list[str] = ""
    multi: bool = False
    gives: Annotated[list[int], Field(min_length=1)] = [0]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.multi != isinstance(self.path, list):
            raise ValueError("path is a list exactly if multi is true")
        if any(not 0 <= give < len(self.paths) for give in self.gives):
            raise ValueError("gives counts the files of path from 0")
        return self

    @property
    def paths(self) -> list[str]:
        """All files."""
        return self.path if isinstance(self.path, list) else [self.path]

    @property
    def given(self) -> list[str]:
        """The files that the metric reads, in their order."""
        return [path for number, path in enumerate(self.paths) if number in self.gives]


class VmFile(File):
    """Parameters of the getter; the last two shape the name of OSWorld's own copy."""

    time_suffix: bool = False
    time_format: str = ""


class Directory(Shape):
    """Parameters of the getter."""

    path: Text


class Tabs(Shape):
    """Parameters of the getter; the default is the port with which OSWorld starts Chrome."""

    port: int = 1337


class Rule(Shape):
    """What the task itself says; each metric has a type of its own for it."""

    rules: Any


class Nothing(Shape):
    """No parameters."""


GETTER_SHAPES: dict[str, type[Shape]] = {
    "vm_file": VmFile,
    "cloud_file": File,
    "vm_command_line": Launch,
    "vm_command_error": Launch,
    "vm_terminal_output": Nothing,
    "accessibility_tree": Nothing,
    "vm_screen_size": Nothing,
    "list_directory": Directory,
    "open_tabs_info": Tabs,
    "rule": Rule,
}


def placeholders(given: Any) -> list[str]:
    """Return the placeholders of OSWorld that JSON has, known or not."""
    if isinstance(given, str):
        return _PLACEHOLDER.findall(given)
    parts: Iterable[Any] = given.values() if isinstance(given, Mapping) else given if isinstance(given, list) else ()
    return [placeholder for part in parts for placeholder in placeholders(part)]


def complaint(where: str, error: ValidationError) -> str:
    """Return the first thing that is wrong, with the key: ``config.2.parameters.until.code: is not supported``."""
    first = error.errors(include_url=False)[0]
    said = {"extra_forbidden": "is not supported", "missing": "is missing"}.get(
        first["type"], first["msg"].removeprefix("Value error, ")
    )
    return f"{'.'.join([where, *map(str, first['loc'])])}: {said}"
