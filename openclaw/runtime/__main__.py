"""Run the runtime process: ``python -m openclaw.runtime``."""

from __future__ import annotations

import faulthandler
import signal
import sys

from openclaw.runtime.serve import main

if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    sys.exit(main())
