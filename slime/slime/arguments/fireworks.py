"""Flags of ``--train-backend fireworks``. Imports neither torch nor the package tinker."""

from __future__ import annotations

import re

from slime.args import Arguments
from slime.arguments.option import Group, Option

NAME = "fireworks"
KEY, ADDRESS = "FIREWORKS_API_KEY", "FIREWORKS_BASE_URL"

FIREWORKS = Group(
    "Fireworks (--train-backend fireworks: it trains and samples, with the flags of Tinker, too)",
    (
        Option(
            "--fireworks-training-shape",
            "training shape of the trainer job, accounts/NAME/trainingShapes/NAME; it has to be one for adapters",
        ),
        Option("--fireworks-deployment", "name of the deployment; default: one is made up"),
        Option("--fireworks-gpus", "accelerators of trainer and deployment; default: those of one replica", int),
        Option("--fireworks-keep", "keep trainer job and deployment at the end; they go on costing", bool),
        Option("--fireworks-wait-minutes", "how long to wait for trainer job and deployment, each", float, 120.0),
    ),
)


def check_fireworks(args: Arguments) -> list[str]:
    """Return the problems, one line each."""
    own = [option.flag for option in FIREWORKS.options if option.is_given(args)]
    if args.train_backend != NAME:
        return [f"{', '.join(own)}: only with --train-backend {NAME}; add it, or remove them"] if own else []
    problems = []
    shape = args.fireworks_training_shape or ""
    if not re.fullmatch(r"accounts/[^/]+/trainingShapes/[^/]+(/versions/[^/]+)?", shape):
        problems.append(
            f"--fireworks-training-shape {shape or 'is missing'}: give such as accounts/fireworks/trainingShapes/qwen3-8b-128k"
        )
    if args.tinker_model and not re.fullmatch(r"accounts/[^/]+/models/[^/]+", args.tinker_model):
        problems.append(f"--tinker-model {args.tinker_model}: give such as accounts/fireworks/models/qwen3-8b")
    if args.fireworks_gpus is not None and args.fireworks_gpus < 1:
        problems.append(f"--fireworks-gpus {args.fireworks_gpus}: give 1 or more, or leave it out")
    if args.fireworks_wait_minutes <= 0:
        problems.append(f"--fireworks-wait-minutes {args.fireworks_wait_minutes:g}: give more than 0")
    if args.fireworks_deployment and not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", args.fireworks_deployment):
        problems.append(f"--fireworks-deployment {args.fireworks_deployment}: use small letters, digits and -")
    if args.tinker_start:
        problems.append("--tinker-start: a state of Fireworks is reached with --load or --resume; leave it out")
    return problems
