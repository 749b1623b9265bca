"""Alias of ``train.py --advantage-estimator grpo`` for existing guides."""

from __future__ import annotations

import sys

from train import train

from slime.arguments import parse_args
from slime.ray.execute import execute
from slime.utils.process import watch_lifeline

if __name__ == "__main__":
    watch_lifeline()
    sys.exit(execute(parse_args(["--advantage-estimator", "grpo", *sys.argv[1:]]), train))
