"""Which GPUs each role gets, what an engine is, and which rank trains which shard. Plain arithmetic on the arguments.

Guarantees: pure, so a dry run shows on any machine what a run will do. The order is actor, critic, rollout, judge. With
``--colocate`` the rollout shares the GPUs of actor and critic. A machine without GPUs has logical ones.

Roles that share a GPU start one after another, unless the memory plan leaves room for all of them at once
(`slime.arguments.memory_budget`); all others start together. An engine sizes its cache as ``free now -
free before x (1 - fraction)`` (`_profile_available_bytes` in SGLang 0.5.23), so memory that another process takes
meanwhile is missing from the cache. Engines therefore start before the trainer, which allocates on demand and measures
nothing. A run follows :func:`start_order` and a dry run prints it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from groundwork.exceptions import ConfigError
from slime.args import Arguments
from slime.arguments.algorithm import critic_gpus

Role = Literal["policy", "prm"]
GpuId = int | str
"""A GPU as in ``CUDA_VISIBLE_DEVICES``: its number on a machine, or ``GPU-`` and a UUID."""
STAGES = ("pp_size", "pipeline_parallel_size")
"""Both names of SGLang's flag for pipeline stages."""
RENTED = ("tinker", "fireworks")
"""Training back ends that are services, which sample, too."""


def is_rented(args: Arguments) -> bool:
    """Return whether a service trains and samples, so that this machine needs no GPU."""
    return args.train_backend in RENTED


@dataclass(frozen=True)
class EngineSpec:
    """One engine, or the part on one machine of an engine that spans several.

    Attributes:
        role: the role it serves.
        index: position among the engines of the role.
        num_gpus: GPUs of the whole engine.
        gpu_ids: GPUs on this machine; before machines are known, numbers over the whole cluster.
        host: address it listens on.
        nodes: machines of the engine; each has the same number of its GPUs.
        node_rank: rank of this machine; rank 0 serves.
    """

    role: Role
    index: int
    num_gpus: int
    gpu_ids: tuple[GpuId, ...] = ()
    host: str = "127.0.0.1"
    nodes: int = 1
    node_rank: int = 0

    @property
    def name(self) -> str:
        """Name in logs: ``engine-policy-0``, or on its second machine ``engine-policy-0-node-1``."""
        return f"engine-{self.role}-{self.index}" + (f"-node-{self.node_rank}" if self.node_rank else "")


@dataclass(frozen=True)
class Placement:
    """GPU numbers of each role, counted over the whole cluster."""

    actor: tuple[int, ...]
    rollout: tuple[int, ...]
    judge: tuple[int, ...]
    rollout_gpus_per_engine: int = 1
    judge_gpus_per_engine: int = 1
    critic: tuple[int, ...] = ()
    together: bool = False
    """Whether roles that share a GPU start at the same time, too."""

    @property
    def total(self) -> int:
        """Number of GPUs that at least one role uses."""
        return len({*self.actor, *self.critic, *self.rollout, *self.judge})

    def gpus(self, role: Role) -> tuple[int, ...]:
        """GPUs of the policy engines or of the judge engines."""
        return self.rollout if role == "policy" else self.judge

    def engines(self, role: Role) -> list[EngineSpec]:
        """Return the engines of a role, each with consecutive GPUs."""
        gpus = self.gpus(role)
        size = min(self.rollout_gpus_per_engine if role == "policy" else self.judge_gpus_per_engine, len(gpus) or 1)
        starts = range(0, len(gpus), size)
        return [EngineSpec(role, index, size, gpus[start : start + size]) for index, start in enumerate(starts)]

    def roles(self) -> str:
        """Return the roles with their GPU counts: ``actor 4 + rollout 2 + judge 2``."""
        counts = (("actor", self.actor), ("critic", self.critic), ("rollout", self.rollout), ("judge", self.judge))
        return " + ".join(f"{name} {len(gpus)}" for name, gpus in counts if gpus)

    def lines(self) -> list[str]:
        """Return one line per role to print: ``actor    GPU 0-3  4 ranks``."""
        engines = {role: f"{len(self.engines(role))} engine(s)" for role in ("policy", "prm")}
        shared = ", on the trainer's" if {*self.actor, *self.critic} & {*self.rollout} else ""
        rows = [
            ("actor", self.actor, f"{len(self.actor)} rank(s)"),
            ("critic", self.critic, f"{len(self.critic)} rank(s)"),
            ("rollout", self.rollout, f"{engines['policy']} of {self.rollout_gpus_per_engine}{shared}"),
            ("judge", self.judge, f"{engines['prm']} of {self.judge_gpus_per_engine}"),
        ]
        return [f"{name:<8} GPU {_interval(gpus):<6} {what}" for name, gpus, what in rows if gpus]


