"""The Ray placement group that holds the GPUs of a run's roles.

Guarantee: :func:`create_placement` gives exactly what `slime.arguments.placement.describe_placement` says of a run. Ray is
imported only by the functions that talk to it.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from slime.args import Arguments
from slime.arguments.devices import device_problems
from slime.arguments.placement import GpuId, Placement, describe_placement
from slime.arguments.process_environment import NOSET
from slime.exceptions import ConfigurationError, NodeError, NodeLostError
from slime.utils.machine import cuda_facts, usable_cores

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup

    from slime.utils.process import StopRequested

ACTOR_GPU_SHARE = 0.4
ENGINE_GPU_SHARE = 0.2


@dataclass(frozen=True)
class Bundle:
    """One reserved GPU: where it is and which bundle of the placement group holds it.

    Attributes:
        bundle_index: in the placement group.
        node_ip: address of its machine.
        gpu_id: as ``CUDA_VISIBLE_DEVICES`` of a process there names it: a number, or ``GPU-`` and a UUID.
        node_id: of its machine, in Ray.
        cores: that the machine gives to a process; 0 where nobody looked.
    """

    bundle_index: int
    node_ip: str
    gpu_id: GpuId
    node_id: str = ""
    cores: int = 0


@dataclass(frozen=True)
class ReservedPlacement:
    """A placement with the cluster's bundles; ``bundles[gpu]`` holds GPU number ``gpu``; ``home`` is the driver's node."""

    placement: Placement
    group: PlacementGroup | None
    bundles: tuple[Bundle, ...]
    home: str = ""

    @property
    def nodes(self) -> dict[str, str]:
        """``{node id: address}`` of the machines that hold the bundles."""
        return {bundle.node_id: bundle.node_ip for bundle in self.bundles}

    @property
    def other_nodes(self) -> dict[str, str]:
        """``nodes`` without the driver's: a run that loses one of these outlives it, and has to notice."""
        return {node: address for node, address in self.nodes.items() if node != self.home}

    def ranks_beside(self, gpu: int) -> int:
        """Return how many training ranks, of actor and critic, the machine of GPU number ``gpu`` has."""
        node = self.bundles[gpu].node_id
        trainer = (*self.placement.actor, *self.placement.critic)
        return sum(self.bundles[other].node_id == node for other in trainer)

    def options(self, gpu: int, share: float) -> dict[str, Any]:
        """Actor options that put an actor on a GPU with a share of it."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        assert self.group is not None, "a run without GPUs has no actors to place"
        strategy = PlacementGroupSchedulingStrategy(
            placement_group=self.group,
            placement_group_bundle_index=self.bundles[gpu].bundle_index,
            placement_group_capture_child_tasks=True,
        )
        return {"num_cpus": share, "num_gpus": share, "scheduling_strategy": strategy}


def create_placement(args: Arguments, stop: StopRequested | None = None) -> ReservedPlacement:
    """Reserve one {GPU: 1, CPU: 1} bundle per GPU and find out where each is; Ray must be initialised.

    Waits for GPUs that other runs use, ``--node-timeout`` at most; see `slime.ray.reserve.reserve` for what it raises.
    """
    import ray

    from slime.ray.reserve import reserve

    placement = describe_placement(args)
    if not placement.total:
        return ReservedPlacement(placement, None, ())
    group = reserve(placement.total, placement.roles(), args.node_timeout, stop)
    home = ray.get_runtime_context().get_node_id()
    foreign = (
        bool(args.ray_address) and args.device == "cuda"
    )  # the machines of an own cluster looked before they joined
    bundles = _probe_bundles(group, placement.total, check=foreign)
    return ReservedPlacement(placement, group, tuple(bundles), home)


def release_placement(reserved: ReservedPlacement) -> None:
    """Give the GPUs back to the cluster."""
    from ray.util.placement_group import remove_placement_group

    if reserved.group is not None:
        remove_placement_group(reserved.group)


def with_replacements(
    reserved: ReservedPlacement, lost: str, seconds: float, stop: StopRequested | None = None
) -> ReservedPlacement:
    """Return the placement with other machines for those that are gone, once there are any.

    Args:
        reserved: as it was.
        lost: what was lost, for messages.
        seconds: how long to wait.
        stop: ends the wait.

    Raises:
        NodeError: when there are none after ``seconds``.
        Stopped: on a signal.
    """
    from slime.ray.reserve import wait_until_whole

    assert reserved.group is not None, "a run without GPUs has no machines to lose"
    print(f"waiting for a machine in place of the lost one, {seconds:.0f} s at most", flush=True)
    try:
        wait_until_whole(reserved.group, f"a machine in place of the lost one ({lost})", seconds, stop)
    except NodeError as error:
        raise NodeError(
            f"{lost}, and none took its place within {seconds:.0f} s (--node-timeout); bring it back and start the run again "
            "with --resume"
        ) from error
    return replace(reserved, bundles=tuple(_probe_bundles(reserved.group, len(reserved.bundles))))


class Seen(NamedTuple):
    """What a process on a bundle sees of its machine: Ray's id of it, the bundle's GPU, all its GPUs, cores, problems."""

    node_id: str
    gpu: str
    visible: str | None
    cores: int
    problems: tuple[str, ...]


def _probe_bundles(group: PlacementGroup, count: int, *, check: bool = False) -> list[Bundle]:
    """Ask a short-lived actor on every bundle where it is; ``check`` raises ConfigurationError where CUDA does not work."""
    import ray
    from ray.exceptions import RayActorError
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    from slime.ray.nodes import live_nodes

    @ray.remote(num_cpus=ACTOR_GPU_SHARE, num_gpus=ACTOR_GPU_SHARE)
    class Probe:
        def look(self) -> Seen:
            node, visible = ray.get_runtime_context().get_node_id(), os.environ.get("CUDA_VISIBLE_DEVICES")
            problems = device_problems(cuda_facts(), os.environ, needed=1) if check else []
            return Seen(node, str(ray.get_gpu_ids()[0]), visible, usable_cores(), tuple(problems))

    probes: list[Any] = [
        Probe.options(
            # Ray then leaves the machine's own CUDA_VISIBLE_DEVICES, which orders its UUIDs.
            runtime_env={"env_vars": {NOSET: "1"}},
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                placement_group=group, placement_group_bundle_index=index
            ),
        ).remote()
        for index in range(count)
    ]
    try:
        seen = ray.get([probe.look.remote() for probe in probes])
    except RayActorError as error:
        raise NodeLostError("a machine left the cluster while its GPUs were counted") from error
    finally:
        for probe in probes:
            ray.kill(probe)
    return sorted_bundles(seen, live_nodes())


def sorted_bundles(seen: Sequence[Seen], addresses: Mapping[str, str]) -> list[Bundle]:
    """Return the bundles by address of the machine, then machine, then place of the GPU there.

    Args:
        seen: by the bundles, in their order.
        addresses: ``{node id: address}``.

    Raises:
        ConfigurationError: with the problems that a machine has.
    """
    if problems := {f"{addresses[look.node_id]}: {problem}" for look in seen for problem in look.problems}:
        raise ConfigurationError("; ".join(sorted(problems)))

    def place(bundle: Bundle) -> tuple[tuple[int, int, str], str, int]:
        visible = (seen[bundle.bundle_index].visible or "").split(",")
        number = bundle.gpu_id if isinstance(bundle.gpu_id, int) else visible.index(bundle.gpu_id)
        return _address_key(bundle.node_ip), bundle.node_id, number

    bundles = [
        Bundle(index, addresses[look.node_id], _gpu_id(look.gpu), look.node_id, look.cores)
        for index, look in enumerate(seen)
    ]
    return sorted(bundles, key=place)


def _gpu_id(name: str) -> GpuId:
    return int(name) if name.isdigit() else name


def _address_key(address: str) -> tuple[int, int, str]:
    try:
        return (0, int(ipaddress.ip_address(address)), "")
    except ValueError:
        return (1, 0, address)
