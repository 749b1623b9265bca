"""Reward plugins of every form as one awaitable function: ``fn(args, sample or samples, **kw)``.

A plugin is one of:

* that function itself;
* ``get_reward_model(config)``, or a class with ``__init__(checkpoint_path)``, ``__init__(config)`` or ``__init__()``. Its
  object has ``score(prompt, response, next_state)`` or ``compute_reward(prompt, response, next_feedback)``, or
  ``batch_compute_rewards(batch_data)`` with a dict per sample, or with three lists.

``config`` is a :class:`slime.args.ConfigView`, ``checkpoint_path`` is ``--prm-model-path``. The next state is
``sample.metadata["next_state"]``, or "" without one; it is passed only if the method takes it.

Guarantees: one object per path, checkpoint and process, built on first use. It is built and asked in a thread of its own, one call at a
time, so that a slow model blocks no event loop and needs no lock. Coroutine methods run on the event loop, concurrently. A
tensor or NumPy result becomes numbers. A signature that cannot be called is a `FormError`.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from slime.args import Arguments, ConfigView
from slime.arguments.plugin_forms import (
    BATCH_METHOD,
    CHECKPOINT_NAMES,
    SCORED,
    SINGLE_METHODS,
    FormError,
    check_reward_method,
    reward_parameter,
)
from slime.arguments.plugins import check_reward_checkpoint
from slime.utils.async_utils import gather_or_cancel
from slime.utils.misc import load_function
from slime.utils.types import Sample

FACTORY = "get_reward_model"
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

RewardFunction = Callable[..., Awaitable[Any]]


def load_reward_function(path: str, args: Arguments) -> RewardFunction:
    """Return the plugin at ``path`` as ``fn(args, sample or samples, **kw)``.

    Raises:
        PluginError: the path names nothing, or a model that cannot be built from what a run has.
    """
    plugin = load_function(path)
    if inspect.isclass(plugin) or getattr(plugin, "__name__", "") == FACTORY:
        return functools.partial(_score_with, _model(path, plugin, args))
    return plugin


class RewardModel:
    """A plugin's object, and the thread that builds and calls it."""

    def __init__(self, path: str, plugin: Callable[..., Any], args: Arguments) -> None:
        """Prepare the model; `FormError` if the run cannot build it."""
        self._path = path
        self._plugin = plugin
        self._given = _constructor_values(path, plugin, args)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="reward-model")

    @functools.cached_property
    def _object(self) -> Any:
        built = self._plugin(*self._given)
        if not any(hasattr(built, name) for name in (*SINGLE_METHODS, BATCH_METHOD)):
            methods = ", ".join((*SINGLE_METHODS, BATCH_METHOD))
            raise FormError("reward-1", f"{self._path}: its {type(built).__name__} has none of the methods {methods}")
        for name in (*SINGLE_METHODS, BATCH_METHOD):
            if hasattr(built, name):
                check_reward_method(self._path, name, inspect.signature(getattr(built, name)))
        return built

    async def method(self, *names: str) -> Callable[..., Any] | None:
        """Return the first of these methods that the object has, or None; build the object first."""
        built = await self._in_thread(lambda: self._object)
        return next((getattr(built, name) for name in names if hasattr(built, name)), None)

    async def call(self, method: Callable[..., Any], *values: Any) -> Any:
        """Return what a method of the object returns for as many of the values as it takes."""
        kinds = [parameter.kind for parameter in inspect.signature(method).parameters.values()]
        if inspect.Parameter.VAR_POSITIONAL not in kinds:
            values = values[: sum(kind in _POSITIONAL for kind in kinds)]
        result = (
            await method(*values) if inspect.iscoroutinefunction(method) else await self._in_thread(method, *values)
        )
        return result.tolist() if hasattr(result, "tolist") else result

    async def _in_thread(self, function: Callable[..., Any], *values: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *values)


_models: dict[tuple[str, str | None], RewardModel] = {}
_lock = threading.Lock()


def _model(path: str, plugin: Callable[..., Any], args: Arguments) -> RewardModel:
    key = path, args.prm_model_path
    with _lock:
        if key not in _models:
            _models[key] = RewardModel(path, plugin, args)
        return _models[key]


def _constructor_values(path: str, plugin: Callable[..., Any], args: Arguments) -> tuple[Any, ...]:
    """Return what builds the model: nothing, the checkpoint's path, or the configuration."""
    parameter = reward_parameter(path, inspect.signature(plugin))
    if parameter is None:
        return ()
    return (check_reward_checkpoint(args, path) if parameter in CHECKPOINT_NAMES else ConfigView(args),)


async def _score_with(model: RewardModel, args: Arguments, sample: Sample | list[Sample], **kwargs: Any) -> Any:
    single = await model.method(*SINGLE_METHODS)
    if isinstance(sample, list):
        batch = await model.method(BATCH_METHOD)
        if batch is not None:
            return list(await model.call(batch, *_batch_of(batch, sample)))
        assert single is not None
        return await gather_or_cancel(model.call(single, *_values(one)) for one in sample)
    if single is None:
        return (await _score_with(model, args, [sample]))[0]
    return await model.call(single, *_values(sample))


def _values(sample: Sample) -> tuple[Any, ...]:
    return sample.prompt, sample.response, sample.metadata.get("next_state") or ""


def _batch_of(method: Callable[..., Any], samples: list[Sample]) -> tuple[list[Any], ...]:
    """Return the values of a batch: three lists, or one list of dicts for a method with one parameter."""
    rows = list(map(_values, samples))
    names = list(inspect.signature(method).parameters)
    if len(names) > 1 or names[:1] == ["prompts"]:
        return tuple(list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [])
    return ([{**dict(zip(SCORED, row, strict=True)), "feedback": row[-1]} for row in rows],)
