"""Know every variable that a launch may set, as a variable or as a flag, and find mistyped names.

Guarantees: an unknown ``OPENCLAW_*`` variable is an error that names the nearest one, because a typo in
``OPENCLAW_REDACT=off`` would otherwise be ignored in silence. So is a variable of another name that is one typing error away
from a known one, unless the user says that it belongs to another program. A name that is merely similar is a warning, and so
is a variable that this run does not read.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Collection, Mapping, Sequence

from groundwork.command_line import CommandLine, as_list
from groundwork.exceptions import ConfigError
from groundwork.variables import Variable
from openclaw.config.runtime_variables import VARIABLES
from openclaw.launch.guides import (
    FLAG_TEXTS,
    NAMES,
    OF_CONVERSATIONS,
    OF_ENVIRONMENTS,
    OF_GATEWAY,
    OF_GROUP_JUDGE,
    NoEffect,
    other_name_problems,
)
from openclaw.launch.methods import FoundMethod, methods_of
from openclaw.launch.task import FoundTask, TaskConfig
from openclaw.launch.variables import LAUNCH_VARIABLES, with_aliases
from slime.arguments.parser import Parser

OF_LIBRARIES = ("WANDB_API_KEY", "WANDB_KEY", "HF_TOKEN", "RAY_ADDRESS")
"""Variables that libraries read, or the run under these names only."""
PREFIX = "OPENCLAW_"
# The agent OpenClaw documents these; a shell or an agent that starts a run may have them.
OF_AGENT = frozenset(
    f"{PREFIX}{name}"
    for name in (
        *("HOME", "STATE_DIR", "CONFIG_PATH", "PROFILE", "SHELL", "LOAD_SHELL_ENV", "SHELL_ENV_TIMEOUT_MS"),
        *("LOG_LEVEL", "GATEWAY_TOKEN", "GATEWAY_PASSWORD", "GATEWAY_PORT", "GATEWAY_URL"),
    )
)
# One typing error away from a name of ours: CGI's length of a request's body.
OF_STANDARDS = frozenset({"CONTENT_LENGTH"})
OTHERS = f"{PREFIX}OTHER_VARIABLES"
"""The variable that names variables of other programs, whose names look like mistyped ones."""
ALIKE = 0.86
"""Of about 1,500 names that 200 Python packages read, none is so similar to a name of ours, and the one above is an error away."""
MIN_LENGTH = 6
"""Shorter names, for example TP or PORT, are too close to variables of other programs. A typing error may lose a letter."""


def nearest(name: str, known: Collection[str]) -> str | None:
    """Return the known ``OPENCLAW_*`` name that was probably meant, or None."""
    rests = sorted(item.removeprefix(PREFIX) for item in known if item.startswith(PREFIX))
    near = difflib.get_close_matches(name.removeprefix(PREFIX), rests, n=1)
    return PREFIX + near[0] if near else None


def unknown_prefixed(environment: Mapping[str, str], known: Collection[str], reader: str = "this run") -> list[str]:
    """Return a line per set variable ``OPENCLAW_*`` that nothing declares.

    Args:
        environment: the caller's variables.
        known: every name that may be set.
        reader: who ignores the variable, for the message.
    """
    lines = []
    for name in sorted(environment):
        if not environment[name] or not name.startswith(PREFIX) or name in OF_AGENT or name in known:
            continue
        near = nearest(name, known)
        advice = f"did you mean {near}?" if near else f"unset it: unset {name}"
        lines.append(f"{name} is not a variable of {reader}; {advice}")
    return lines


def near_misses(environment: Mapping[str, str], known: Collection[str]) -> tuple[list[str], list[str]]:
    """Return a line per set variable that nothing reads: mistyped names, and names that are only similar to one of ours."""
    plain = [name for name in known if not name.startswith(PREFIX)]
    others = environment.get(OTHERS, "").replace(",", " ").split()
    long = sorted(name for name in known if len(name) >= MIN_LENGTH)
    mistyped, similar = [], []
    for name in sorted(environment):
        foreign = name in known or name in OF_STANDARDS or name in others or name.startswith(PREFIX)
        if not environment[name] or foreign or len(name) < MIN_LENGTH - 1:
            continue
        question = f"{name} is set, but nothing reads it; did you mean"
        if meant := next((item for item in long if one_error(name, item)), None):
            mistyped.append(f"{question} {meant}? If another program reads it, set {OTHERS}={name}")
        elif near := difflib.get_close_matches(name.upper(), plain, n=1, cutoff=ALIKE):
            similar.append(f"{question} {near[0]}?")
    return mistyped, similar


def one_error(typed: str, meant: str) -> bool:
    """Return whether the names differ by one typing error, or only in case and underscores.

    A typing error is a letter too many, a missing one, a wrong one, or two neighbours swapped.
    """
    first, second = (name.upper().replace("_", "") for name in (typed, meant))
    start = 0
    while start < min(len(first), len(second)) and first[start] == second[start]:
        start += 1
    first, second = first[start:], second[start:]
    end = 0
    while end < min(len(first), len(second)) and first[-1 - end] == second[-1 - end]:
        end += 1
    first, second = first[: len(first) - end], second[: len(second) - end]
    swapped = len(first) == 2 and first == second[::-1]
    return max(len(first), len(second)) <= 1 or swapped


def declared_variables(found: FoundMethod | FoundTask | None) -> tuple[Variable, ...]:
    """Return the variables that a run reads; without ``found`` those of launcher and runtime."""
    if isinstance(found, FoundTask):
        return (*with_aliases(found.config.aliases), *found.variables())
    return (*LAUNCH_VARIABLES, *VARIABLES, *(found.config.variables() if found else ()))


def _names(variables: Collection[Variable]) -> set[str]:
    return {name for variable in variables for name in variable.names}


def known_names(found: FoundMethod | FoundTask | None = None) -> set[str]:
    """Return the variables of launcher, runtime, ``found``, every method of the repository, and other guides."""
    of_methods = [variable for method in methods_of() for variable in method.config.variables()]
    names = _names((*declared_variables(None), *declared_variables(found), *of_methods))
    return names | {*NAMES, *OF_ENVIRONMENTS, *OF_LIBRARIES, *FLAG_TEXTS}


def check_names(environment: Mapping[str, str], found: FoundMethod | FoundTask | None = None) -> None:
    """Raise ConfigError for unknown variables ``OPENCLAW_*``, for those whose names are mistyped, and for impossible wishes.

    A folder without a declaration may read any variable, so it gets no check.
    """
    if isinstance(found, FoundMethod) and not found.declared:
        return
    known = known_names(found)
    lines = [*unknown_prefixed(environment, known), *near_misses(environment, known)[0]]
    if lines:
        raise ConfigError(as_list("unknown variables", lines))
    if found is not None and (lines := other_name_problems(environment)):
        raise ConfigError(as_list("unsupported variables", lines))


def name_warnings(environment: Mapping[str, str], found: FoundMethod | FoundTask | None = None) -> list[str]:
    """Return a warning for each set variable that nothing will read, though its name suggests a variable of this project."""
    known = known_names(found)
    mistyped, similar = near_misses(environment, known)
    if isinstance(found, FoundMethod) and not found.declared:
        return [*mistyped, *similar]
    elsewhere, read = dict[str, NoEffect](), _names(declared_variables(found)) if found else set[str]()
    if isinstance(found, FoundTask):
        elsewhere, read = OF_GATEWAY | OF_CONVERSATIONS, read - OF_CONVERSATIONS.keys()
        if TaskConfig.declared("group_judge").read(environment)[0]:
            read |= OF_GROUP_JUDGE
    elif found is not None and not found.config.has_environments:
        elsewhere = OF_ENVIRONMENTS
    warnings = [
        f"{name} is set, but it is ignored; {meaning.why}"
        for name, meaning in (NAMES | elsewhere).items()
        if isinstance(meaning, NoEffect) and environment.get(name) and name not in read
    ]
    return [*warnings, *similar, *(_of_other_methods(environment, found) if isinstance(found, FoundMethod) else ())]


def _of_other_methods(environment: Mapping[str, str], found: FoundMethod) -> list[str]:
    """Return a line per set variable of another method that this one does not read."""
    own, lines = _names(found.config.variables()), list[str]()
    for other in methods_of():
        names = sorted(_names(other.config.variables()) - own) if not other.variant else ()
        lines += [
            f"{name} is a variable of the method {other.config.name}; --method {found.config.name} does not read it"
            for name in names
            if environment.get(name)
        ]
    return lines


def flags_of_variables(variables: Sequence[Variable], parser: Parser) -> dict[str, list[str]]:
    """Return each flag that sets a variable, ``--parallel-envs`` for PARALLEL_ENVS, with all names of the variable.

    The flag sets the first of the names. A flag that ``parser`` has is the trainer's. A secret is never typed on a command line.
    """
    taken = {name for action in parser._actions if action.help != argparse.SUPPRESS for name in action.option_strings}
    flags: dict[str, list[str]] = {}
    for variable in variables:
        named = [(f"--{name.lower().replace('_', '-')}", name) for name in variable.names]
        for flag, name in [*named, *((flag, variable.name) for flag in variable.flags)] if not variable.secret else ():
            names = flags.setdefault(flag, [name])
            names += [other for other in variable.names if other not in names]
    return {flag: names for flag, names in flags.items() if flag not in taken}


def take_in_flags(
    flags: Mapping[str, Sequence[str]], environment: Mapping[str, str], words: Sequence[str]
) -> tuple[Mapping[str, str], list[str]]:
    """Return the environment with the variables that ``words`` set as flags, which win, and the other words."""
    finder = CommandLine(prog="launch", add_help=False)
    for flag in flags:
        finder.add_argument(flag, dest=flag, default=argparse.SUPPRESS)
    typed, rest = finder.parse_known_args(list(words))
    replaced = {name for flag in vars(typed) for name in flags[flag]}
    kept = {name: value for name, value in environment.items() if name not in replaced}
    return kept | {flags[flag][0]: value for flag, value in vars(typed).items()}, rest
