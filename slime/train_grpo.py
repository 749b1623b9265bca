"""Alias of ``train.py --advantage-estimator grpo`` for existing guides."""

from __future__ import annotations

import sys

from train import main

from groundwork.process import watch_lifeline

if __name__ == "__main__":
    watch_lifeline()
    sys.exit(main(["--advantage-estimator", "grpo", *sys.argv[1:]]))
