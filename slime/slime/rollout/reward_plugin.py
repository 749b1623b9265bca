"""Reward plugins of every form as one awaitable function: ``fn(args, sample or samples, **kw)``.

A plugin is one of: * that function itself; * ``get_reward_model(config)``, whose object has ``score(prompt, response,
next_state)``; * a class whose object has ``compute_reward(prompt, response, next_state)`` and optionally
``batch_compute_rewards`` with a
  list of each.

``config`` is ``args``. ``next_state`` is ``sample.metadata["next_state"]`` or None, passed only if the method takes it.
Guarantees: one object per path and process, created on first use. Synchronous methods run in a thread, so a slow one
does not delay other samples.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from slime.args import Arguments
from slime.exceptions import PluginError
from slime.utils.async_utils import gather_or_cancel
from slime.utils.misc import load_function
from slime.utils.types import Sample

FACTORY = "get_reward_model"
SINGLE_METHODS = ("score", "compute_reward")
BATCH_METHOD = "batch_compute_rewards"

RewardFunction = Callable[..., Awaitable[Any]]


def load_reward_function(path: str, args: Arguments) -> RewardFunction:
    """Return the plugin at ``path`` as ``fn(args, sample or samples, **kw)``.

    Raises:
        PluginError: the path names nothing, or something of another form.
    """
    plugin = load_function(path)
    if inspect.isclass(plugin) or getattr(plugin, "__name__", "") == FACTORY:
        return functools.partial(_score_with, _model(path, plugin, args))
    return plugin


_models: dict[str, Any] = {}


def _model(path: str, plugin: Callable[..., Any], args: Arguments) -> Any:
    if path not in _models:
        takes_config = bool(inspect.signature(plugin).parameters)
        model = plugin(args) if takes_config else plugin()
        if not any(hasattr(model, name) for name in (*SINGLE_METHODS, BATCH_METHOD)):
            raise PluginError(
                f"reward plugin {path}: its {type(model).__name__} has neither {', '.join(SINGLE_METHODS)} nor {BATCH_METHOD}"
            )
        _models[path] = model
    return _models[path]


async def _score_with(model: Any, args: Arguments, sample: Sample | list[Sample], **kwargs: Any) -> Any:
    single = next((getattr(model, name) for name in SINGLE_METHODS if hasattr(model, name)), None)
    batch = getattr(model, BATCH_METHOD, None)
    if not isinstance(sample, list):
        if single is None:
            return (await _score_with(model, args, [sample]))[0]
        return await _call(single, _values(sample))
    if batch is not None:
        columns = [list(column) for column in zip(*map(_values, sample), strict=True)] if sample else [[], [], []]
        return list(await _call(batch, columns))
    return await gather_or_cancel(_call(single, _values(one)) for one in sample)


def _values(sample: Sample) -> list[Any]:
    return [sample.prompt, sample.response, sample.metadata.get("next_state")]


async def _call(method: Any, values: list[Any]) -> Any:
    parameters = inspect.signature(method).parameters.values()
    takes_all = any(parameter.kind == inspect.Parameter.VAR_POSITIONAL for parameter in parameters)
    values = values if takes_all else values[: len(parameters)]
    if inspect.iscoroutinefunction(method):
        return await method(*values)
    return await asyncio.to_thread(method, *values)
