"""The machines of a Ray cluster, and whether those of a run are still up. Ray must be initialised."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import ray

from groundwork.process import Stopped, StopRequested
from slime.exceptions import NodeError, NodeLostError

POLL_SECONDS = 2.0


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


def get_watching(reference: Any, used: Mapping[str, str], stop: StopRequested | None = None) -> Any:
    """Return the value of ``reference``, while watching the machines of ``used``.

    Raises:
        NodeLostError: a node of ``used`` goes down meanwhile.
        Stopped: a signal arrives before the value.
    """
    while not ray.wait([reference], timeout=POLL_SECONDS)[0]:
        check_nodes(used)
        if stop:
            raise Stopped
    return ray.get(reference)


def wait_for_nodes(count: int, seconds: float, head: str, stop: StopRequested | None = None) -> None:
    """Wait until ``count`` machines are in the cluster; print their number whenever it changes.

    Raises:
        NodeError: machines are missing after ``seconds``.
        Stopped: a signal arrives.
    """
    deadline = time.monotonic() + seconds
    said = 0
    while (here := len(live_nodes())) < count:
        if here != said:
            print(f"{here} of {count} nodes", flush=True)
            said = here
        if stop:
            raise Stopped
        if time.monotonic() > deadline:
            raise NodeError(
                f"{here} of {count} nodes after {seconds:.0f} s; start the same script on the others with NODE_RANK=1.. and "
                f"the head's address {head}"
            )
        time.sleep(POLL_SECONDS / 4)
    print(f"{here} of {count} nodes", flush=True)
