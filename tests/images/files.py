"""Reads ``Dockerfile``, ``.dockerignore`` and ``compose.yaml`` as Docker does, as far as this project's files go."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import yaml

Services = dict[str, dict[str, Any]]


@dataclass
class Stage:
    """One build target: its base image and its instructions in order."""

    base: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def all(self, name: str) -> list[str]:
        """Return what the instructions of a name say."""
        return [value for each, value in self.instructions if each == name]

    def copied_before(self, run: str) -> list[str]:
        """Return the sources of the COPY instructions before a RUN."""
        before = self.instructions[: self.instructions.index(("RUN", run))]
        return [source for name, value in before if name == "COPY" for source in sources(value)]


def sources(value: str) -> list[str]:
    """Return what a COPY instruction copies."""
    words = [word for word in shlex.split(value) if not word.startswith("--")]
    return words[:-1]


def read_stages(repository: Path) -> dict[str, Stage]:
    """Return the targets of the Dockerfile by name."""
    lines = [line for line in (repository / "Dockerfile").read_text().splitlines() if not line.lstrip().startswith("#")]
    found: dict[str, Stage] = {}
    stage = Stage("")
    for instruction in "\n".join(lines).replace("\\\n", " ").splitlines():
        name, _, value = instruction.strip().partition(" ")
        if name == "FROM":
            base, word, target = value.split()
            assert word == "AS"
            stage = found[target] = Stage(base)
        elif name:
            stage.instructions.append((name, " ".join(value.split())))
    return found


def left_out(repository: Path, path: str) -> bool:
    """Return whether ``.dockerignore`` keeps a path, relative to the repository, from an image."""
    for pattern in (repository / ".dockerignore").read_text().split():
        anywhere = pattern.removeprefix("**/")
        if fnmatch(path, pattern) or (anywhere != pattern and fnmatch(path.rpartition("/")[2], anywhere)):
            return True
    return False


def read_services(repository: Path) -> Services:
    """Return the services of compose.yaml by name."""
    return yaml.safe_load((repository / "compose.yaml").read_text())["services"]


def plain(text: str, variables: Mapping[str, str] | None = None) -> str:
    """Return a text as Compose hands it on: variables replaced, and ``$$`` a dollar."""
    known = variables or {}
    parts = text.split("$$")
    filled = [re.sub(r"\$\{(\w+)(?::-([^}]*))?\}", lambda m: known.get(m[1]) or m[2] or "", part) for part in parts]
    return "$".join(filled)


def words_of(value: str | list[str], variables: Mapping[str, str] | None = None) -> list[str]:
    """Return a command of a service as its process gets it."""
    return [plain(word, variables) for word in ([value] if isinstance(value, str) else value)]


def health_of(service: Mapping[str, Any], variables: Mapping[str, str] | None = None) -> list[str]:
    """Return the command of a service's health check."""
    kind, *words = words_of(service["healthcheck"]["test"], variables)
    return ["/bin/sh", "-c", *words] if kind == "CMD-SHELL" else words
