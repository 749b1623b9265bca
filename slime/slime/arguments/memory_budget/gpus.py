"""What each role needs on which GPU, and how many tokens the caches hold.

Needs of roles on one GPU add up, unless ``--offload-train`` or ``--offload-rollout`` lets them alternate. Engines are
sized in the start order of `slime.arguments.placement`: each gets what the earlier ones left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from slime.args import Arguments
from slime.arguments.memory_budget.engine import EnginePlan, engine_plan
from slime.arguments.memory_budget.parts import DRIVER, Need
from slime.arguments.memory_budget.shape import Shape, judge_shape, policy_shape
from slime.arguments.memory_budget.trainer import longest_sample, trainer_need
from slime.arguments.placement import describe_placement, start_order

TRAINERS = ("actor", "critic")


@dataclass(frozen=True)
class GpuRow:
    """GPUs that hold the same roles: their numbers, what each role needs, and the sum at the peak."""

    gpus: tuple[int, ...]
    needs: tuple[Need, ...]
    total: float
    doubt: float


@dataclass(frozen=True)
class Cache:
    """Token capacity of an engine's cache.

    Attributes:
        role: ``rollout`` or ``judge``.
        tokens: capacity at the first start.
        again: capacity after a restart while the other roles run.
        most: the smaller of the two, if all estimates are too high by their uncertainty.
        limit: value of ``--sglang-max-total-tokens``, or None.
    """

    role: str
    tokens: int
    again: int
    most: int
    limit: int | None


@dataclass(frozen=True)
class Layout:
    """All GPUs of a run.

    Attributes:
        rows: groups of GPUs with the same roles, in order.
        caches: caches of the engines that the run starts.
        context: tokens that a cache must hold; None if unknown.
        unknown: roles whose model shape is unknown.
    """

    rows: tuple[GpuRow, ...]
    caches: tuple[Cache, ...]
    context: int | None
    unknown: tuple[str, ...]


def layout(args: Arguments, capacity: float) -> Layout | None:
    """Return what each role needs on GPUs of ``capacity`` bytes; None if the policy's shape is unknown.

    Raises:
        ConfigError: the roles have no valid placement.
    """
    policy = policy_shape(args)
    if policy is None:
        return None
    placement = describe_placement(args)
    gpus = {
        "actor": placement.actor,
        "critic": placement.critic,
        "rollout": placement.rollout,
        "judge": placement.judge,
    }
    shapes = {"actor": policy, "critic": policy, "rollout": policy, "judge": judge_shape(args)}
    needs: dict[str, Need] = {}
    engines: dict[str, EnginePlan] = {}
    for role in (role for stage in start_order(placement) for role in stage):
        shape = shapes[role]
        if shape is None:
            continue
        if role in TRAINERS:
            needs[role] = trainer_need(args, shape, len(gpus[role]), role)
            continue
        engines[role] = _engine(args, shape, role, capacity, capacity - DRIVER - _others(args, needs, gpus, role))
        needs[role] = engines[role].need
    caches = tuple(
        _cache(args, shape, role, capacity, engines[role], needs, gpus)
        for role in engines
        if (shape := shapes[role]) is not None
    )
    unknown = tuple(role for role in gpus if gpus[role] and shapes[role] is None)
    return Layout(_rows(args, gpus, needs), caches, longest_sample(args), unknown)


def _engine(args: Arguments, shape: Shape, role: str, capacity: float, free: float) -> EnginePlan:
    ranks = args.rollout_num_gpus_per_engine if role == "rollout" else args.prm_num_gpus_per_engine
    teaches = args.use_opd or args.advantage_estimator == "on_policy_distillation" or bool(args.distill_topk)
    teacher = "judge" if args.opd_teacher == "prm" else "rollout"
    scores = teaches and teacher == role
    return engine_plan(args, shape, role=role, ranks=ranks, capacity=capacity, free=free, scores=scores)


def _others(args: Arguments, needs: Mapping[str, Need], gpus: Mapping[str, tuple[int, ...]], role: str) -> float:
    """Return the bytes that other roles occupy on the GPUs of ``role`` when its engine starts."""
    sharing = [need for other, need in needs.items() if other != role and {*gpus[other]} & {*gpus[role]}]
    leaves = bool(args.offload_train)
    return sum(need.away if leaves and need.role in TRAINERS else need.total for need in sharing)


def _cache(
    args: Arguments,
    shape: Shape,
    role: str,
    capacity: float,
    plan: EnginePlan,
    needs: Mapping[str, Need],
    gpus: Mapping[str, tuple[int, ...]],
) -> Cache:
    """Return the cache at the first start and after a restart while all other roles run."""
    free = capacity - DRIVER - _others(args, needs, gpus, role)
    again = _engine(args, shape, role, capacity, free).cache_tokens
    doubt = sum(need.doubt for other, need in needs.items() if {*gpus[other]} & {*gpus[role]})
    most = _engine(args, shape, role, capacity, free + doubt).cache_tokens
    return Cache(role, plan.cache_tokens, again, most, args.sglang_max_total_tokens)


def _rows(args: Arguments, gpus: Mapping[str, tuple[int, ...]], needs: Mapping[str, Need]) -> tuple[GpuRow, ...]:
    rows: dict[tuple[str, ...], GpuRow] = {}
    for gpu in sorted({gpu for role in needs for gpu in gpus[role]}):
        roles = tuple(role for role in gpus if role in needs and gpu in gpus[role])
        if roles in rows:
            rows[roles] = replace(rows[roles], gpus=(*rows[roles].gpus, gpu))
            continue
        present = tuple(needs[role] for role in roles)
        total, doubt = _worst(args, present)
        rows[roles] = GpuRow((gpu,), present, total + DRIVER, doubt)
    return tuple(rows.values())


def _worst(args: Arguments, needs: tuple[Need, ...]) -> tuple[float, float]:
    """Return the peak bytes and their uncertainty: the larger of the engines' and the trainer's phase."""
    moments = []
    for working in ("engines", "trainer"):
        total = doubt = 0.0
        for need in needs:
            trains = need.role in TRAINERS
            leaves = bool(args.offload_train if trains else args.offload_rollout and need.role == "rollout")
            if leaves and trains == (working == "engines"):
                total += need.away
            else:
                total, doubt = total + need.total, doubt + need.doubt
        moments.append((total, doubt))
    return max(moments)
