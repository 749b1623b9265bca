"""The two temporary folders that Weights & Biases creates on import, which megatron-core does in each rank.

Guarantee: they are removed after this process ends, even if it was killed, as ranks are. The library itself removes
them only in an exit handler.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from typing import Any

from groundwork.cleanup import entrust_path, start_janitor

_FOLDERS = (("wandb.sdk.data_types._private", "MEDIA_TMP"), ("wandb.sdk.artifacts.artifact", "Artifact._TMP_DIR"))


def wandb_folders() -> list[str]:
    """Return this process's folders; empty for a library version with other folders."""
    found = []
    for module, path in _FOLDERS:
        folder: Any = sys.modules.get(module)
        for name in path.split("."):
            folder = getattr(folder, name, None)
        if folder is not None:
            found.append(str(folder.name))
    return found


@functools.cache
def remove_at_the_end() -> subprocess.Popen[str] | None:
    """Start a janitor that removes the folders, if there are any, and return it; a second call is a no-op.

    The cache keeps the janitor alive, because it treats the end of its pipe as this process's end.
    """
    folders = wandb_folders()
    if not folders:
        return None
    janitor = start_janitor(folders[0], detached=True)
    for folder in folders[1:]:
        entrust_path(janitor, folder)
    return janitor
