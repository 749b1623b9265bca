"""The Ray placement group that holds the GPUs of a run's roles.

Guarantee: :func:`create_placement` reserves exactly what `slime.arguments.placement.describe_placement` describes. Only
the functions that talk to Ray import it.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from groundwork.exceptions import ConfigError
from groundwork.machine import cuda_facts, usable_cores
from slime.args import Arguments
from slime.arguments.cluster import device_problems
from slime.arguments.placement import GpuId, Placement, describe_placement
from slime.arguments.process_environment import NOSET
from slime.exceptions import NodeError, NodeLostError

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup

    from groundwork.process import StopRequested

ACTOR_GPU_SHARE = 0.4
ENGINE_GPU_SHARE = 0.2


@dataclass(frozen=True)
class Bundle:
    """One reserved GPU: its location and its bundle in the placement group.

    Attributes:
        bundle_index: index in the placement group.
        node_ip: address of its machine.
        gpu_id: its name in ``CUDA_VISIBLE_DEVICES`` there: a number, or ``GPU-`` and a UUID.
        node_id: Ray's id of its machine.
        cores: cores that the machine gives a process; 0 if not checked.
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
        """The machines that hold the bundles, as ``{node id: address}``."""
        return {bundle.node_id: bundle.node_ip for bundle in self.bundles}

    @property
    def other_nodes(self) -> dict[str, str]:
        """``nodes`` without the driver's; a run survives the loss of one of these and must notice it."""
        return {node: address for node, address in self.nodes.items() if node != self.home}

    def ranks_beside(self, gpu: int) -> int:
        """Return the number of training ranks, actor and critic, on the machine of GPU number ``gpu``."""
        node = self.bundles[gpu].node_id
        trainer = (*self.placement.actor, *self.placement.critic)
        return sum(self.bundles[other].node_id == node for other in trainer)

    def options(self, gpu: int, share: float) -> dict[str, Any]:
        """Return actor options that place an actor on a GPU with a share of it."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        assert self.group is not None, "a run without GPUs has no actors to place"
        strategy = PlacementGroupSchedulingStrategy(
            placement_group=self.group,
            placement_group_bundle_index=self.bundles[gpu].bundle_index,
            placement_group_capture_child_tasks=True,
        )
        return {"num_cpus": share, "num_gpus": share, "scheduling_strategy": strategy}


def create_placement(args: Arguments, stop: StopRequested | None = None) -> ReservedPlacement:
    """Reserve one {GPU: 1, CPU: 1} bundle per GPU and locate each; Ray must be initialised.

    Waits up to ``--node-timeout`` for GPUs that other runs use; raises like `slime.ray.nodes.reserve`.
    """
    import ray

    from slime.ray.nodes import reserve

    placement = describe_placement(args)
    if not placement.total:
        return ReservedPlacement(placement, None, ())
    group = reserve(placement.total, placement.roles(), args.node_timeout, stop)
    home = ray.get_runtime_context().get_node_id()
    foreign = (
        bool(args.ray_address) and args.device == "cuda"
    )  # machines of the run's own cluster were checked before they joined
    bundles = _probe_bundles(group, placement.total, check=foreign)
    return ReservedPlacement(placement, group, tuple(bundles), home)


def release_placement(reserved: ReservedPlacement) -> None:
    """Return the GPUs to the cluster."""
    from ray.util.placement_group import remove_placement_group

    if reserved.group is not None:
        remove_placement_group(reserved.group)


def with_replacements(
    reserved: ReservedPlacement, lost: str, seconds: float, stop: StopRequested | None = None
) -> ReservedPlacement:
    """Wait for machines that replace the lost ones, and return the new placement.

    Args:
        reserved: the previous placement.
        lost: description of the loss, for messages.
        seconds: longest wait.
        stop: a signal that ends the wait.

    Raises:
        NodeError: there is no replacement after ``seconds``.
        Stopped: a signal arrives.
    """
    from slime.ray.nodes import wait_until_whole

    assert reserved.group is not None, "a run without GPUs has no machines to lose"
    print(f"waiting up to {seconds:.0f} s for a machine to replace the lost one", flush=True)
    try:
        wait_until_whole(reserved.group, f"a machine to replace the lost one ({lost})", seconds, stop)
    except NodeError as error:
        raise NodeError(
            f"{lost}, and no machine replaced it within {seconds:.0f} s (--node-timeout); bring it back and restart the run "
            "with --resume"
        ) from error
    return replace(reserved, bundles=tuple(_probe_bundles(reserved.group, len(reserved.bundles))))


class Seen(NamedTuple):
    """A bundle process's view of its machine: Ray's node id, the bundle's GPU, all GPUs, cores, problems."""

    node_id: str
    gpu: str
    visible: str | None
    cores: int
    problems: tuple[str, ...]


def _probe_bundles(group: PlacementGroup, count: int, *, check: bool = False) -> list[Bundle]:
    """Locate every bundle with a short-lived actor; ``check`` raises ConfigError if CUDA does not work there."""
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
            # With it Ray keeps the machine's own CUDA_VISIBLE_DEVICES, which defines the order of UUIDs.
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
        raise NodeLostError("a machine left the cluster while the run counted its GPUs") from error
    finally:
        for probe in probes:
            ray.kill(probe)
    return sorted_bundles(seen, live_nodes())


def sorted_bundles(seen: Sequence[Seen], addresses: Mapping[str, str]) -> list[Bundle]:
    """Return the bundles ordered by machine address, then machine, then GPU position.

    Args:
        seen: what each bundle sees, in bundle order.
        addresses: machine addresses, ``{node id: address}``.

    Raises:
        ConfigError: a machine has problems; the message lists them.
    """
    if problems := {f"{addresses[look.node_id]}: {problem}" for look in seen for problem in look.problems}:
        raise ConfigError("; ".join(sorted(problems)))

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
