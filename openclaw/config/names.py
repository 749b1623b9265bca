"""Find mistyped names of environment variables.

Guarantees: an unknown ``OPENCLAW_*`` variable is an error that names the nearest one, because a typo in
``OPENCLAW_REDACT=off`` would otherwise be ignored in silence. A variable of another name that is one typing error away from
a known one is a warning, because it may belong to another program. Imports only the standard library.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping

from openclaw.exceptions import ConfigError

PREFIX = "OPENCLAW_"
# The agent OpenClaw documents these; a shell or an agent that starts a run may have them.
OF_AGENT = frozenset(
    f"{PREFIX}{name}"
    for name in (
        *("HOME", "STATE_DIR", "CONFIG_PATH", "PROFILE", "SHELL", "LOAD_SHELL_ENV", "SHELL_ENV_TIMEOUT_MS"),
        *("LOG_LEVEL", "GATEWAY_TOKEN", "GATEWAY_PASSWORD", "GATEWAY_PORT", "GATEWAY_URL"),
    )
)
SHORTEST = 6
"""Shorter names, for example TP or PORT, are too close to variables of other programs. A typing error may lose a letter."""


def nearest(name: str, known: Collection[str]) -> str | None:
    """Return the known ``OPENCLAW_*`` name that was probably meant, or None."""
    rests = sorted(each.removeprefix(PREFIX) for each in known if each.startswith(PREFIX))
    near = difflib.get_close_matches(name.removeprefix(PREFIX), rests, n=1)
    return PREFIX + near[0] if near else None


def check_prefixed(environment: Mapping[str, str], known: Collection[str], reader: str = "this run") -> None:
    """Raise ConfigError for the set variables ``OPENCLAW_*`` that nothing declares.

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
    if lines:
        raise ConfigError("\n  - ".join(["unknown variables:", *lines]) if len(lines) > 1 else lines[0])


def near_misses(environment: Mapping[str, str], known: Collection[str]) -> list[str]:
    """Return a warning for each set variable whose name is one typing error away from a known one."""
    warnings = []
    for name in sorted(environment):
        if not environment[name] or name in known or name.startswith(PREFIX) or len(name) < SHORTEST - 1:
            continue
        meant = next((each for each in sorted(known) if len(each) >= SHORTEST and one_error(name, each)), None)
        if meant:
            warnings.append(f"{name} is set but nothing reads it; did you mean {meant}?")
    return warnings


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
