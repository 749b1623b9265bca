"""Functions of ``--rollout-sample-hook-path``, called with every answered sample before it is scored.

A hook is ``fn(args, sample, *, rollout_id=None, evaluation=False)``, sync or async, and gets only the keywords that it
declares. It changes the sample and returns None, or returns a new one. Hooks run in command-line order.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from slime.args import Arguments
from slime.exceptions import PluginError
from slime.utils.misc import load_function
from slime.utils.types import Sample


async def apply_sample_hooks(
    args: Arguments, result: Sample | list[Sample], *, rollout_id: int | None, evaluation: bool
) -> Sample | list[Sample]:
    """Run the hooks on a sample or on each of a list; skip an aborted sample until it is complete."""
    paths = args.rollout_sample_hook_path
    if not paths:
        return result
    if isinstance(result, list):
        return [await _apply(args, member, paths, rollout_id, evaluation) for member in result]
    return await _apply(args, result, paths, rollout_id, evaluation)


async def _apply(args: Arguments, sample: Sample, paths: list[str], rollout_id: int | None, evaluation: bool) -> Sample:
    if sample.status == Sample.Status.ABORTED:
        return sample
    known = {"rollout_id": rollout_id, "evaluation": evaluation}
    for path in paths:
        hook = load_function(path)
        changed = hook(args, sample, **{name: known[name] for name in _declared(hook) if name in known})
        if inspect.isawaitable(changed):
            changed = await changed
        if changed is not None and not isinstance(changed, Sample):
            raise PluginError(
                f"--rollout-sample-hook-path {path} returned {type(changed).__name__}, not a Sample or None"
            )
        sample = sample if changed is None else changed
    return sample


@functools.cache
def _declared(hook: Callable[..., Any]) -> tuple[str, ...]:
    parameters = inspect.signature(hook).parameters
    if any(parameter.kind == inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return ("rollout_id", "evaluation")
    return tuple(parameters)
