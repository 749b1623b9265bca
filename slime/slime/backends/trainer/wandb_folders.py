"""The two temporary folders that Weights & Biases makes when it is imported, as megatron-core does in each rank.

Guarantee: they are removed when this process is gone, also when it was killed, as ranks are: the library itself removes them in an
exit handler.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from typing import Any

from slime.utils.cleanup import entrust_path, start_janitor

_FOLDERS = (("wandb.sdk.data_types._private", "MEDIA_TMP"), ("wandb.sdk.artifacts.artifact", "Artifact._TMP_DIR"))


def wandb_folders() -> list[str]:
    """Return the paths of those that this process has; a version of the library that makes others has none."""
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
    """Have a janitor remove them, if there are any by now, and return it; a second call changes nothing.

    The janitor takes the end of its pipe for this process's end, so the cache keeps it.
    """
    folders = wandb_folders()
    if not folders:
        return None
    janitor = start_janitor(folders[0], detached=True)
    for folder in folders[1:]:
        entrust_path(janitor, folder)
    return janitor
