"""The machines of a Ray cluster: who is there, and whether those that a run uses still are. Ray must be initialised."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import ray

from slime.exceptions import NodeError, NodeLostError
from slime.utils.process import Stopped, StopRequested

POLL_SECONDS = 2.0


def live_nodes() -> dict[str, str]:
    """Return ``{node id: address}`` of the nodes that are up."""
    return {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}


def check_nodes(used: Mapping[str, str]) -> None:
    """Raise NodeLostError when a node of ``used`` (``{node id: address}``) is down."""
    if not used:
        return
    up = live_nodes()
    lost = sorted({address for node, address in used.items() if node not in up})
    if lost:
        raise NodeLostError(f"node {', '.join(lost)} left the cluster")


def get_watching(reference: Any, used: Mapping[str, str], stop: StopRequested | None = None) -> Any:
    """The value of ``reference``, which may wait for actors to start.

    Raises:
        NodeLostError: when a node of ``used`` goes meanwhile.
        Stopped: on a signal, unless the value is there.
    """
    while not ray.wait([reference], timeout=POLL_SECONDS)[0]:
        check_nodes(used)
        if stop:
            raise Stopped
    return ray.get(reference)


def wait_for_nodes(count: int, seconds: float, head: str, stop: StopRequested | None = None) -> None:
    """Return when ``count`` machines are in the cluster; says how many are whenever that changes.

    Raises:
        NodeError: when they are not there after ``seconds``.
        Stopped: on a signal.
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
