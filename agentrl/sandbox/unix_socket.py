"""A listening Unix socket at a path of any length."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def bound_at(path: Path) -> socket.socket:
    """Return a socket that is bound to ``path``, whose folder exists.

    The kernel takes addresses of at most 107 bytes; a path may have more, so the folder is named by its descriptor.
    """
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    opened = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        listening.bind(f"/proc/self/fd/{opened}/{path.name}")
    except BaseException:
        listening.close()
        raise
    finally:
        os.close(opened)
    return listening
