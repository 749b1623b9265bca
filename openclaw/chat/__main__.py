"""``openclaw-rl chat``."""

from __future__ import annotations

import sys

from openclaw.chat.command import main

if __name__ == "__main__":
    sys.exit(main())
