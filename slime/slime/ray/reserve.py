"""The GPUs of a cluster: whether they can hold a run at all, and the wait until they are free. Ray must be initialised.

Guarantees: what the machines of the cluster can never hold is refused at once; while other runs hold the GPUs the wait says every
``SAY_SECONDS`` what it waits for, ends within a second of a signal, and leaves no reservation behind when it fails.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group

from slime.exceptions import ConfigurationError, NodeError
from slime.ray.nodes import live_nodes
from slime.utils.process import Stopped, StopRequested

SAY_SECONDS = 10.0
_POLL_SECONDS = 0.1


def usable_gpus(nodes: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return ``{address: GPUs that come with a CPU core}`` of the machines that are up, as ``ray.nodes()`` lists them.

    Several nodes of one address count together.
    """
    found: dict[str, int] = {}
    for node in nodes:
        if node["Alive"]:
            resources, address = node["Resources"], node["NodeManagerAddress"]
            found[address] = found.get(address, 0) + int(min(resources.get("GPU", 0), resources.get("CPU", 0)))
    return found


def check_fits(wanted: int, roles: str, machines: Mapping[str, int]) -> None:
    """Raise ConfigurationError when ``machines`` (of :func:`usable_gpus`) have less than ``wanted`` GPUs together."""
    there = sum(machines.values())
    if wanted > there:
        each = ", ".join(f"{address} has {count}" for address, count in sorted(machines.items()))
        raise ConfigurationError(
            f"the run asks for {wanted} GPUs ({roles}), each with a CPU core, and the cluster has {there} of them ({each}); "
            "start more nodes, or lower the flags of the roles"
        )


def reserve(wanted: int, roles: str, seconds: float, stop: StopRequested | None = None) -> PlacementGroup:
    """Return a placement group of ``wanted`` bundles of a GPU and a CPU core each.

    Args:
        wanted: number of bundles.
        roles: what they are for, for messages.
        seconds: how long to wait for others to free them.
        stop: ends the wait.

    Raises:
        ConfigurationError: when the cluster does not have them.
        NodeError: when they are not free after ``seconds``.
        Stopped: on a signal.
    """
    check_fits(wanted, roles, usable_gpus(ray.nodes()))
    group = placement_group([{"GPU": 1, "CPU": 1}] * wanted, strategy="PACK")
    try:
        wait_until_whole(group, f"{wanted} GPUs ({roles}), each with a CPU core", seconds, stop)
    except BaseException:
        remove_placement_group(group)
        raise
    return group


def is_whole(group: PlacementGroup) -> bool:
    """Whether every bundle of ``group`` is on a machine that is up; Ray moves those of a lost machine to another one that has room."""
    table = placement_group_table(group)
    return table["state"] == "CREATED" and set(table["bundles_to_node_id"].values()) <= live_nodes().keys()


def wait_until_whole(group: PlacementGroup, what: str, seconds: float, stop: StopRequested | None = None) -> None:
    """Return when ``group`` has all its bundles; see :func:`reserve` for what is raised."""
    start = said = time.monotonic()
    while not is_whole(group):
        if stop:
            raise Stopped
        now = time.monotonic()
        free, there = ray.available_resources(), ray.cluster_resources()
        state = ", ".join(f"{free.get(kind, 0):.0f} of {there.get(kind, 0):.0f} {kind}s" for kind in ("GPU", "CPU"))
        if now - start > seconds:
            raise NodeError(
                f"{what} did not become free within {seconds:.0f} s; free are {state}; end the other runs (`ray list jobs`), "
                "start more nodes, or raise --node-timeout"
            )
        if now - said >= SAY_SECONDS:
            print(f"waiting for {what}; free are {state} ({now - start:.0f} s)", flush=True)
            said = now
        time.sleep(_POLL_SECONDS)
