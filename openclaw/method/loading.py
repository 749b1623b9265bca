"""Load a method by name.

``OPENCLAW_METHOD`` names a factory as ``module.attribute``. It takes the runtime configuration
(`openclaw.config.runtime.RuntimeConfig`) and, if its module declares one, the method's ``Config``
(`openclaw.config.method_config`), and returns a `Method`.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from groundwork.exceptions import ConfigError
from openclaw.config.method_config import MethodConfig, config_of
from openclaw.method.interface import Method
from slime.exceptions import PluginError
from slime.utils.misc import load_function

PARTS = {
    "name": 'name = "openclaw-mymethod"',
    "judges": "def judges(self) -> JudgePlan",
    "samples": "def samples(self, turn, verdict) -> SampleDecision",
    "session_samples": "def session_samples(self, judged) -> list[tuple[str, Sample]]",
}
"""The parts of a method, each with the line that declares it."""
PACKAGE = Path(__file__).resolve().parents[1]
SLIME = PACKAGE.parent / "slime"
NOT_THE_METHOD = (
    PACKAGE,
    SLIME / "slime",
    SLIME / "groundwork",
    SLIME / "chat_codec",
    Path(sys.prefix),
    Path(sys.base_prefix),
)


def trains_rewards(path: str) -> bool:
    """Return whether the method at ``module.attribute`` learns from rewards, as its ``Config`` says; without one it does."""
    own = config_of(resolve(path))
    return own is None or own.trains_rewards


def maker(path: str, distill_topk: int) -> str:
    """Return what the ledger calls the method at ``module.attribute``: two names stand for samples with different numbers."""
    return f"{path} with top {distill_topk}" if distill_topk else path


def method_config(path: str) -> type[MethodConfig] | None:
    """Return the ``Config`` of the module of ``module.attribute``, or None."""
    return config_of(load_function(path))


def resolve(path: str) -> Any:
    """Return the object at ``module.attribute``.

    Raises:
        ConfigError: if there is none, or its module cannot be imported; the message has the line.
    """
    try:
        return load_function(path)
    except PluginError as error:
        raise ConfigError(str(error)) from error
    except Exception as error:
        raise ConfigError(f"{path} cannot be imported: {raised(error)}") from error


def build_method(path: str, config: Any, environment: Mapping[str, str] = os.environ) -> object:
    """Return what the factory at ``module.attribute`` returns for the runtime configuration and its own.

    Raises:
        ConfigError: if there is no such factory, it raises an exception, or a variable of the method has an unusable
            value.
    """
    factory: Callable[..., object] = resolve(path)
    own = config_of(factory)
    arguments = (config,) if own is None else (config, own.from_env(environment))
    try:
        return factory(*arguments)
    except ConfigError:
        raise
    except Exception as error:
        given = "config" if own is None else "config, own"
        raise ConfigError(f"{path}({given}) raised {raised(error)}") from error


def load_method(path: str, config: Any, environment: Mapping[str, str] = os.environ) -> Method:
    """Return the method at ``module.attribute``, built from the runtime configuration and its own.

    Raises:
        ConfigError: as `build_method` does, or if the method lacks a part.
    """
    method = build_method(path, config, environment)
    if not isinstance(method, Method) or missing_parts(method):
        raise ConfigError(f"{path} is not a method; {'; '.join(missing_parts(method))}")
    return method


def missing_parts(method: object) -> list[str]:
    """Return what ``method`` lacks of the interface `Method`, each with the line to add; empty if it is a method."""
    kind = type(method).__name__
    lacks = [part for part in PARTS if not hasattr(method, part)]
    wrong = [part for part in PARTS if part not in lacks and not _fits(part, getattr(method, part))]
    return [
        *(f"{kind} lacks {part}: add {PARTS[part]}" for part in lacks),
        *(f"{kind}.{part} is {getattr(method, part)!r:.60}: write {PARTS[part]}" for part in wrong),
    ]


def _fits(part: str, value: object) -> bool:
    return isinstance(value, str) if part == "name" else callable(value)


def _elsewhere(file: str) -> bool:
    return file.startswith("<") or any(Path(file).is_relative_to(folder) for folder in NOT_THE_METHOD)


def raised(error: BaseException) -> str:
    """Return an exception's type and text, with the line of the method that led to it."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not _elsewhere(frame.filename)]
    where = "".join(f" ({Path(frame.filename).name}, line {frame.lineno})" for frame in (own or frames)[-1:])
    return f"{type(error).__name__}: {error}{where}{_fields_of(error)}"


def _fields_of(error: BaseException) -> str:
    """Return the fields that a turn or verdict has, for an error about one that it lacks."""
    lacking = error.obj if isinstance(error, AttributeError) else None
    if not dataclasses.is_dataclass(lacking):
        return ""
    names = ", ".join(field.name for field in dataclasses.fields(lacking))
    return f"; a {type(lacking).__name__} has {names}"
