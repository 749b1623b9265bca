#!/usr/bin/env python3
"""Serve a model and record its turns: ``python -m openclaw.server --enable-rl-intercept``; see ``--help``."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "slime")]

from openclaw.server.__main__ import main  # noqa: E402

if __name__ == "__main__":
    given = sys.argv[1:]
    recorded = given if "--enable-rl-intercept" in given else ["--enable-rl-intercept", *given]
    sys.exit(main(recorded, prog=Path(__file__).name))
