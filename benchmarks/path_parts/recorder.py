"""Records which functions of the repository a piece of work enters, in every thread of this process.

Guarantees: each function is recorded once, at its first entry, with the module whose function called it; functions of
libraries, of tests and of benchmarks leave no trace. Nothing is recorded outside `Recorder.recording`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent.parent
EVENT_LOOP = "-"
"""Caller of a function that a library calls: the web server, the event loop, torch, a new thread."""


@dataclass(frozen=True)
class Entry:
    """First entry of a function."""

    caller: str
    module: str
    function: str


def module_of(path: str) -> str | None:
    """Return the module of a source file that ships with the product, None for any other file."""
    try:
        parts = Path(path).relative_to(REPOSITORY).with_suffix("").parts
    except ValueError:
        return None
    if parts[:3] == ("slime", "slime", "contract"):  # the stand-in engine
        return None
    if parts[0] == "slime":
        parts = parts[1:]
    elif parts[0] in ("openclaw-test", "lab", "benchmarks", "tests", "scripts", "extensions") or parts[0].startswith(
        "."
    ):
        return None
    elif "-" in parts[0]:  # a method folder is on the import path itself
        parts = parts[1:]
    return ".".join(part for part in parts if part != "__init__")


class Recorder:
    """Install it before the threads of interest start: they take over the profile function when they are born."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._modules: dict[CodeType, str | None] = {}
        self._seen: set[CodeType] = set()
        self._active = False

    def install(self) -> None:
        """Watch this thread and all that start from now on."""
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def remove(self) -> None:
        """Stop watching this thread and those that start from now on."""
        sys.setprofile(None)
        threading.setprofile(None)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record what is entered meanwhile, in all watched threads."""
        self._active = True
        try:
            yield
        finally:
            self._active = False

    def start(self) -> None:
        """Record from now on what is entered in all watched threads, until `stop`."""
        self._active = True

    def stop(self) -> None:
        """Record nothing more."""
        self._active = False

    def _profile(self, frame: FrameType, event: str, _: Any) -> None:
        if not self._active or event != "call" or frame.f_code in self._seen:
            return
        code = frame.f_code
        self._seen.add(code)
        module = self._module(code)
        if module is not None and not code.co_name.startswith(
            "<"
        ):  # comprehensions and lambdas belong to their function
            self.entries.append(Entry(self._caller(frame), module, code.co_qualname.replace("<locals>.", "")))

    def _caller(self, frame: FrameType) -> str:
        back = frame.f_back
        while back is not None:
            module = self._module(back.f_code)
            if module is not None:
                return module
            back = back.f_back
        return EVENT_LOOP

    def _module(self, code: CodeType) -> str | None:
        if code not in self._modules:
            self._modules[code] = module_of(code.co_filename)
        return self._modules[code]
