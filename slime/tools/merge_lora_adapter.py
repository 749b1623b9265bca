#!/usr/bin/env python3
"""Alias of ``merge_lora.py`` for older guides; same options."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from merge_lora import main

if __name__ == "__main__":
    sys.exit(main())
