#!/usr/bin/env python3
"""Copy the turns of a running server to a folder: `openclaw.server.collect`; see ``--help``."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "slime")]

from openclaw.server.collect import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(prog=Path(__file__).name))
