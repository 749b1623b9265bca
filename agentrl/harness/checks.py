"""What is known before the first run: the plan fits the gateway's bounds, gateway and pool answer, rewards train, and the pool
has every task.

Guarantee: nothing is left behind: a lease that was asked for is given back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from agentrl.client.episode import new_request_id
from agentrl.exceptions import CapacityError, InvalidError, NotFoundError
from agentrl.harness.driver import Plan
from agentrl.harness.gateway import EpisodeGateway, RefusedError
from agentrl.harness.run import LONGEST_RUN_S, key_seconds
from agentrl.protocol import LeaseRequest
from agentrl.service import LeaseService
from groundwork.exceptions import ConfigError
from openclaw.config.bounds import EPISODE_GROUP, EPISODE_SECONDS

AT_A_TIME = 8
TOO_LARGE = "larger_than_pool"


def check_plan(plan: Plan, timeout_s: float | None) -> None:
    """See that the gateway allows groups of this size, and that the keys of their episodes can live as long as they take.

    Args:
        plan: what is driven.
        timeout_s: most seconds of a run; None, which tasks decide, counts as the longest that a pool allows.

    Raises:
        ConfigError: it does not; names the options to change.
    """
    if plan.members > EPISODE_GROUP.most:
        raise ConfigError(
            f"--group-size and --spare are {plan.members} together; a group has at most {EPISODE_GROUP.most} runs"
        )
    needed = key_seconds(plan.waves, timeout_s or LONGEST_RUN_S)
    if needed > EPISODE_SECONDS.most:
        raise ConfigError(
            f"a group may take {plan.waves} runs one after another, {needed:.0f} s, but an episode lasts at most "
            f"{EPISODE_SECONDS.most} s; raise --parallel, or lower --timeout-s, --tries or --group-size"
        )


async def check_gateway(gateway: EpisodeGateway) -> None:
    """See that the gateway answers, takes the key, and trains rewards.

    Raises:
        AwayError: it does not answer.
        ConfigError: the key is wrong, or its method learns from no reward.
    """
    try:
        told = await gateway.overview()
    except RefusedError as error:
        raise ConfigError(f"the gateway has no episodes ({error}); is --gateway-url a gateway's?") from error
    if not told.trains_rewards:
        raise ConfigError("the gateway's method learns from no reward; start it with rl, combine or hybrid")


async def check_pool(service: LeaseService, tasks: Iterable[str]) -> None:
    """See that the pool answers, takes the key, and can lend every task; a full pool is none of these.

    Raises:
        AgentError: it does not answer.
        ConfigError: the key is wrong, or it lacks a task or room for one.
    """
    try:
        await service.status()
    except InvalidError as error:
        raise ConfigError(f"the pool refuses the request: {error}") from error
    some = asyncio.Semaphore(AT_A_TIME)

    async def check(task: str) -> None:
        async with some:
            await _check_task(service, task)

    try:
        async with asyncio.TaskGroup() as checks:
            for task in dict.fromkeys(tasks):
                checks.create_task(check(task))
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from None


async def _check_task(service: LeaseService, task: str) -> None:
    request = LeaseRequest(request_id=new_request_id(), task_id=task, wait_s=0)
    try:
        leased = await service.lease(request)
    except NotFoundError as error:
        raise ConfigError(
            f"the pool has no task {task!r}; correct --tasks, or start the pool with its --env"
        ) from error
    except CapacityError as error:
        if error.code == TOO_LARGE:
            raise ConfigError(f"the pool cannot lend {task!r}: {error}") from error
        return
    await service.release(leased.lease_id)
