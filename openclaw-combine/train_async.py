#!/usr/bin/env python3
"""Train a method on the turns of a folder: `openclaw.server.train`; see ``--help``."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "slime")]

from openclaw.server.train import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(prog=Path(__file__).name))
