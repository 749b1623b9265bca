"""Keep the logs of two runs in one folder apart.

Guarantee: no line of a log is lost, and files that the run does not write itself stay as they are. A log that another run
set aside before is replaced.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from groundwork.private_files import make_private

OLDER = ".1"
OWN = ("logs/*.log", "runtime.log")
"""The logs that a run writes into its folder: those of its processes, and that of a data source's own process."""


def begin_logs(run_dir: Path, *, resumes: bool, command: Sequence[str] = sys.argv) -> None:
    """Rename the logs of an older run in this folder to ``NAME.log.1``; a run that resumes marks its begin in them instead.

    Args:
        run_dir: the run's folder; its logs are `OWN`.
        resumes: whether the run continues the one in the folder.
        command: of this run, for the mark.
    """
    mark = f"===== {datetime.now():%Y-%m-%d %H:%M:%S} resumed: {shlex.join(command)} =====\n"
    for log in sorted(path for pattern in OWN for path in run_dir.glob(pattern)):
        if os.path.samestat(log.stat(), os.fstat(1)) or not log.stat().st_size:
            continue  # this process's own output, which has begun already
        make_private(log)
        if resumes:
            with log.open("a") as file:
                file.write(mark)
        else:
            log.replace(log.with_name(log.name + OLDER))
