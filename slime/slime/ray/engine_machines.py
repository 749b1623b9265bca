"""Split an engine over its machines: one, or several with the same number of its GPUs each."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

from groundwork.exceptions import ConfigError
from slime.args import Arguments
from slime.arguments.placement import EngineSpec
from slime.ray.placement import ReservedPlacement

LOOPBACK = "127.0.0.1"


def by_machine(args: Arguments, reserved: ReservedPlacement, spec: EngineSpec) -> list[tuple[int, EngineSpec]]:
    """Return an engine's part on each of its machines, ordered by address.

    Args:
        args: arguments of the run.
        reserved: the run's GPUs.
        spec: the engine, with GPU numbers over the whole cluster.

    Returns:
        Per machine: its first GPU in the cluster's numbering, and a spec with the machine's own GPU numbers.

    Raises:
        ConfigError: the engine spans machines unevenly, or although one could hold it.
    """
    places = groupby(map(int, spec.gpu_ids), key=lambda gpu: reserved.bundles[gpu].node_id)
    parts = [list(gpus) for _, gpus in places]
    if len(parts) > 1 and spec.num_gpus <= args.num_gpus_per_node:
        raise ConfigError(
            f"{spec.name} would span {len(parts)} machines, although one of --num-gpus-per-node {args.num_gpus_per_node} can hold it; "
            "change the GPUs of the roles so that each engine is on one machine"
        )
    counts = [len(part) for part in parts]
    if len(set(counts)) > 1:
        raise ConfigError(
            f"{spec.name} would have {', '.join(map(str, counts))} GPUs on its machines, but an engine that spans machines needs the "
            "same number on each: change the GPUs of the roles"
        )
    # Listen on the machine's address only if there are other machines.
    several = args.num_nodes > 1
    found = []
    for rank, part in enumerate(parts):
        bundles = [reserved.bundles[gpu] for gpu in part]
        host = bundles[0].node_ip if several else LOOPBACK
        own = tuple(bundle.gpu_id for bundle in bundles)
        found.append((part[0], replace(spec, gpu_ids=own, host=host, nodes=len(parts), node_rank=rank)))
    return found
