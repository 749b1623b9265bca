"""Checks the arguments of live training before the runtime process starts."""

from __future__ import annotations

from openclaw.method import method_config
from openclaw.training.live_losses import unfed_loss
from slime.args import Arguments
from slime.arguments.cluster import check_asynchronous
from slime.utils.misc import load_function


def check_arguments(args: Arguments, method_path: str) -> None:
    """Raise ValueError for arguments that do not fit training on judged turns."""
    if path := args.custom_loss_function_path:
        module, own = getattr(load_function(path), "__module__", None), method_config(method_path)
        kept = own is not None and own.keeps_student_topk
        if problem := unfed_loss(args, without_topk(method_path), module, student_topk=kept):
            raise ValueError(problem)
    if problems := check_asynchronous(args, "a method on live conversations"):
        raise ValueError(problems[0])
    if args.n_samples_per_prompt != 1:
        raise ValueError(
            f"--n-samples-per-prompt {args.n_samples_per_prompt} does not fit live training; use 1, because a turn is one sample"
        )
    if args.global_batch_size and args.rollout_batch_size % args.global_batch_size:
        raise ValueError(
            f"--rollout-batch-size {args.rollout_batch_size} is not a multiple of --global-batch-size "
            f"{args.global_batch_size}; change one of them, or the rest of each batch would never be trained"
        )


def without_topk(method_path: str) -> str | None:
    """Return the method's name if it declares samples without the teacher's top K, otherwise None."""
    own = method_config(method_path)
    return None if own is None or own.keeps_topk else getattr(load_function(method_path), "name", method_path)
