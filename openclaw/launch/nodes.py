"""Several machines: checks their variables, and builds the command of machines other than the head."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from groundwork.exceptions import ConfigError
from groundwork.variables import Value
from slime.args import Arguments, required
from slime.arguments.machines import missing_secret

DEFAULT_PORT = 6379
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def check_nodes(values: Mapping[str, Value], gpu_ids: tuple[int, ...] | None, environment: Mapping[str, str]) -> None:
    """Raise ConfigError if the machines of a run could not find or trust each other."""
    count, rank, head = int(str(values["nnodes"])), int(str(values["node_rank"])), values["master_addr"]
    if count == 1:
        given = {
            "NODE_RANK": rank,
            "MASTER_ADDR": None if head in LOOPBACK else head,
            "MASTER_PORT": None if values["master_port"] == DEFAULT_PORT else values["master_port"],
            "NODE_ADDR": values["node_addr"],
        }
        words = [f"{name}={value}" for name, value in given.items() if value]
        if words:
            raise ConfigError(f"{' '.join(words)} is for several machines; set NNODES to their number, or unset it")
        return
    problems = []
    if rank >= count:
        problems.append(f"NODE_RANK={rank} with NNODES={count}; machines are numbered 0 to {count - 1}")
    if not head or head in LOOPBACK:
        problems.append(f"NNODES={count} needs MASTER_ADDR, the address at which the others reach the head")
    if gpu_ids is not None:
        problems.append("lists of GPUs are for one machine; write ACTOR_GPUS, ROLLOUT_GPUS and PRM_GPUS as counts")
    if problem := missing_secret(environment):
        problems.append(problem)
    if problems:
        raise ConfigError("\n  - ".join(["several machines:", *problems]) if len(problems) > 1 else problems[0])


def node_command(args: Arguments, values: Mapping[str, Value]) -> tuple[str, ...]:
    """Return the command of a machine other than the head; it honours flags given after the script's name."""
    own = ("--node-address", str(values["node_addr"])) if values["node_addr"] else ()
    return (
        *(sys.executable, "-m", "slime.ray.worker_node"),
        *(
            "--head-address",
            required("--head-address", args.head_address),
            "--num-gpus",
            str(args.num_gpus_per_node),
            "--device",
            args.device,
        ),
        *("--timeout", f"{args.node_timeout:g}"),
        *("--log", str(Path(args.run_dir) / "logs" / f"ray-node-{values['node_rank']}.log"), *own),
    )
