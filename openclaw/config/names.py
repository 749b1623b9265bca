"""Find mistyped names of environment variables.

Guarantees: an unknown ``OPENCLAW_*`` variable is an error that names the nearest one, because a typo in
``OPENCLAW_REDACT=off`` would otherwise be ignored in silence. So is a variable of another name that is one typing error away
from a known one, unless the user says that it belongs to another program. A name that is merely similar is a warning.
Imports only the standard library.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping

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
        said = f"{name} is set, but nothing reads it; did you mean"
        if meant := next((item for item in long if one_error(name, item)), None):
            mistyped.append(f"{said} {meant}? If another program reads it, set {OTHERS}={name}")
        elif near := difflib.get_close_matches(name.upper(), plain, n=1, cutoff=ALIKE):
            similar.append(f"{said} {near[0]}?")
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
