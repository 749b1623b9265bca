"""Know every variable that a launch may set, and refuse or report the mistyped ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from groundwork.command_line import as_list
from groundwork.exceptions import ConfigError
from groundwork.variables import Variable
from openclaw.config.names import near_misses, unknown_prefixed
from openclaw.config.runtime_variables import VARIABLES
from openclaw.launch.methods import FoundMethod, methods_of
from openclaw.launch.task import FoundTask
from openclaw.launch.variables import LAUNCH_VARIABLES, OF_ENVIRONMENTS, REPLACED, UNREAD

# Read by libraries, or by the run under these names only.
OF_LIBRARIES = ("WANDB_API_KEY", "WANDB_KEY", "HF_TOKEN", "RAY_ADDRESS")


def _names(variables: Collection[Variable]) -> set[str]:
    return {name for variable in variables for name in variable.names}


def known_names(found: FoundMethod | FoundTask | None = None) -> set[str]:
    """Return the variables of launcher, runtime, ``found`` and every method of the repository."""
    own = [variable for method in methods_of() for variable in method.config.variables()]
    further = set[str]()
    if isinstance(found, FoundTask):
        own += found.variables()
        further = {name for names in found.config.aliases.values() for name in names}
    elif found is not None:
        own += found.config.variables()
    names = _names((*LAUNCH_VARIABLES, *VARIABLES, *own)) | further
    return names | {*REPLACED, *UNREAD, *OF_ENVIRONMENTS, *OF_LIBRARIES}


def check_names(environment: Mapping[str, str], found: FoundMethod | FoundTask | None = None) -> None:
    """Raise ConfigError for unknown variables ``OPENCLAW_*``, and for those whose names are mistyped.

    A folder without a declaration may read any variable, so it gets no check.
    """
    if isinstance(found, FoundMethod) and not found.declared:
        return
    known = known_names(found)
    lines = [*unknown_prefixed(environment, known), *near_misses(environment, known)[0]]
    if lines:
        raise ConfigError(as_list("unknown variables", lines))


def name_warnings(environment: Mapping[str, str], found: FoundMethod | FoundTask | None = None) -> list[str]:
    """Return a warning for each set variable that nothing will read, though its name suggests a variable of this project."""
    known = known_names(found)
    mistyped, similar = near_misses(environment, known)
    if isinstance(found, FoundMethod) and not found.declared:
        return [*mistyped, *similar]
    own = set[str]()
    if isinstance(found, FoundTask):
        own = _names(found.variables()) | {name for names in found.config.aliases.values() for name in names}
    elif found is not None:
        own = _names(found.config.variables())
    unread = [name for name in UNREAD if environment.get(name) and name not in own]
    warnings = [f"{name} is set, but it is ignored; {UNREAD[name]}" for name in unread] + similar
    if not isinstance(found, FoundMethod):
        return warnings
    for other in methods_of():
        ignored = sorted(
            name for name in _names(other.config.variables()) - own if environment.get(name) and not other.variant
        )
        warnings += [
            f"{name} is a variable of the method {other.config.name}; --method {found.config.name} does not read it"
            for name in ignored
        ]
    return warnings
