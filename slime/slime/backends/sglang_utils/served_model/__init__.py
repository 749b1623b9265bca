"""The package of models that an engine gives to SGLang (``SGLANG_EXTERNAL_MODEL_PACKAGE``): that of its checkpoint.

By default SGLang imports the modules of all its models, more than two hundred, to find one class. With a package of this kind it
looks there first, and imports all only if the class is not there. So a checkpoint that `give` does not understand, a draft model
and a model of several parts work as before, just slower.

SGLang imports every module of this package and takes its ``EntryClass``; :mod:`entry` is the only one.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, MutableMapping, Sequence
from pathlib import Path

PACKAGE = "SGLANG_EXTERNAL_MODEL_PACKAGE"
ARCHITECTURES = "SLIME_SERVED_ARCHITECTURES"
"""Carries the names of the classes to the engine's workers, separated by commas."""


def give(words: Sequence[str], environment: MutableMapping[str, str] = os.environ) -> None:
    """Let SGLang look here first, unless the user gives a package or the checkpoint is no local folder with a configuration.

    Args:
        words: of the server's command line.
        environment: of the server, which its workers inherit.
    """
    if environment.get(PACKAGE) or "--model-path" not in words:
        return
    try:
        config = json.loads((Path(words[words.index("--model-path") + 1]) / "config.json").read_text(encoding="utf-8"))
        names = [str(name) for name in config["architectures"]]
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return
    environment[PACKAGE] = __name__
    environment[ARCHITECTURES] = ",".join(names)


def modules_that_define(names: Sequence[str], folder: Path) -> Iterator[str]:
    """Yield the names of the modules in ``folder`` that define a class of one of the ``names``, by their text."""
    definition = re.compile(rf"^class ({'|'.join(map(re.escape, names))})\b", re.MULTILINE)
    for path in sorted(folder.glob("*.py")):
        if definition.search(path.read_text(encoding="utf-8")):
            yield path.stem
