"""On which machines an engine lies: one of them, or several with the same number of its GPUs each."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

from slime.args import Arguments
from slime.arguments.placement import EngineSpec
from slime.exceptions import ConfigurationError
from slime.ray.placement import ReservedPlacement

LOOPBACK = "127.0.0.1"


def by_machine(args: Arguments, reserved: ReservedPlacement, spec: EngineSpec) -> list[tuple[int, EngineSpec]]:
    """Return what of an engine is on each of its machines, in the order of their addresses.

    Args:
        args: of the run.
        reserved: the run's GPUs.
        spec: the engine, with its GPUs as they are numbered over the whole cluster.

    Returns:
        Of each machine the first of its GPUs in the cluster's numbering, and a spec with the machine's own.

    Raises:
        ConfigurationError: when the engine would lie on several machines though one can hold it, or unevenly.
    """
    places = groupby(map(int, spec.gpu_ids), key=lambda gpu: reserved.bundles[gpu].node_id)
    parts = [list(gpus) for _, gpus in places]
    if len(parts) > 1 and spec.num_gpus <= args.num_gpus_per_node:
        raise ConfigurationError(
            f"{spec.name} would lie on {len(parts)} machines, and one of --num-gpus-per-node {args.num_gpus_per_node} can hold it; "
            "change the GPUs of the roles so that each engine has its GPUs on one"
        )
    counts = [len(part) for part in parts]
    if len(set(counts)) > 1:
        raise ConfigurationError(
            f"{spec.name} would have {', '.join(map(str, counts))} GPUs on its machines; an engine of several machines has the "
            "same number on each: change the GPUs of the roles"
        )
    # Others reach it only where there are others.
    several = args.num_nodes > 1
    found = []
    for rank, part in enumerate(parts):
        bundles = [reserved.bundles[gpu] for gpu in part]
        host = bundles[0].node_ip if several else LOOPBACK
        own = tuple(bundle.gpu_id for bundle in bundles)
        found.append((part[0], replace(spec, gpu_ids=own, host=host, nodes=len(parts), node_rank=rank)))
    return found
