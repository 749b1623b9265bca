"""Flags of the fuses, which pause training, and their checks."""

from __future__ import annotations

from slime.args import Arguments
from slime.arguments.option import Group, Option
from slime.utils.fuses import AFTER_THE_STEP, OF_THE_LOSS, read_fuse

FUSES = Group(
    "fuses",
    (
        Option(
            "--fuses",
            "bounds on metrics, METRIC>NUMBER or METRIC<NUMBER: a metric beyond its bound pauses training before the step",
            nargs="+",
        ),
        Option("--resume-training", "continue a run that a fuse has paused; needs --resume", bool),
    ),
)


def check_fuses(args: Arguments) -> list[str]:
    """Return the problems, one line each; pass derived ``args``."""
    problems: list[str] = []
    fuses = []
    for text in args.fuses or []:
        try:
            fuses.append(read_fuse(text))
        except ValueError as error:
            problems.append(f"--fuses: {error}")
    for fuse in fuses:
        if fuse.metric in AFTER_THE_STEP:
            problems.append(f"--fuses {fuse}: {fuse.metric} is only known after the step; choose another metric")
    whole = (args.rollout_batch_size or 0) * args.n_samples_per_prompt
    steps = whole // args.global_batch_size if args.global_batch_size else 1
    if steps > 1 and any(fuse.metric.startswith(OF_THE_LOSS) for fuse in fuses):
        problems.append(
            f"--fuses on {OF_THE_LOSS}* hold back a rollout's only step, but a rollout has {steps} steps of "
            f"--global-batch-size {args.global_batch_size}; give {whole}, or remove these fuses"
        )
    if args.resume_training and not args.resume:
        problems.append("--resume-training has no effect without --resume; add it")
    return problems
