"""``--rm-type remote_rm``: get the reward from a server at ``--rm-url``.

It gets ``POST {"prompt", "response", "label", "metadata"}`` and answers with a number or an object of numbers. After a
connection error, a time-out or a 5xx answer the request is tried up to ``ATTEMPTS`` times. Any other answer is an error
of the run, never a reward.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import Any

import httpx

from slime.args import Arguments, required
from slime.exceptions import HttpStatusError, SlimeError
from slime.rollout.rm_hub.extraction import whole
from slime.rollout.rm_hub.grader import Grader, needs_nothing
from slime.utils.http_utils import post
from slime.utils.types import Sample

logger = logging.getLogger(__name__)

ATTEMPTS = 5
ATTEMPT_SECONDS = 60.0
FIRST_DELAY_SECONDS = 0.5


class RemoteRewardError(SlimeError, RuntimeError):
    """The reward server returned no reward."""


async def _compare(args: Arguments, sample: Sample, answer: str) -> Any:
    payload = {"prompt": sample.prompt, "response": answer, "label": sample.label, "metadata": sample.metadata}
    delay = FIRST_DELAY_SECONDS
    for attempt in range(1, ATTEMPTS + 1):
        try:
            reward = await asyncio.wait_for(
                post(required("--rm-url", args.rm_url), payload, max_retries=1), ATTEMPT_SECONDS
            )
        except (TimeoutError, httpx.TransportError, HttpStatusError) as error:
            if isinstance(error, HttpStatusError) and error.status < 500:
                raise RemoteRewardError(f"--rm-url refused a sample: {error}") from error
            what = f"no answer in {ATTEMPT_SECONDS:g} s" if isinstance(error, TimeoutError) else str(error)
            if attempt == ATTEMPTS:
                message = (
                    f"--rm-url {args.rm_url} gave no reward in {ATTEMPTS} tries ({what}); is the reward server up?"
                )
                raise RemoteRewardError(message) from error
            logger.warning("reward server %s: %s, try %d of %d", args.rm_url, what, attempt, ATTEMPTS)
        else:
            if _is_reward(reward):
                return reward
            raise RemoteRewardError(
                f"--rm-url {args.rm_url} answered {str(reward)[:200]!r}; it must answer with a finite number, or an object of them"
            )
        await asyncio.sleep(delay)
        delay *= 2
    raise AssertionError("unreachable")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_reward(value: Any) -> bool:
    return _is_number(value) or (isinstance(value, dict) and any(map(_is_number, value.values())))


GRADER = Grader(extract=whole, compare=_compare, wrong=0.0, check=needs_nothing)
