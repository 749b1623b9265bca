"""Alias of ``train.py --advantage-estimator grpo`` for existing guides."""

from __future__ import annotations

import sys

from train import main

from groundwork.process import run_main, watch_lifeline
from slime.arguments.torchrun import words_of_launcher

if __name__ == "__main__":
    watch_lifeline()
    sys.argv += words_of_launcher(sys.argv)
    sys.exit(run_main(lambda: main(["--advantage-estimator", "grpo", *sys.argv[1:]])))
