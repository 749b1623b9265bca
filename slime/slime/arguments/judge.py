"""Judge (process reward model) engines: their flags, and what these need of each other."""

from __future__ import annotations

from slime.args import Arguments
from slime.arguments.option import Group, Option

JUDGE = Group(
    "judge",
    (
        Option("--prm-enable", "host judge engines; the other --prm-* flags need it, or --prm-router-ip", bool),
        Option("--prm-num-gpus", "GPUs of the judge engines", int, 0),
        Option("--prm-num-gpus-per-engine", "GPUs per judge engine", int, 1),
        Option("--prm-model-path", "judge weights; default: --hf-checkpoint"),
        Option("--prm-m", "votes per turn", int, 4),
        Option("--prm-temperature", "sampling temperature of the judge", float, 1.0),
        Option("--prm-max-new-tokens", "longest answer of the judge", int, 2048),
        Option("--prm-router-ip", "address of a judge that runs already; then --prm-num-gpus counts as 0"),
        Option("--prm-router-port", "its port", int),
    ),
)


def check_judge(args: Arguments) -> list[str]:
    """Return the problems, one line each; ``args`` as they were given, before any derivation."""
    if bool(args.prm_router_ip) != bool(args.prm_router_port):
        return ["--prm-router-ip and --prm-router-port go together"]
    # A plugin may ask the judge at --prm-sglang-url, with the sampling of these flags.
    if not (args.prm_enable or args.prm_router_ip or args.prm_sglang_url):
        given = [option.flag for option in JUDGE.options if option.is_given(args)]
        return [f"{', '.join(given)} has no effect without a judge: add --prm-enable, or remove it"] if given else []
    problems = []
    total, size = args.prm_num_gpus, args.prm_num_gpus_per_engine
    if total % size:
        problems.append(f"--prm-num-gpus {total} is not a multiple of --prm-num-gpus-per-engine {size}")
    if args.prm_enable and total < 1 and not args.prm_router_ip:
        problems.append("--prm-enable needs --prm-num-gpus 1 or more, or --prm-router-ip of a judge that runs already")
    context = args.sglang_context_length or args.rollout_max_context_len
    if args.prm_enable and context and args.prm_max_new_tokens >= context:
        problems.append(
            f"--prm-max-new-tokens {args.prm_max_new_tokens} leaves no room for a prompt in the judge's context of {context}; "
            "lower it, or raise --sglang-context-length"
        )
    return problems
