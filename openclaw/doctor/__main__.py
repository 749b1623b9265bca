"""``openclaw-rl doctor RUN``, also ``python -m openclaw.doctor RUN``."""

from __future__ import annotations

import sys

from openclaw.doctor.command import main

if __name__ == "__main__":
    sys.exit(main())