def describe_placement(args: Arguments) -> Placement:
    """Return the placement of a run, or raise :class:`ConfigError` with the flag to change."""
    actor_count = (
        0 if args.debug_rollout_only or is_rented(args) else args.actor_num_nodes * args.actor_num_gpus_per_node
    )
    trainer_count = actor_count + (0 if args.debug_rollout_only else critic_gpus(args))
    external_policy = bool(args.sglang_router_ip)
    external_judge = bool(args.prm_router_ip)
    if external_policy and actor_count:
        raise ConfigError(
            "engines at --sglang-router-ip cannot take new weights; remove it, or only collect with --debug-rollout-only"
        )
    rented = is_rented(args)
    no_engines = args.debug_train_only or external_policy or args.rollout_external_engine_addrs or rented
    rollout_count = 0 if no_engines else args.rollout_num_gpus
    no_judge = args.debug_train_only or external_judge or rented
    judge_count = args.prm_num_gpus if args.prm_enable and not no_judge else 0
    per_engine, judge_per_engine = args.rollout_num_gpus_per_engine, args.prm_num_gpus_per_engine
    if rollout_count and rollout_count % per_engine:
        raise ConfigError(
            f"--rollout-num-gpus {rollout_count} is not a multiple of --rollout-num-gpus-per-engine {per_engine}"
        )
    if judge_count and judge_count % judge_per_engine:
        raise ConfigError(
            f"--prm-num-gpus {judge_count} is not a multiple of --prm-num-gpus-per-engine {judge_per_engine}"
        )
    rollout_start = 0 if args.colocate else trainer_count
    judge_start = max(trainer_count, rollout_start + rollout_count)
    if args.share_gpu:
        rollout_start = judge_start = 0
    placement = Placement(
        actor=tuple(range(actor_count)),
        rollout=tuple(range(rollout_start, rollout_start + rollout_count)),
        judge=tuple(range(judge_start, judge_start + judge_count)),
        rollout_gpus_per_engine=per_engine,
        judge_gpus_per_engine=judge_per_engine,
        critic=tuple(range(actor_count, trainer_count)),
        together=args.start_together,
    )
    nodes = args.num_nodes or 1
    if nodes > 1:
        _check_whole_machines(placement, args.num_gpus_per_node)
    available = args.num_gpus
    if available is not None and placement.total > nodes * available:
        raise ConfigError(f"{placement.roles()} GPUs need {placement.total}, --num-gpus is {nodes * available}")
    return placement


def _check_whole_machines(placement: Placement, gpus_per_node: int) -> None:
    """Raise ConfigError if an engine that spans machines would start in the middle of one."""
    roles = (
        ("rollout", placement.rollout, placement.rollout_gpus_per_engine),
        ("prm", placement.judge, placement.judge_gpus_per_engine),
    )
    for role, gpus, size in roles:
        if gpus and size > gpus_per_node and gpus[0] % gpus_per_node:
            raise ConfigError(
                f"--{role}-num-gpus-per-engine {size}: an engine that spans machines takes whole ones, but the roles before it "
                f"({placement.roles()}) have {gpus[0]} GPUs, not a multiple of --num-gpus-per-node {gpus_per_node}"
            )


