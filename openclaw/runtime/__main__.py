"""Run the runtime process: ``python -m openclaw.runtime``."""

from __future__ import annotations

import sys

from openclaw.runtime.serve import main

if __name__ == "__main__":
    sys.exit(main())
