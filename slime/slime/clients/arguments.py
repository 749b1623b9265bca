"""Flags of a server whose programs train models: a run's, less what the programs decide about. Imports neither torch nor Ray."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from slime.args import Arguments
from slime.arguments import parse_args

FIXED = (
    *("--disable-rollout-global-dataset", "--rollout-batch-size", "1", "--num-rollout", "1", "--loss-type", "sft_loss"),
    *(
        "--use-lora",
        "--adapter-per-person",
        "--update-weight-mode",
        "adapter",
        "--lora-dropout",
        "0",
        "--lora-alpha",
        "32",
    ),
    *("--use-dynamic-batch-size", "--lr", "1e-4"),
)
"""Flags of a run that the programs decide about; the rest of the command line is the person's who starts the server."""
DEFAULTS = {"--max-tokens-per-gpu": "8192", "--run-dir": "runs/tinker"}
"""Flags that have another value than in a run, unless they are given; a server that starts again finds its folder."""


def client_arguments(argv: Sequence[str], add_flags: Callable[[argparse.ArgumentParser], None]) -> Arguments:
    """Return the arguments of a server.

    Raises:
        SystemExit: as `parse_args`.
    """
    given = {word.partition("=")[0] for word in argv}
    defaults = [part for flag, value in DEFAULTS.items() if flag not in given for part in (flag, value)]

    def add(parser: argparse.ArgumentParser) -> None:
        add_flags(parser)
        for flag, value in DEFAULTS.items():
            action = parser._option_string_actions[flag]
            action.help = f"{(action.help or '').partition('; default')[0]} (default: {value})"

    return parse_args([*FIXED, *defaults, *argv], add, problems_of)


def problems_of(args: Arguments) -> list[str]:
    """Return why these arguments cannot serve programs, one line each."""
    reasons = {
        "--train-backend fsdp: the other back end has no adapters that exchange places": args.train_backend != "fsdp",
        "--context-parallel-size 1: a sequence is on one GPU": args.context_parallel_size > 1,
        "no --colocate: training and sampling overlap": args.colocate,
        "no --offload-train: a model may be asked for at any moment": args.offload_train,
        "no --rollout-external-engine-addrs: engines read adapters from the folder of the run": bool(
            args.rollout_external_engine_addrs
        ),
        "no --base-quantization: it was not tried here": args.base_quantization != "none",
    }
    return [f"a server for programs needs {reason}" for reason, applies in reasons.items() if applies]
