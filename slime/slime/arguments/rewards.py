"""Check that the reward flags name an existing grader and give what it needs."""

from __future__ import annotations

from groundwork.exceptions import ConfigError
from slime.args import Arguments

GRADER_NAMES = ("dapo", "deepscaler", "f1", "gpqa", "ifbench", "math", "random", "remote_rm")
REMOTE = "remote_rm"
"""The grader that calls the server at ``--rm-url``."""
BOXED = "boxed_"
"""Prefix of a grader's name: grade only the content of the last ``\\boxed{}``."""
_REWARD_KEYS = {"dapo": "score"}


def grader_name(name: str) -> str:
    """Return ``name`` without the prefix ``boxed_``.

    Raises:
        ConfigError: there is no such grader; the message lists all.
    """
    bare = name.removeprefix(BOXED)
    if bare not in GRADER_NAMES:
        known = ", ".join(GRADER_NAMES)
        raise ConfigError(f"no grader {name!r}; there are {known}, each also as {BOXED}NAME")
    return bare


def check_rewards(args: Arguments) -> list[str]:
    """Return the problems, one line each."""
    problems = []
    if args.rm_type and args.custom_rm_path:
        problems.append(f"--rm-type {args.rm_type} has no effect with --custom-rm-path; remove one of them")
    problems += check_grader("--rm-type", args.rm_type, args.rm_url, args.reward_key)
    if args.rm_url and (args.rm_type or "").removeprefix(BOXED) != REMOTE and not args.eval_config:
        problems.append("--rm-url has no effect without --rm-type remote_rm; add it, or remove --rm-url")
    return problems


def check_grader(
    where: str, name: str | None, rm_url: str | None, reward_key: str | None, key_flag: str = "--reward-key"
) -> list[str]:
    """Return the problems of grader ``name``, given at ``where``; empty without a name."""
    if not name:
        return []
    try:
        grader = grader_name(name)
    except ConfigError as error:
        return [f"{where}: {error}"]
    problems = []
    if grader == REMOTE and not rm_url:
        problems.append(f"{where} {name} needs --rm-url http://HOST:PORT/PATH")
    key = _REWARD_KEYS.get(grader)
    if key and not reward_key:
        problems.append(f"{where} {name} returns several numbers; choose one with {key_flag} {key}")
    return problems
