"""``python -m openclaw.server``."""

from __future__ import annotations

import sys

from openclaw.server.command import main

if __name__ == "__main__":
    sys.exit(main())
