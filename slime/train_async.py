"""Asynchronous loop: collect the next batch while this one trains, and push weights right after each step."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from groundwork.process import run_main, watch_lifeline
from slime.arguments import parse_args
from slime.arguments.cluster import check_asynchronous
from slime.arguments.torchrun import words_of_launcher
from slime.exceptions import DataUsedError

if TYPE_CHECKING:
    from slime.ray.run import Run


def train(run: Run) -> None:
    """Collect batch ``r + 1`` while batch ``r`` trains, until ``num_rollout`` or the end of the data."""
    run.evaluate_start()
    last = run.args.num_rollout
    batch = run.generate(run.start_rollout_id) if run.start_rollout_id < last else None
    for rollout_id in range(run.start_rollout_id, last):
        try:
            data = run.wait(batch)
        except DataUsedError as end:
            run.data_used(end)
            break
        if rollout_id + 1 < last:
            batch = run.generate(rollout_id + 1)
        run.train(rollout_id, data)
        run.save_if_due(rollout_id)
        run.evaluate_if_due(rollout_id)
    if run.args.serve_when_done:
        run.serve_until_stopped()


def main() -> int:
    """Run the loop with the arguments of the command line and return the exit code."""
    args = parse_args(check=lambda args: check_asynchronous(args, "train_async.py"))
    from slime.ray.run import execute  # imports Ray, for which a mistyped flag need not wait

    return execute(args, train)


if __name__ == "__main__":
    watch_lifeline()
    sys.argv += words_of_launcher(sys.argv, alternates=False)
    sys.exit(run_main(main))
