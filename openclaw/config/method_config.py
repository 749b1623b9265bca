"""Let a method declare its own environment variables, defaults per profile and launch flags.

The method's module holds a class ``Config``: a frozen dataclass that derives from `MethodConfig` and declares its fields with
`variable`. Guarantee: launcher and runtime know a method's configuration only as a `MethodConfig`, so a new method needs no
change outside its folder. Imports only the standard library and `openclaw.exceptions`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import ClassVar, NamedTuple

from groundwork.exceptions import ConfigError
from groundwork.variables import EnvironmentConfig, Value, variable

__all__ = ["MethodConfig", "Reason", "config_of", "declared_configs", "variable"]

CONFIG_CLASS = "Config"


class Reason(NamedTuple):
    """Why something is not trained (``sentence``), and what to do about it (``remedy``, empty if nothing).

    Example: ``Reason("The session taught nothing.")``.
    """

    sentence: str
    remedy: str = ""


@dataclass(frozen=True, kw_only=True)
class MethodConfig(EnvironmentConfig):
    """A method's variables; class attributes hold everything else that the launcher needs.

    What a method does not declare is that of Binary RL: a sample's reward is the advantage of its tokens.

    Attributes:
        name: the word after ``--method``.
        rollout_function: plugin path of the rollout function; None if the script names it.
        defaults: defaults of launcher or runtime variables on every profile; a profile's defaults win over them.
        profile_defaults: defaults of launcher or runtime variables by profile name; they win over the profile's own.
            Those of ``tiny_cpu`` here let a tiny model learn a style and keep its arithmetic
            (log/tiny_demo.md#tiny-profile).
        reasons: what the method's own reasons against training mean; `openclaw.runs.reasons` has those of all methods.
        fills: streams that a custom loss may read and that not every method gives its samples (`slime.utils.streams`).
        trains_rewards: whether a sample's reward reaches the gradient; without it, agents' episodes give no samples.
        asks_judge: whether judges vote; without them a run starts no judge engine.
        has_environments: whether the method reads the variables of environments, for example ``ENV_TYPE``.
        recommended: whether a command without a method uses this one.
        guide_name: the method's name in configuration files of other guides.
        guide_keys: keys of such files, each with the variable or flag it sets.

    Example:
        >>> class Config(MethodConfig):
        ...     name = "mymethod"
        ...     defaults = {"LEARNING_RATE": 1e-6}
        ...     reasons = {"too_short": Reason("The reply has too few tokens to learn from.")}
        >>> Config.from_env({}).launch_flags()[:2]
        ('--advantage-estimator', 'grpo')
    """

    name: ClassVar[str]
    rollout_function: ClassVar[str | None] = None
    defaults: ClassVar[Mapping[str, Value]] = {}
    profile_defaults: ClassVar[Mapping[str, Mapping[str, Value]]] = {
        "tiny_cpu": {"LEARNING_RATE": 3e-4, "KL_LOSS_COEF": 0.2, "BATCH_SIZE": 16}
    }
    reasons: ClassVar[Mapping[str, Reason]] = {}
    fills: ClassVar[frozenset[str]] = frozenset({"teacher_log_probs", "teacher_topk_log_probs"})
    trains_rewards: ClassVar[bool] = True
    asks_judge: ClassVar[bool] = True
    has_environments: ClassVar[bool] = False
    recommended: ClassVar[bool] = False
    guide_name: ClassVar[str | None] = None
    guide_keys: ClassVar[Mapping[str, str]] = {}

    def launch_flags(self) -> Sequence[str]:
        """Return the method's flags for estimator and loss; the launcher adds the shared ones.

        These are the flags for GRPO without normalisation, so that a sample's reward is its advantage.
        """
        return ("--advantage-estimator", "grpo", "--disable-rewards-normalization", "--eps-clip-high", "0.28")


def declared_configs(module: ModuleType) -> list[type[MethodConfig]]:
    """Return a module's methods: its ``Config`` first, then its variants; empty if it declares none.

    Raises:
        ConfigError: a declaration has no name of its own or sets what is gone, or a variant declares its own variables.
    """
    main = getattr(module, CONFIG_CLASS, None)
    if not (isinstance(main, type) and issubclass(main, MethodConfig)):
        return []
    others = [var for var in vars(module).values() if isinstance(var, type) and var is not main]
    configs = [main, *(other for other in others if issubclass(other, main))]
    for config in configs:
        if "name" not in vars(config):
            raise ConfigError(f'{module.__name__}.{config.__name__} has no name; add a line: name = "mymethod"')
        if gone := {"keeps_topk", "keeps_student_topk"} & vars(config).keys():
            raise ConfigError(
                f"{module.__name__}.{config.__name__} sets {min(gone)}, which nothing reads; name the streams in fills instead"
            )
        if config.variables() != main.variables():
            raise ConfigError(
                f"{module.__name__}.{config.__name__} has other variables than {CONFIG_CLASS}, and the runtime reads only "
                f"those of {CONFIG_CLASS}; declare all of them there"
            )
    return configs


def config_of(factory: Callable[..., object]) -> type[MethodConfig] | None:
    """Return the ``Config`` in the module of a method's factory; None if there is none."""
    module = sys.modules.get(getattr(factory, "__module__", None) or "")
    configs = declared_configs(module) if module else []
    return configs[0] if configs else None
