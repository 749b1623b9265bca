"""The flag of the gate before a push, and its checks."""

from __future__ import annotations

from slime.args import Arguments
from slime.arguments.option import Group, Option

GATE = Group(
    "gate",
    (
        Option(
            "--before-push-path",
            "function decide(args, rollout_id, data_source, policies) that accepts or refuses each update before it serves; "
            "a refusal undoes its steps",
        ),
    ),
)
_STATE_ELSEWHERE = ("optimizer_cpu_offload", "use_precision_aware_optimizer")


def check_gate(args: Arguments) -> list[str]:
    """Return the problems, one line each; pass derived ``args``."""
    if not args.before_push_path:
        return []
    problems = []
    if args.debug_train_only or args.debug_rollout_only:
        what = "--debug-train-only or replayed rollouts" if args.debug_train_only else "--debug-rollout-only"
        problems.append(f"--before-push-path has no effect with {what}: no update would serve; remove one of them")
    if args.update_weights_interval != 1:
        problems.append(
            f"--before-push-path decides about every update, but --update-weights-interval "
            f"{args.update_weights_interval} joins several; remove the interval"
        )
    for name in _STATE_ELSEWHERE:
        if getattr(args, name):
            problems.append(
                f"--before-push-path cannot undo the steps of --{name.replace('_', '-')}, whose state it cannot copy; "
                "remove one of them"
            )
    return problems
