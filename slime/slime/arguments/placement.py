"""Which GPUs each role gets, what an engine is, and which rank trains which shard; plain arithmetic of the arguments.

Guarantees: pure, so a dry run says what a run will do on any machine. The order is actor, critic, rollout, judge, and with
``--colocate`` the rollout's GPUs are those of actor and critic; a machine without GPUs has logical ones.

Roles that share a GPU start one after another, all others at the same time. An engine sizes its cache as
``free now - free before x (1 - fraction)`` (`_profile_available_bytes` in SGLang 0.5.23), so whatever another process takes
meanwhile is missing from the cache. Engines go first, because a trainer takes memory as it needs it and measures nothing.
:func:`start_order` is what a run does and what a dry run prints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from slime.args import Arguments
from slime.arguments.critic import critic_gpus
from slime.exceptions import ConfigurationError

Role = Literal["policy", "prm"]
GpuId = int | str
"""A GPU as ``CUDA_VISIBLE_DEVICES`` names it: its number on a machine, or ``GPU-`` and a UUID."""
STAGES = ("pp_size", "pipeline_parallel_size")
"""Both names of SGLang's flag for pipeline stages."""


@dataclass(frozen=True)
class EngineSpec:
    """One engine, or of an engine of several machines what is on one of them.

    Attributes:
        role: which role it serves.
        index: its place among the engines of the role.
        num_gpus: GPUs of the whole engine.
        gpu_ids: those of this machine; before machines are known, numbers over the whole cluster.
        host: where it listens.
        nodes: number of the engine's machines; each has the same number of its GPUs.
        node_rank: which of them this is; the first serves.
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
        """Name in logs: ``engine-policy-0``, on its second machine ``engine-policy-0-node-1``."""
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

    @property
    def total(self) -> int:
        """Number of GPUs that any role uses."""
        return len({*self.actor, *self.critic, *self.rollout, *self.judge})

    def gpus(self, role: Role) -> tuple[int, ...]:
        """GPUs of the policy engines or of the judge engines."""
        return self.rollout if role == "policy" else self.judge

    def engines(self, role: Role) -> list[EngineSpec]:
        """The engines of a role, each with its consecutive GPUs."""
        gpus = self.gpus(role)
        size = min(self.rollout_gpus_per_engine if role == "policy" else self.judge_gpus_per_engine, len(gpus) or 1)
        starts = range(0, len(gpus), size)
        return [EngineSpec(role, index, size, gpus[start : start + size]) for index, start in enumerate(starts)]

    def roles(self) -> str:
        """The roles with their numbers of GPUs, as in a sentence: ``actor 4 + rollout 2 + judge 2``."""
        counts = (("actor", self.actor), ("critic", self.critic), ("rollout", self.rollout), ("judge", self.judge))
        return " + ".join(f"{name} {len(gpus)}" for name, gpus in counts if gpus)

    def lines(self) -> list[str]:
        """One line per role for people: ``actor    GPU 0-3  4 ranks``."""
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
    """Return the placement of a run; raises :class:`ConfigurationError` with the flag to change."""
    actor_count = 0 if args.debug_rollout_only else args.actor_num_nodes * args.actor_num_gpus_per_node
    trainer_count = actor_count + (0 if args.debug_rollout_only else critic_gpus(args))
    external_policy = bool(args.sglang_router_ip)
    external_judge = bool(args.prm_router_ip)
    if external_policy and actor_count:
        raise ConfigurationError(
            "engines at --sglang-router-ip cannot take new weights; remove it, or collect only with --debug-rollout-only"
        )
    no_engines = args.debug_train_only or external_policy or args.rollout_external_engine_addrs
    rollout_count = 0 if no_engines else args.rollout_num_gpus
    no_judge = args.debug_train_only or external_judge
    judge_count = args.prm_num_gpus if args.prm_enable and not no_judge else 0
    per_engine, judge_per_engine = args.rollout_num_gpus_per_engine, args.prm_num_gpus_per_engine
    if rollout_count and rollout_count % per_engine:
        raise ConfigurationError(
            f"--rollout-num-gpus {rollout_count} is not a multiple of --rollout-num-gpus-per-engine {per_engine}"
        )
    if judge_count and judge_count % judge_per_engine:
        raise ConfigurationError(
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
    )
    nodes = args.num_nodes or 1
    if nodes > 1:
        _check_whole_machines(placement, args.num_gpus_per_node)
    available = args.num_gpus
    if available is not None and placement.total > nodes * available:
        raise ConfigurationError(f"{placement.roles()} GPUs need {placement.total}, --num-gpus is {nodes * available}")
    return placement


def _check_whole_machines(placement: Placement, gpus_per_node: int) -> None:
    """Raise ConfigurationError when an engine of several machines would begin in the middle of one."""
    roles = (
        ("rollout", placement.rollout, placement.rollout_gpus_per_engine),
        ("prm", placement.judge, placement.judge_gpus_per_engine),
    )
    for role, gpus, size in roles:
        if gpus and size > gpus_per_node and gpus[0] % gpus_per_node:
            raise ConfigurationError(
                f"--{role}-num-gpus-per-engine {size}: an engine of several machines takes whole ones, and the roles before it "
                f"({placement.roles()}) have {gpus[0]} GPUs, no multiple of --num-gpus-per-node {gpus_per_node}"
            )


def _interval(gpus: Sequence[int]) -> str:
    return str(gpus[0]) if len(gpus) == 1 else f"{gpus[0]}-{gpus[-1]}"


def model_parallel_size(args: Arguments) -> int:
    """Ranks that hold one copy of the model."""
    return args.tensor_model_parallel_size * args.pipeline_model_parallel_size * args.context_parallel_size


def data_parallel_size(args: Arguments, world_size: int) -> int:
    """Copies of the model, each with its own samples; 1 per rank without Megatron."""
    return world_size // model_parallel_size(args) if args.train_backend == "megatron" else world_size


def data_parallel_rank(args: Arguments, rank: int, world_size: int) -> int:
    """Return which shard of the data ``rank`` trains on.

    Megatron numbers ranks with the tensor-parallel rank running fastest, then data, then pipeline ("tp-cp-ep-dp-pp").
    """
    if args.train_backend != "megatron":
        return rank
    inner = args.tensor_model_parallel_size * args.context_parallel_size
    return rank // inner % data_parallel_size(args, world_size)


def shard_of_rank(args: Arguments, shards: list[Any], world_size: int) -> list[Any]:
    """Return what each rank trains on, given one shard per copy of the model."""
    return [shards[data_parallel_rank(args, rank, world_size)] for rank in range(world_size)]


def pipeline_stages(args: Arguments) -> int:
    """Pipeline stages of each engine: ``--sglang-pp-size``, which SGLang also calls ``--pipeline-parallel-size``."""
    return next((size for name in STAGES if (size := getattr(args, f"sglang_{name}"))), 1)


def tensor_parallel_size(args: Arguments, num_gpus: int) -> int:
    """GPUs of an engine over its pipeline stages.

    Raises:
        ConfigurationError: when they do not divide.
    """
    stages = pipeline_stages(args)
    if num_gpus % stages:
        raise ConfigurationError(
            f"an engine of {num_gpus} GPUs does not divide into {stages} pipeline stages (--sglang-pp-size)"
        )
    return num_gpus // stages


def padded_length(length: int, ranks: int) -> int:
    """Tokens of a sample of ``length`` tokens with its padding to two chunks for each of ``ranks`` context-parallel ranks."""
    return length if ranks == 1 else -(-length // (2 * ranks)) * 2 * ranks


ENGINE_ROLES = {"policy": "rollout", "prm": "judge"}
"""Names of the engines' roles in a placement."""


def start_order(placement: Placement) -> tuple[tuple[str, ...], ...]:
    """Return the stages of the start, each with the roles that start at the same time.

    A stage begins when every role of the stage before is up. Roles without GPUs of this run are left out.
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
            sharing = [stage for other, stage in stages.items() if {*own} & {*gpus[other]}]
            stages[role] = max(sharing, default=-1) + 1
    number = max(stages.values(), default=-1) + 1
    return tuple(tuple(role for role in gpus if stages.get(role) == stage) for stage in range(number))


def stage_of(placement: Placement, role: str) -> int:
    """Return the stage in which ``role`` starts; 0 for one whose GPUs are not this run's (external engines)."""
    return next((number for number, roles in enumerate(start_order(placement)) if role in roles), 0)


def trainer_waits(placement: Placement) -> bool:
    """Whether actor and critic start when all engines are up."""
    return any(stage_of(placement, role) for role in ("actor", "critic"))


def start_lines(placement: Placement) -> list[str]:
    """Return the order for people, a line per stage: ``1. rollout + judge``."""
    return [f"{number}. {' + '.join(roles)}" for number, roles in enumerate(start_order(placement), start=1)]
