"""Runs the supervisor of a sandbox as a plain process, for stand-ins: ``local_supervisor.py ROOT SETTINGS``.

``/work`` and ``/tmp`` of calls are folders below ``ROOT``. Commands are real processes of this machine, with no wall but the
working directory; so a test runs no command that needs one. ``PYTHONPATH`` says where `agentrl.sandbox.inside` is.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from agentrl.sandbox.inside import supervisor


def main() -> None:
    root = sys.argv.pop(1)
    folders = ("/work", "/tmp")
    for each in folders:
        os.makedirs(root + each, exist_ok=True)

    def inside(path: str) -> str:
        known = any(path == each or path.startswith(f"{each}/") for each in folders)
        return root + path if known else path

    resolved, do = supervisor.resolved, supervisor.Supervisor._do

    def mapped(self: Any, fields: dict[str, Any], body: bytes) -> None:
        if fields["do"] == "execute":
            fields = {**fields, "cwd": inside(fields["cwd"])}
        do(self, fields, body)

    supervisor.WRITABLE = tuple(root + each for each in folders)
    supervisor.resolved = lambda path: resolved(inside(path))
    supervisor.Supervisor._do = mapped
    supervisor.main()


if __name__ == "__main__":
    main()
