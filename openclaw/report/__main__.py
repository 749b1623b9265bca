"""``openclaw-rl report RUN``, also ``python -m openclaw.report RUN``."""

from __future__ import annotations

import sys

from openclaw.report.command import main

if __name__ == "__main__":
    sys.exit(main())
