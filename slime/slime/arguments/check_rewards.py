"""Whether the flags about rewards name a grader that exists and have what it needs."""

from __future__ import annotations

from slime.args import Arguments
from slime.exceptions import ConfigurationError
from slime.rollout.rm_hub.registry import find_grader, is_remote, reward_key_of


def check_rewards(args: Arguments) -> list[str]:
    """Return a line per problem."""
    problems = []
    if args.rm_type and args.custom_rm_path:
        problems.append(f"--rm-type {args.rm_type} has no effect beside --custom-rm-path; remove one of them")
    problems += check_grader("--rm-type", args.rm_type, args.rm_url, args.reward_key)
    if args.rm_url and not is_remote(args.rm_type or "") and not args.eval_config:
        problems.append("--rm-url has no effect without --rm-type remote_rm")
    return problems


def check_grader(
    where: str, name: str | None, rm_url: str | None, reward_key: str | None, key_flag: str = "--reward-key"
) -> list[str]:
    """Return what is wrong with the grader ``name`` that was given at ``where``; nothing when none was."""
    if not name:
        return []
    try:
        find_grader(name)
    except ConfigurationError as error:
        return [f"{where}: {error}"]
    problems = []
    if is_remote(name) and not rm_url:
        problems.append(f"{where} {name} needs --rm-url http://HOST:PORT/PATH")
    key = reward_key_of(name)
    if key and not reward_key:
        problems.append(f"{where} {name} gives several numbers; say which to use: {key_flag} {key}")
    return problems
