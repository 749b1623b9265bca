"""What SGLang would leave on the disk and in shared memory: five socket files per start, and its load counters when it is killed.

Guarantee: all of it is removed when the server's process is gone, however it ended. The socket files are put into a folder of
the server's own; only the server's process names them, so its workers' caches stay where they are.
"""

from __future__ import annotations

import tempfile
from typing import Any

from slime.utils.cleanup import entrust_path, start_janitor


def install() -> None:
    """Have the files of the server that this process is about to start removed at its end.

    Raises:
        AttributeError: for an SGLang whose names are others, so that a change is noticed.
    """
    from sglang.srt.managers.load_snapshot import shm_path_for
    from sglang.srt.server_args import PortArgs

    tempfile.tempdir = tempfile.mkdtemp(prefix="slime-engine-")
    janitor = start_janitor(tempfile.tempdir, detached=True)
    init_new = PortArgs.init_new

    def noted(*args: Any, **kwargs: Any) -> PortArgs:
        ports = init_new(*args, **kwargs)
        entrust_path(janitor, shm_path_for(ports.instance_id))
        return ports

    PortArgs.init_new = staticmethod(noted)
