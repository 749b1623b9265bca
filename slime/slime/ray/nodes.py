"""The machines of a Ray cluster and their GPUs: whether those of a run are still up, and reserving them. Ray must be initialised.

Guarantees: a run that the cluster can never hold is refused at once. While other runs hold the GPUs, the wait prints
every ``SAY_SECONDS`` what it waits for, ends within a second of a signal, and leaves no reservation behind on failure.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group

from groundwork.exceptions import ConfigError
from groundwork.process import Stopped, StopRequested
from slime.exceptions import NodeError, NodeLostError

POLL_SECONDS = 2.0


SAY_SECONDS = 10.0
_POLL_SECONDS = 0.1


def live_nodes() -> dict[str, str]:
    """Return ``{node id: address}`` of the nodes that are up."""
    return {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}


def check_nodes(used: Mapping[str, str]) -> None:
    """Raise NodeLostError if a node of ``used`` (``{node id: address}``) is down."""
    if not used:
        return
    up = live_nodes()
    lost = sorted({address for node, address in used.items() if node not in up})
    if lost:
        raise NodeLostError(f"node {', '.join(lost)} left the cluster")


def wait_for_nodes(count: int, seconds: float, head: str, stop: StopRequested | None = None) -> None:
    """Wait until ``count`` machines are in the cluster; print their number whenever it changes.

    Raises:
        NodeError: machines are missing after ``seconds``.
        Stopped: a signal arrives.
    """
    deadline = time.monotonic() + seconds
    shown = 0
    while (here := len(live_nodes())) < count:
        if here != shown:
            print(f"{here} of {count} nodes", flush=True)
            shown = here
        if stop:
            raise Stopped
        if time.monotonic() > deadline:
            raise NodeError(
                f"{here} of {count} nodes after {seconds:.0f} s; start the same script on the others with NODE_RANK=1.. and "
                f"the head's address {head}"
            )
        time.sleep(POLL_SECONDS / 4)
    print(f"{here} of {count} nodes", flush=True)


def usable_gpus(nodes: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return ``{address: GPUs that have a CPU core}`` for the live machines in ``ray.nodes()``.

    Nodes with the same address count together.
    """
    results: dict[str, int] = {}
    for node in nodes:
        if node["Alive"]:
            resources, address = node["Resources"], node["NodeManagerAddress"]
            results[address] = results.get(address, 0) + int(min(resources.get("GPU", 0), resources.get("CPU", 0)))
    return results


def check_fits(wanted: int, roles: str, machines: Mapping[str, int]) -> None:
    """Raise ConfigError if ``machines`` (from :func:`usable_gpus`) have fewer than ``wanted`` GPUs in total."""
    there = sum(machines.values())
    if wanted > there:
        text = ", ".join(f"{address} has {count}" for address, count in sorted(machines.items()))
        raise ConfigError(
            f"the run needs {wanted} GPUs ({roles}), each with a CPU core, but the cluster has {there} ({text}); "
            "start more nodes, or give the roles fewer GPUs"
        )


def reserve(wanted: int, roles: str, seconds: float, stop: StopRequested | None = None) -> PlacementGroup:
    """Return a placement group of ``wanted`` bundles, each of one GPU and one CPU core.

    Args:
        wanted: number of bundles.
        roles: roles that use them, for messages.
        seconds: longest wait for other runs to free them.
        stop: a signal that ends the wait.

    Raises:
        ConfigError: the cluster does not have that many.
        NodeError: they are not free after ``seconds``.
        Stopped: a signal arrives.
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
    """Return whether every bundle of ``group`` is on a live machine; Ray moves bundles of a lost one if there is room."""
    table = placement_group_table(group)
    return table["state"] == "CREATED" and set(table["bundles_to_node_id"].values()) <= live_nodes().keys()


def wait_until_whole(group: PlacementGroup, what: str, seconds: float, stop: StopRequested | None = None) -> None:
    """Wait until ``group`` has all its bundles; raises like :func:`reserve`."""
    start = shown_at = time.monotonic()
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
        if now - shown_at >= SAY_SECONDS:
            print(f"waiting for {what}; free are {state} ({now - start:.0f} s)", flush=True)
            shown_at = now
        time.sleep(_POLL_SECONDS)
