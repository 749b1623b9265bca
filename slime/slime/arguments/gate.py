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
        Option(
            "--canary-engine",
            "the plugin of --before-push-path may try an update on the last engine before the others get it; needs two engines",
            bool,
        ),
    ),
)
FEWEST_ENGINES = 2
_STATE_ELSEWHERE = ("optimizer_cpu_offload", "use_precision_aware_optimizer")


def check_gate(args: Arguments) -> list[str]:
    """Return the problems, one line each; pass derived ``args``."""
    if not args.before_push_path:
        return ["--canary-engine has no effect without --before-push-path; add it"] if args.canary_engine else []
    problems = check_canary(args) if args.canary_engine else []
    if args.debug_train_only or args.debug_rollout_only:
        what = "--debug-train-only or replayed rollouts" if args.debug_train_only else "--debug-rollout-only"
        problems.append(f"--before-push-path has no effect with {what}: no update would serve; remove one of them")
    if args.update_weights_interval != 1:
        problems.append(
            f"--before-push-path decides about every update, but --update-weights-interval "
            f"{args.update_weights_interval} joins several; remove one of them"
        )
    for name in _STATE_ELSEWHERE:
        if getattr(args, name):
            problems.append(
                f"--before-push-path cannot undo the steps of --{name.replace('_', '-')}, whose state it cannot copy; "
                "remove one of them"
            )
    return problems


def check_canary(args: Arguments) -> list[str]:
    """Return why no engine can have an update before the others, one line each."""
    if args.colocate:
        return ["--canary-engine needs engines that serve while the trainer works; remove it or --colocate"]
    if args.rollout_external_engine_addrs:
        return ["--canary-engine needs the run's own engines; remove it or --rollout-external-engine-addrs"]
    if not args.use_fault_tolerance:
        return ["--canary-engine needs a run that restarts engines; remove it or --no-use-fault-tolerance"]
    per_engine = args.rollout_num_gpus_per_engine
    if args.rollout_num_gpus < FEWEST_ENGINES * per_engine:
        return [
            f"--canary-engine needs {FEWEST_ENGINES} engines, but there is one: give --rollout-num-gpus "
            f"{FEWEST_ENGINES * per_engine} or more, or remove it"
        ]
    return []
