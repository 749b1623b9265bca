"""Run the runtime process: ``python -m openclaw.runtime``."""

from __future__ import annotations

import faulthandler
import signal
import sys

from groundwork.garbage import collect_rarely

if __name__ == "__main__":
    collect_rarely()
    from openclaw.runtime.serve import main

    faulthandler.register(signal.SIGUSR1, all_threads=True)
    sys.exit(main())
