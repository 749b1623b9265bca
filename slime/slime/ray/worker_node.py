"""Join a run as another machine: ``python -m slime.ray.worker_node --head-address HOST:PORT --num-gpus N``.

It waits for the head, joins, and ends when the head does (exit status 0) or on a signal. Its processes get only the
variables of `slime.utils.forwarded_environment`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from groundwork.exceptions import ConfigError
from groundwork.machine import cuda_facts
from groundwork.process import StopRequested, watch_lifeline
from slime.arguments.cluster import device_problems
from slime.exceptions import SlimeError
from slime.ray.ray_start import Part, answers, check_token, is_known, node_of_cluster, own_address, resolved
from slime.utils.forwarded_environment import of_node

_POLL_SECONDS = 1.0
# Consecutive failed checks after which the head counts as gone.
_SILENT_LOOKS = 5


def wait_for_head(head: str, seconds: float, stop: StopRequested) -> bool:
    """Return True once the head listens, False on a signal or after ``seconds``."""
    unknown = "" if is_known(head) else " (its name cannot be resolved on this machine yet)"
    print(f"waiting up to {seconds:.0f} s for the head at {head}{unknown}", flush=True)
    deadline = time.monotonic() + seconds
    while not answers(head):
        if time.monotonic() > deadline or stop.wait(_POLL_SECONDS):
            return False
    return True


def check_devices(num_gpus: int) -> None:
    """Raise ConfigError if processes on this machine cannot use ``num_gpus`` GPUs."""
    if problems := device_problems(cuda_facts(), os.environ, num_gpus):
        raise ConfigError("; ".join(problems))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m slime.ray.worker_node", description="Join a run as another machine."
    )
    parser.add_argument("--head-address", required=True, help="HOST:PORT of the head")
    parser.add_argument("--num-gpus", type=int, required=True, help="GPUs of this machine")
    parser.add_argument(
        "--node-address", help="address of this machine; default: that of the interface that reaches the head"
    )
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="device of trainer and engines (default: cuda)"
    )
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds to wait for the head (default: 600)")
    parser.add_argument("--log", default="ray-node.log", help="file for Ray's output (default: ray-node.log)")
    options = parser.parse_args(argv)
    stop = StopRequested().install()
    head = options.head_address
    try:
        check_token(os.environ)
        if options.device == "cuda":
            check_devices(options.num_gpus)
        if not wait_for_head(head, options.timeout, stop):
            if stop:
                return stop.exit_code
            resolved(head)
            print(
                f"no head at {head} after {options.timeout:.0f} s: start the run with NODE_RANK=0 there, or correct MASTER_ADDR",
                flush=True,
            )
            return 1
        head = resolved(head)
        address = options.node_address or own_address(head)
        part = Part(head, address, is_head=False, num_gpus=options.num_gpus, cpu=options.device == "cpu")
        with node_of_cluster(part, of_node(os.environ), Path(options.log)) as child:
            print(f"joined {head} as {address} with {options.num_gpus} GPUs", flush=True)
            silent = 0
            while child.poll() is None and silent < _SILENT_LOOKS and not stop.wait(_POLL_SECONDS):
                silent = 0 if answers(head) else silent + 1
            if child.poll() is not None and answers(head):
                print(f"Ray ended on this machine with status {child.returncode}; see {options.log}", flush=True)
                return 1
    except (SlimeError, ConfigError) as error:
        print(f"this machine cannot join: {error}", flush=True)
        return 1
    print("left" if stop else "the head is gone; the run is over", flush=True)
    return stop.exit_code


if __name__ == "__main__":
    watch_lifeline()
    sys.exit(main())
