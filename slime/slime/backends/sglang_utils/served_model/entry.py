"""The classes of the checkpoint's model; see the package."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import sglang.srt.models

from slime.backends.sglang_utils.served_model import ARCHITECTURES, modules_that_define


def _classes(names: list[str]) -> list[Any]:
    package = sglang.srt.models
    modules = [
        importlib.import_module(f"{package.__name__}.{name}")
        for name in modules_that_define(names, Path(package.__path__[0]))
    ]
    listed = [getattr(module, "EntryClass", []) for module in modules]
    classes = [each for entry in listed for each in (entry if isinstance(entry, list) else [entry])]
    return [each for each in classes if each.__name__ in names]


EntryClass = _classes(os.environ[ARCHITECTURES].split(","))
