"""What a method declares about itself: its environment variables, defaults per profile and launch flags.

Guarantees: launcher and runtime know a method's configuration only as a `MethodConfig`, so a new method needs no line
outside its folder. The module of the method holds a class ``Config``, a frozen dataclass derived from it, whose fields
are declared with `variable`. Imports only the standard library.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import ClassVar

from openclaw.config.environment_config import EnvironmentConfig, variable
from openclaw.config.variable import Value
from openclaw.exceptions import ConfigError

__all__ = ["MethodConfig", "config_of", "declared_configs", "variable"]

CONFIG_CLASS = "Config"


@dataclass(frozen=True, kw_only=True)
class MethodConfig(EnvironmentConfig):
    """The variables of a method; the class attributes say what else the launcher has to know.

    Attributes:
        name: as it is typed after ``--method``.
        rollout_function: plugin path of the rollout function; None where the script names it.
        defaults: defaults of any variable (launcher, runtime) on every profile; those of a profile win.
        profile_defaults: defaults of any variable by the name of a profile; they win over the profile's own.
        keeps_topk: whether samples have the teacher's top K when ``--distill-topk`` asks for it.
        has_environments: whether the method reads the variables of environments, ``ENV_TYPE`` for example.
        recommended: whether a command that names no method means this one.
        guide_name: what configuration files of other guides call the method.
        guide_keys: keys of such files, each with the variable or flag it sets.
    """

    name: ClassVar[str]
    rollout_function: ClassVar[str | None] = None
    defaults: ClassVar[Mapping[str, Value]] = {}
    profile_defaults: ClassVar[Mapping[str, Mapping[str, Value]]] = {}
    keeps_topk: ClassVar[bool] = True
    has_environments: ClassVar[bool] = False
    recommended: ClassVar[bool] = False
    guide_name: ClassVar[str | None] = None
    guide_keys: ClassVar[Mapping[str, str]] = {}

    def launch_flags(self) -> Sequence[str]:
        """Return the flags of estimator and loss; the launcher adds those that all methods share."""
        return ()


def declared_configs(module: ModuleType) -> list[type[MethodConfig]]:
    """Return the methods that a module declares: its ``Config`` first, then variants of it; empty where it has none.

    Raises:
        ConfigError: when a declaration has no name of its own, or a variant has variables of its own.
    """
    main = getattr(module, CONFIG_CLASS, None)
    if not (isinstance(main, type) and issubclass(main, MethodConfig)):
        return []
    others = [each for each in vars(module).values() if isinstance(each, type) and each is not main]
    configs = [main, *(each for each in others if issubclass(each, main))]
    for each in configs:
        if "name" not in vars(each):
            raise ConfigError(f'{module.__name__}.{each.__name__} has no name; add a line: name = "mymethod"')
        if each.variables() != main.variables():
            raise ConfigError(
                f"{module.__name__}.{each.__name__} has other variables than {CONFIG_CLASS}, which the runtime reads; "
                f"declare them in {CONFIG_CLASS}"
            )
    return configs


def config_of(factory: Callable[..., object]) -> type[MethodConfig] | None:
    """Return the ``Config`` in the module of what builds a method; None where there is none."""
    module = sys.modules.get(getattr(factory, "__module__", None) or "")
    configs = declared_configs(module) if module else []
    return configs[0] if configs else None
