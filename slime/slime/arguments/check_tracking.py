"""Flags of tracking and debugging that only another flag gives a meaning.

Guarantee: a flag that would have no effect is refused with the flag that it needs.
"""

from __future__ import annotations

from slime.args import Arguments

# Attribute, its value when it is not given, and the flag that it needs.
_NEEDS = (
    ("tensorboard_dir", None, "use_tensorboard"),
    ("tb_project_name", None, "use_tensorboard"),
    ("tb_experiment_name", None, "use_tensorboard"),
    ("wandb_host", None, "use_wandb"),
    ("wandb_run_id", None, "use_wandb"),
    ("wandb_dir", None, "use_wandb"),
    ("wandb_team", None, "use_wandb"),
    ("load_debug_rollout_data_subsample", None, "load_debug_rollout_data"),
)


def check_tracking(args: Arguments) -> list[str]:
    """Return the problems, one line each."""
    problems = [
        f"--{name.replace('_', '-')} has no effect without --{needed.replace('_', '-')}"
        for name, off, needed in _NEEDS
        if getattr(args, name) != off and not getattr(args, needed)
    ]
    share = args.load_debug_rollout_data_subsample
    if share is not None and not 0.0 < share <= 1.0:
        problems.append(f"--load-debug-rollout-data-subsample {share}: give a share above 0 and up to 1")
    if args.skip_eval_before_train and args.eval_interval is None:
        problems.append("--skip-eval-before-train has no effect without --eval-interval N")
    if args.debug_rollout_only and args.debug_train_only:
        problems.append(
            "--debug-rollout-only leaves out the trainer and --debug-train-only the engines; remove one of them"
        )
    return problems
