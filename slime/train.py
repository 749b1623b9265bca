"""Synchronous loop: collect a batch, train on it, save, push the weights, and only then collect the next batch.

With ``--colocate`` trainer and engines use the same GPUs in this order.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from groundwork.process import run_main, watch_lifeline
from slime.arguments import parse_args
from slime.arguments.torchrun import words_of_launcher
from slime.exceptions import DataUsedError

if TYPE_CHECKING:
    from slime.ray.run import Run


def train(run: Run) -> None:
    """Collect and train one batch at a time, until ``num_rollout`` or the end of the data."""
    run.evaluate_start()
    for rollout_id in range(run.start_rollout_id, run.args.num_rollout):
        try:
            batch = run.wait(run.generate(rollout_id))
        except DataUsedError as end:
            run.data_used(end)
            break
        update = run.step(rollout_id, batch)
        run.save_if_due(rollout_id)
        run.publish(update)
        run.evaluate_if_due(rollout_id)
    if run.args.serve_when_done:
        run.serve_until_stopped()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the loop with the arguments of the command line and return the exit code."""
    args = parse_args(argv)
    from slime.ray.run import execute  # imports Ray, for which a mistyped flag need not wait

    return execute(args, train)


if __name__ == "__main__":
    watch_lifeline()
    sys.argv += words_of_launcher(sys.argv)
    sys.exit(run_main(main))
