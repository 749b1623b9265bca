"""Makes the warm start of a set of tasks, unless there is one, and prints its folder."""

from __future__ import annotations

import argparse

from lab.tiny_learning.sets import TASK_SETS, warm_start_of

parser = argparse.ArgumentParser(prog="python -m lab.tiny_learning", description=__doc__)
parser.add_argument("task", choices=TASK_SETS)
print(warm_start_of(TASK_SETS[parser.parse_args().task], lambda text: print(text, flush=True)))
