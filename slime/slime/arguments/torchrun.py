"""What a program does that a launcher of ranks (torchrun, mpirun) starts once a rank, though it starts its ranks itself.

Guarantees: on one machine exactly one of the processes becomes the program, with the ranks that the launcher was asked for. The
launcher waits for it, and ends as it does. On several machines, and in programs without ranks, all processes end at the start.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TORCHRUN = "TORCHELASTIC_RUN_ID"
_VARIABLES = (
    ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE"),
)
"""Per launcher the variables with the rank on this machine, the ranks of this machine, and all ranks."""
_OF_RANKS = (
    "RANK",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "ROLE_NAME",
    "MASTER_ADDR",
    "MASTER_PORT",
)
"""What torchrun sets besides, and what would lead the run's own ranks to torchrun's rendezvous."""
RANKS = "--actor-num-gpus-per-node"
PLACEMENT = (
    *(
        RANKS,
        "--actor-num-nodes",
        "--rollout-num-gpus",
        "--colocate",
        "--share-gpu",
        "--num-gpus",
        "--num-gpus-per-node",
    ),
    *("--num-nodes", "--ray-address", "--rollout-external-engine-addrs"),
)
"""Flags with which a user says where trainer and engines are."""


@dataclass(frozen=True)
class Started:
    """How a launcher of ranks started this process.

    Attributes:
        rank: its number on this machine.
        here: processes on this machine.
        total: processes on all machines.
    """

    rank: int
    here: int
    total: int


def started_by(environment: Mapping[str, str]) -> Started | None:
    """Return how a launcher of ranks started this process; None if nobody did, or it started only this one."""
    for rank, here, total in _VARIABLES:
        if environment.get(rank) and (environment.get(total, "1") not in ("", "1") or environment.get(TORCHRUN)):
            everywhere = int(environment.get(total) or 1)
            return Started(int(environment[rank]), int(environment.get(here) or everywhere), everywhere)
    return None


def refuse_many_starts(environment: Mapping[str, str], instead: str = "type: python {program} FLAGS") -> None:
    """Exit with code 2 in a process that a launcher of ranks started; the first of a machine says why and what to do."""
    started = started_by(environment)
    if started is None:
        return
    if started.rank == 0:
        name, program = Path(sys.argv[0]).name, sys.argv[0]
        print(
            f"{name} starts all of its processes itself, so torchrun or mpirun would start them many times; "
            f"{instead.format(program=program)}",
            file=sys.stderr,
        )
    raise SystemExit(2)


def words_of_launcher(
    argv: Sequence[str], environment: MutableMapping[str, str] = os.environ, *, alternates: bool = True
) -> list[str]:
    """Return what to add to the command line in the one process that goes on; nothing if no launcher started this process.

    The first process goes on, without the launcher's variables. It gets as many ranks as the launcher has processes. If trainer
    and engines can alternate, and ``argv`` has no flag about placement, the engines share the GPUs of the ranks.

    Args:
        argv: program and words.
        environment: of this process.
        alternates: whether the program collects and trains in alternation.

    Raises:
        SystemExit: with code 0 in the other processes; with code 2 on several machines.
    """
    started = started_by(environment)
    if started is None:
        return []
    if started.here != started.total:
        refuse_many_starts(environment, "see instructions/cluster.md for several machines")
    if started.rank:
        raise SystemExit(0)
    for name in [*_OF_RANKS, *(name for names in _VARIABLES for name in names)]:
        environment.pop(name, None)
    for name in [name for name in environment if name.startswith("TORCHELASTIC_")]:
        del environment[name]
    given = {word.partition("=")[0] for word in argv}
    words = [] if RANKS in given else [RANKS, str(started.here)]
    words += ["--colocate"] if alternates and not given.intersection(PLACEMENT) else []
    ends = "; the others end" if started.here > 1 else ""
    adds = f" with {' '.join(words)}" if words else ""
    print(
        f"{Path(argv[0]).name}: torchrun or mpirun started {started.here} of it; this one goes on and starts the ranks{adds}{ends}",
        file=sys.stderr,
        flush=True,
    )
    return words
