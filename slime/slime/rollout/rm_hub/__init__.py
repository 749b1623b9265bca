"""Rewards of samples: who scores a sample, and the graders that come with the core.

Guarantee: a sample's own reward function goes before the run's; a sample that nothing can score is an error, not a zero.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import Any

from slime.exceptions import ConfigurationError
from slime.utils.misc import load_function
from slime.utils.types import Sample


async def async_rm(args: Namespace, sample: Sample, **kwargs: Any) -> Any:
    """Return the reward of one sample, a number or a dict of them."""
    return await _custom_function(args, sample.custom_rm_path)(args, sample, **kwargs)


async def batched_async_rm(args: Namespace, samples: list[Sample], **kwargs: Any) -> list[Any]:
    """Return the rewards of several samples; the reward function is called once, also when there are none."""
    return await _custom_function(args, None)(args, samples, **kwargs)


def _custom_function(args: Namespace, own_path: str | None) -> Callable[..., Any]:
    path = own_path or args.custom_rm_path
    if not path:
        raise ConfigurationError("nothing scores the samples; use --custom-rm-path module.function")
    return load_function(path)