def _interval(gpus: Sequence[int]) -> str:
    return str(gpus[0]) if len(gpus) == 1 else f"{gpus[0]}-{gpus[-1]}"


def model_parallel_size(args: Arguments) -> int:
    """Return the number of ranks that hold one copy of the model."""
    return args.tensor_model_parallel_size * args.pipeline_model_parallel_size * args.context_parallel_size


def data_parallel_size(args: Arguments, world_size: int) -> int:
    """Return the number of model copies, each with its own samples; one per rank without Megatron."""
    return world_size // model_parallel_size(args) if args.train_backend == "megatron" else world_size


def data_parallel_rank(args: Arguments, rank: int, world_size: int) -> int:
    """Return which shard of the data ``rank`` trains on.

    In Megatron's rank order the tensor-parallel rank varies fastest, then data, then pipeline ("tp-cp-ep-dp-pp").
    """
    if args.train_backend != "megatron":
        return rank
    inner = args.tensor_model_parallel_size * args.context_parallel_size
    return rank // inner % data_parallel_size(args, world_size)


def shard_of_rank(args: Arguments, shards: list[Any], world_size: int) -> list[Any]:
    """Return each rank's shard, given one shard per copy of the model."""
    return [shards[data_parallel_rank(args, rank, world_size)] for rank in range(world_size)]


def pipeline_stages(args: Arguments) -> int:
    """Return the pipeline stages per engine: ``--sglang-pp-size``, in SGLang also ``--pipeline-parallel-size``."""
    return next((size for name in STAGES if (size := getattr(args, f"sglang_{name}"))), 1)


def tensor_parallel_size(args: Arguments, num_gpus: int) -> int:
    """Return the GPUs per pipeline stage of an engine.

    Raises:
        ConfigError: the stages do not divide the GPUs.
    """
    stages = pipeline_stages(args)
    if num_gpus % stages:
        raise ConfigError(
            f"an engine of {num_gpus} GPUs cannot be split into {stages} pipeline stages; change --sglang-pp-size"
        )
    return num_gpus // stages


def padded_length(length: int, ranks: int) -> int:
    """Return ``length`` padded to two equal chunks for each of ``ranks`` context-parallel ranks."""
    return length if ranks == 1 else -(-length // (2 * ranks)) * 2 * ranks


ENGINE_ROLES = {"policy": "rollout", "prm": "judge"}
"""Engine roles in a placement."""


def start_order(placement: Placement) -> tuple[tuple[str, ...], ...]:
    """Return the stages of the start, each with the roles that start together.

    A stage begins once every role of the previous stage is up. Roles without GPUs in this run are left out.
    """
    gpus = {
        "rollout": placement.rollout,
        "judge": placement.judge,
        "actor": placement.actor,
        "critic": placement.critic,
    }
    stages: dict[str, int] = {}
    for role, own in gpus.items():
        if own:
            sharing = [stage for other, stage in stages.items() if {*own} & {*gpus[other]} and not placement.together]
            stages[role] = max(sharing, default=-1) + 1
    number = max(stages.values(), default=-1) + 1
    return tuple(tuple(role for role in gpus if stages.get(role) == stage) for stage in range(number))


def stage_of(placement: Placement, role: str) -> int:
    """Return the stage in which ``role`` starts; 0 for external engines, whose GPUs are not this run's."""
    return next((number for number, roles in enumerate(start_order(placement)) if role in roles), 0)


def trainer_waits(placement: Placement) -> bool:
    """Return whether actor and critic start after all engines are up."""
    return any(stage_of(placement, role) for role in ("actor", "critic"))


def start_lines(placement: Placement) -> list[str]:
    """Return the start order to print, one line per stage: ``1. rollout + judge``."""
    return [f"{number}. {' + '.join(roles)}" for number, roles in enumerate(start_order(placement), start=1)]
