"""The memory budget of a run: what each role needs per GPU, whether it fits, and what to change if it does not.

Guarantees: pure except for queries to the driver and the disk. A plan is refused only if it would not fit even with
every estimate too high by `gpu.UNCERTAINTY`; within that margin it gets a warning. Suggested changes are computed to
fit.

**Disk and host.** An FSDP2 checkpoint holds float32 weights and both moments, 12 bytes per parameter; Megatron adds its bfloat16 weights.
A LoRA run writes only its adapters. The older checkpoints remain while a new one is written.

**GPUs.** Needs of roles on one GPU add up, unless ``--offload-train`` or ``--offload-rollout`` lets them alternate. Engines are
sized in the start order of `slime.arguments.placement`: each gets what the earlier ones left.

**Engines.** An engine's cache takes ``free now - free before x (1 - fraction)``, where "before" means before the weights are loaded
(`_profile_available_bytes` and `measure_pre_model_load_memory` in SGLang 0.5.23). If nothing else uses the GPU
meanwhile, that is ``fraction x free before - weights``. ``--sglang-max-total-tokens`` is an upper bound. Graphs and the
working memory of a forward pass come out of what the fraction leaves.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from groundwork.exceptions import ConfigError
from slime.args import Arguments
from slime.arguments.memory_budget.gpu import CONTEXT, DRIVER, GIB, NCCL, SMI, GpuMemory, Need, Part, gpu_memory
from slime.arguments.memory_budget.shape import Shape, judge_shape, policy_shape
from slime.arguments.memory_budget.trainer import longest_sample, samples_are_bounded, step_tokens, trainer_need
from slime.arguments.option import flag_of
from slime.arguments.placement import data_parallel_size, describe_placement, start_order

MAX_FIXES = 3
_RECOMPUTE = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}


@dataclass(frozen=True)
class Fix:
    """A change of arguments: ``values`` by attribute. The first attribute names the change."""

    values: tuple[tuple[str, Any], ...]

    def changed(self, args: Arguments) -> Arguments:
        """Return ``args`` with the change applied."""
        return args.changed(**dict(self.values))


def fix(**values: Any) -> Fix:
    """Return the change that sets these attributes."""
    return Fix(tuple(values.items()))


def as_flags(change: Fix) -> str:
    """Return the change as flags to type: ``--max-tokens-per-gpu 8192``."""
    name, value = change.values[0]
    flag = flag_of(name)
    return flag if value is True else f"{flag} {value}"


def fitting(args: Arguments, fits: Callable[[Arguments], bool]) -> list[Fix]:
    """Return up to :data:`MAX_FIXES` changes that make ``fits`` true, the smallest of each kind."""
    results = []
    for ladder in _ladders(args):
        step = next((change for change in ladder if fits(change.changed(args))), None)
        if step is not None:
            results.append(step)
        if len(results) == MAX_FIXES:
            break
    return results


def _ladders(args: Arguments) -> Iterator[list[Fix]]:
    """Yield kinds of changes, cheapest kind first; within a kind the smallest step comes first."""
    fsdp = args.train_backend == "fsdp"
    if fsdp and not args.gradient_checkpointing:
        yield [fix(gradient_checkpointing=True)]
    for name in ("unchecked_layers", "kept_attention_layers"):
        if count := getattr(args, name):
            yield [fix(**{name: less}) for less in (*_halves(count, 1), 0)]
    if not fsdp and args.recompute_granularity != "full":
        yield [fix(**_RECOMPUTE)]
    if args.use_dynamic_batch_size and args.max_tokens_per_gpu:
        yield [fix(max_tokens_per_gpu=size) for size in _halves(args.max_tokens_per_gpu, 1024)]
    now = args.sglang_mem_fraction_static
    fractions = [round(0.1 * tenth, 1) for tenth in range(3, 10)]
    yield sorted(
        (fix(sglang_mem_fraction_static=value) for value in fractions if value != now),
        key=lambda change: abs(change.values[0][1] - (now or 0.9)),
    )
    context = args.sglang_context_length or args.rollout_max_context_len
    limit = args.sglang_max_total_tokens
    if context and limit != context:
        yield [fix(sglang_max_total_tokens=context)]
    if not (args.use_lora or args.advantage_estimator == "ppo"):
        yield [fix(use_lora=True, update_weight_mode="adapter")]
    if not args.share_gpu and not args.colocate:
        more = (args.actor_num_gpus_per_node * factor for factor in (2, 4))
        yield [fix(actor_num_gpus_per_node=gpus) for gpus in more if gpus <= args.num_gpus_per_node]
        yield [fix(rollout_num_gpus_per_engine=args.rollout_num_gpus)]
    if fsdp and not args.fsdp_cpu_offload and not args.colocate:
        yield [fix(fsdp_cpu_offload=True)]
    if context:
        judge = args.prm_max_new_tokens if args.prm_enable else 0
        least = max(2048, (args.rollout_max_response_len or 0) + 1, judge + 1)
        yield [fix(sglang_context_length=size, rollout_max_context_len=size) for size in _halves(context, least)]


def _halves(number: int, least: int) -> Iterator[int]:
    while (number := number // 2) >= least:
        yield number


# SGLang 0.5.23: `reserve_for_graph_mb`, `generate_prefill_cuda_graph_batch_sizes`, `max_loras_per_batch`,
# `mamba_full_memory_ratio`, `SGLANG_LOGPROB_CHUNK_SIZE`.
MIB_PER_DECODE_SIZE, MIB_PER_PREFILL_SIZE = 2, 8
ADAPTERS_PER_BATCH, STATE_RATIO, SCORED_ROWS = 8, 0.9, 2048
PEOPLE_PER_BATCH = 33
"""Versions that a batch of an engine may have with an adapter per person, the base among them."""
FRACTION = 0.88
"""Default ``--mem-fraction-static``; SGLang computes about this value for 80 GiB GPUs."""
ATTENTION_WORKSPACE = 0.4 * GIB
_BY_MEMORY = ((20, 2048, 8, 8), (35, 4096, 48, 160), (60, 4096, 32, 160), (160, 8192, 256, 512))
"""Per GPU size below this many GiB: prefill tokens per chunk, largest decode-graph batch (below TP 4, from TP 4 on)."""


@dataclass(frozen=True)
class EnginePlan:
    """Memory of an engine, and its cache's token capacity at a start; None if nothing known bounds it."""

    need: Need
    cache_tokens: int


def engine_plan(
    args: Arguments, shape: Shape, *, role: str, ranks: int, capacity: float, free: float, scores: bool
) -> EnginePlan:
    """Return the plan of one GPU of an engine.

    Args:
        args: arguments of the run.
        shape: model that the engine serves.
        role: ``rollout`` or ``judge``.
        ranks: GPUs of the engine.
        capacity: bytes of the GPU.
        free: bytes that no other process uses when the engine starts.
        scores: whether it returns log probabilities of prompts (a teacher).
    """
    stages = args.sglang_pp_size or 1
    tensor = max(1, ranks // stages)
    runtime = CONTEXT + (NCCL if ranks > 1 else 0)
    element = 1 if shape.quantised or args.sglang_quantization else 4 if args.sglang_dtype == "float32" else 2
    weights = element * (shape.parameters + shape.tower) / ranks
    values = 0.0
    if role == "rollout" and args.base_quantization == "nf4":
        weights, values = shape.bytes_in_nf4(element), element * shape.largest_linear
    adapters = 0.0
    if role == "rollout" and args.update_weight_mode == "adapter":
        adapters = (
            2
            * (PEOPLE_PER_BATCH if args.adapter_per_person else ADAPTERS_PER_BATCH)
            * shape.adapters(args.lora_rank)
            / ranks
        )
    chunk, batch = _sizes(args, capacity, tensor)
    graphs = _graph_bytes(args, chunk, batch)
    work = (
        values
        + ATTENTION_WORKSPACE
        + 2 * chunk * (4 * shape.hidden + 2 * (shape.query + shape.key) + 6 * shape.ffn) / tensor
    )
    if scores:
        work += 6 * min(SCORED_ROWS, chunk) * shape.vocab  # bfloat16 and float32
    before = free - runtime
    fraction = args.sglang_mem_fraction_static or FRACTION
    rest = fraction * before - weights - adapters
    state = _state_bytes(args, shape, rest, tensor, stages)
    cell = shape.cache_bytes(tensor, 1 if "fp8" in (args.sglang_kv_cache_dtype or "") else 2) / stages
    tokens = max(0, int((rest - state) / cell))
    if args.sglang_max_total_tokens:
        tokens = min(tokens, args.sglang_max_total_tokens)
    parts = (
        Part("weights", weights, exact=True),
        Part("adapters", adapters, exact=True),
        Part("cache", tokens * cell + state, exact=True),
        Part("graphs", graphs),
        Part("workspace", work),
        Part("runtime", runtime),
    )
    return EnginePlan(Need(role, parts, away=runtime + work), tokens)


def _state_bytes(args: Arguments, shape: Shape, rest: float, tensor: int, stages: int) -> float:
    """Return the bytes of linear-attention states: a fixed share of the cache, or the number that a flag gives."""
    if not shape.linear_layers:
        return 0.0
    if args.sglang_max_mamba_cache_size:
        return args.sglang_max_mamba_cache_size * shape.state_bytes(tensor) / stages
    ratio = args.sglang_mamba_full_memory_ratio or STATE_RATIO
    return max(0.0, rest) * ratio / (1 + ratio)


def _sizes(args: Arguments, capacity: float, tensor: int) -> tuple[int, int]:
    """Return the tokens of a prefill chunk, and the largest decode-graph batch (`handle_gpu_memory_settings`)."""
    rows = (row for row in _BY_MEMORY if capacity / GIB < row[0])
    _, chunk, few, many = next(rows, (0, 16384, 512, 512))
    batch = few if tensor < 4 else many
    if args.sglang_max_running_requests:
        batch = min(batch, args.sglang_max_running_requests)
    chunk = args.sglang_chunked_prefill_size or chunk
    return (chunk if chunk > 0 else args.sglang_max_prefill_tokens or 16384), batch


def _graph_bytes(args: Arguments, chunk: int, batch: int) -> float:
    """SGLang's own estimate: 2 MiB per decode batch size up to the largest, 8 MiB per captured prefill size."""
    if args.sglang_disable_cuda_graph:
        return 0.0
    largest = min(chunk, args.sglang_max_total_tokens or chunk)
    sizes = (
        *(*range(4, 33, 4), *range(48, 257, 16), *range(288, 513, 32), *range(576, 1025, 64)),
        *(*range(1280, 4097, 256), *range(4608, largest + 1, 512)),
    )
    captured = sum(size <= largest for size in sizes)
    return (batch * MIB_PER_DECODE_SIZE + captured * MIB_PER_PREFILL_SIZE) * 2**20


TRAINERS = ("actor", "critic")
RESERVE = 0.05
"""Share of a GPU that planned layers leave free, because the allocator fragments."""
LEAST_KEPT = 2**24
"""Tokens of a micro-batch times hidden size from which attention is kept: for less, the Python of each operation is not known to pay."""
LARGEST_HEAD = 256
"""Head size up to which torch has an attention kernel that stores no matrix of scores."""


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


def layout(args: Arguments, capacity: float, held: float = 0.0) -> Layout | None:
    """Return what each role needs on GPUs of ``capacity`` bytes; None if the policy's shape is unknown.

    Engines find all free but ``held`` bytes.

    Raises:
        ConfigError: the roles have no valid placement.
    """
    policy = policy_shape(args)
    if policy is None:
        return None
    placement = describe_placement(args)
    left = capacity - DRIVER - held
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
        engines[role] = _engine(args, shape, role, capacity, left - _others(args, needs, gpus, role))
        needs[role] = engines[role].need
    caches = tuple(
        _cache(args, shape, role, (capacity, left), engines[role], needs, gpus)
        for role in engines
        if (shape := shapes[role]) is not None
    )
    unknown = tuple(role for role in gpus if gpus[role] and shapes[role] is None)
    return Layout(_rows(args, gpus, needs), caches, longest_sample(args), unknown)


def _engine(args: Arguments, shape: Shape, role: str, capacity: float, free: float) -> EnginePlan:
    ranks = args.rollout_num_gpus_per_engine if role == "rollout" else args.prm_num_gpus_per_engine
    teaches = args.use_opd or args.advantage_estimator == "on_policy_distillation" or bool(args.distill_topk)
    scores = teaches and (
        role == "rollout" or args.opd_teacher == "prm"
    )  # the policy scores its reply beside any teacher
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
    capacity_and_left: tuple[float, float],
    plan: EnginePlan,
    needs: Mapping[str, Need],
    gpus: Mapping[str, tuple[int, ...]],
) -> Cache:
    """Return the cache at the first start and after a restart while all other roles run."""
    capacity, left = capacity_and_left
    free = left - _others(args, needs, gpus, role)
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


def reason_to_plan_nothing(args: Arguments, shape: Shape, memory: GpuMemory) -> str | None:
    """Return why the memory of a step or of the GPUs is not known well enough to fill it; None if it is."""
    if not samples_are_bounded(args):
        return "no flag bounds the samples of this run"
    if shape.tower or shape.experts or shape.linear_layers:
        return "a vision tower, experts and linear attention are not counted exactly"
    dense = args.attn_implementation == "eager" or not args.pack_sequences or shape.sliding
    if dense or args.train_dtype == "float32" or args.deterministic_mode:
        return (
            "attention's memory is counted for packed samples in bfloat16 only, without windows, --deterministic-mode "
            "and --attn-implementation eager"
        )
    if shape.head_dim > LARGEST_HEAD or shape.head_dim % 8:
        return f"attention with heads of size {shape.head_dim} is not counted"
    if args.rollout_external_engine_addrs or args.prm_router_ip:
        return "engines that the run does not start may be on its GPUs"
    if memory.source == SMI and ((args.num_nodes or 1) > 1 or args.ray_address):
        return "this machine's GPUs need not be those of the others; --gpu-memory-gb N tells their size"
    return None


def planned_layers(args: Arguments, shape: Shape, memory: GpuMemory) -> dict[str, int]:
    """Return how many layers stay unchecked and how many keep attention's output, by argument; empty without checkpointing.

    A flag's count stays. The others are as many as fit in all but `RESERVE` of ``memory``, without what other processes hold, with
    every estimate too low by `UNCERTAINTY`; attention first, because it saves more time per byte
    (log/gpu_kernels.md#gpu-checkpointing), if micro-batches have at least `LEAST_KEPT` elements. An engine's cache never gets
    smaller for it. 0 if there is a `reason_to_plan_nothing`.
    """
    if args.device != "cuda" or args.train_backend != "fsdp" or not args.gradient_checkpointing:
        return {}
    # A compiled layer hides its attention from checkpointing.
    nothing_to_keep = args.fused_kernels == "compile" or step_tokens(args) * shape.hidden < LEAST_KEPT
    attention_flag = args.kept_attention_layers
    of_flags = 0 if nothing_to_keep and attention_flag is None else attention_flag, args.unchecked_layers

    def counts(attention: int, unchecked: int) -> dict[str, int]:
        kept = min(attention, shape.layers - unchecked) if of_flags[0] is None else attention
        return {"unchecked_layers": unchecked, "kept_attention_layers": kept}

    room = (1 - RESERVE) * memory.size - memory.held

    def fits(attention: int, unchecked: int) -> bool:
        plan = layout(args.changed(**counts(attention, unchecked)), memory.size, memory.held)
        assert plan is not None
        trainers = [row for row in plan.rows if any(need.role in TRAINERS for need in row.needs)]
        enough = all(row.total + row.doubt <= room for row in trainers)
        return enough and _capacities(plan) == caches

    attention, unchecked = of_flags[0] or 0, of_flags[1] or 0
    base = layout(args.changed(**counts(attention, unchecked)), memory.size, memory.held)
    if base is None or reason_to_plan_nothing(args, shape, memory):
        return counts(attention, unchecked)
    caches = _capacities(base)
    if of_flags[0] is None:
        attention = next((n for n in range(shape.layers - unchecked, 0, -1) if fits(n, unchecked)), 0)
    if of_flags[1] is None and (of_flags[0] is not None or attention == shape.layers):
        limit = shape.layers - (of_flags[0] or 0)
        unchecked = next((n for n in range(limit, 0, -1) if fits(attention, n)), 0)
    return counts(attention, unchecked)


def _capacities(plan: Layout) -> list[tuple[str, int, int]]:
    return [(cache.role, cache.tokens, cache.again) for cache in plan.caches]


def _layers_line(layers: Mapping[str, int], total: int, reason: str | None, held: float) -> str:
    """Return how many layers keep what under gradient checkpointing, and what limits the plan of them."""
    unchecked, attention = layers["unchecked_layers"], layers["kept_attention_layers"]
    return (
        f"  checkpointing: of {total} layers {unchecked} stay unchecked (--unchecked-layers), {attention} keep attention's "
        f"output (--kept-attention-layers), {total - unchecked - attention} keep their input"
        + (f"; none planned: {reason}" if reason else f"; other processes hold {held / GIB:.1f} GiB" if held else "")
    )


def checkpoint_bytes(args: Arguments, shape: Shape) -> float:
    """Return the bytes of one checkpoint of policy, critic and moving reference."""
    whole = shape.parameters + shape.tower
    if args.adapter_per_person:
        return float(2**20)  # it names everybody's versions, whose folders have the weights
    if args.use_lora:
        return 14.0 * shape.adapters(args.lora_rank)  # includes the adapter in PEFT's format
    item = 14 if args.train_backend == "megatron" else 12
    critic = item * (whole - (0 if shape.tied else shape.embedding)) if args.use_critic else 0
    return item * whole + critic + (2 * whole if args.ref_update_interval else 0)


def checkpoint_lines(args: Arguments, shape: Shape) -> tuple[list[str], list[str]]:
    """Return a line about the checkpoints and warnings about disk space; nothing without ``--save``."""
    if not (args.save and args.save_interval) or args.debug_rollout_only:
        return [], []
    size, keep = checkpoint_bytes(args, shape), args.save_keep
    free, disk = _free(Path(args.save))
    line = f"  checkpoint {size / GIB:.1f} GiB every {args.save_interval} rollouts; "
    if keep <= 0:
        return [f"{line}all are kept (--save-keep 0), {free / GIB:.0f} GiB free on the disk of {disk}"], []
    needed = size * (keep + 1)
    line += f"{keep} kept and one being written take {needed / GIB:.1f} GiB (--save-keep {keep})"
    written = sum(1 for folder in Path(args.save).glob("iter_*") if folder.name[5:].isdigit())
    missing = size * max(1, keep + 1 - written)
    if free >= missing:
        return [line], []
    return [line], [
        f"the disk of {disk} has {free / GIB:.1f} GiB free, but checkpoints need {missing / GIB:.1f} GiB more; lower "
        f"--save-keep {keep}, or name another folder (--save)"
    ]


def _free(folder: Path) -> tuple[float, Path]:
    """Return the free bytes where ``folder`` is or will be, and the nearest existing folder."""
    there = next(path for path in (folder.resolve(), *folder.resolve().parents) if path.exists())
    return shutil.disk_usage(there).free, there


def host_line(args: Arguments, shape: Shape) -> str:
    """Return the line about host memory: what rank 0 reads at the start, and what stays there."""
    whole = shape.parameters + shape.tower
    reads = (2 if args.use_lora else 4) * whole / GIB
    kept = 0.0
    if args.fsdp_cpu_offload or args.optimizer_cpu_offload or args.offload_train:
        kept = (2 * whole + 16 * shape.adapters(args.lora_rank) if args.use_lora else 16 * whole) / GIB
    stays = f", and {kept:.1f} GiB stay there (offload)" if kept else ""
    copied = snapshot_bytes(args, shape) / GIB
    stays += f"; the ranks' snapshots take {copied:.1f} GiB more (--before-push-path)" if copied else ""
    people = people_bytes(args, shape) / GIB
    stays += f"; people's adapters with moments take up to {people:.1f} GiB more (--people-in-memory)" if people else ""
    return f"  host memory: rank 0 reads {reads:.1f} GiB of weights at the start{stays}"


def snapshot_bytes(args: Arguments, shape: Shape) -> float:
    """Return the bytes of all ranks' snapshots: float32 weights and moments, what follows the policy, and the critic.

    Every copy of a Megatron model also has weights in the training dtype.
    """
    if not args.before_push_path:
        return 0.0
    whole = shape.parameters + shape.tower
    element = 4 if args.train_dtype == "float32" else 2
    trained = float(shape.adapters(args.lora_rank) if args.use_lora else whole)
    item = _copied_bytes(args)
    critic = whole - (0 if shape.tied else shape.embedding) if args.use_critic else 0
    return item * (trained + critic) + (element * whole if args.ref_update_interval else 0)


def people_bytes(args: Arguments, shape: Shape) -> float:
    """Return the bytes of all ranks for the people in host memory, the one in the model, and one whom nobody has trained."""
    return (
        (args.people_in_memory + 2) * _copied_bytes(args) * shape.adapters(args.lora_rank)
        if args.adapter_per_person
        else 0.0
    )


def _copied_bytes(args: Arguments) -> float:
    """Return the bytes of all ranks for a trained parameter that is copied with its moments."""
    if args.train_backend != "megatron":
        return 12.0
    element = 4 if args.train_dtype == "float32" else 2
    return 12.0 + element * data_parallel_size(args, args.actor_num_nodes * args.actor_num_gpus_per_node)


Spell = Callable[[Fix], str]


@dataclass(frozen=True)
class Budget:
    """What a dry run prints and a start checks.

    Attributes:
        lines: text to print.
        rows: the GPUs behind the lines.
        problems: what cannot fit, each with changes that fit.
        warnings: what may not fit.
    layers: layers that checkpointing leaves out or that keep attention, by argument; empty without a plan of them.
        together: whether roles that share a GPU may start together, see `may_start_together`.
    """

    lines: tuple[str, ...]
    rows: tuple[GpuRow, ...] = ()
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    layers: Mapping[str, int] = field(default_factory=dict)
    together: bool = False

    @property
    def derived(self) -> dict[str, Any]:
        """The arguments that follow from the memory."""
        return {**self.layers, "start_together": self.together}


def may_start_together(args: Arguments, memory: GpuMemory) -> bool:
    """Return whether roles that share a GPU may start at the same time.

    An engine sizes its cache by the memory that is free before and after it loads, so what others take meanwhile is missing
    from it. That does no harm where a flag bounds the cache, and all roles together, with every estimate too low, fit into the
    share of the memory that an engine counts on (``--sglang-mem-fraction-static``). `planned_layers` do not count: they fill
    the memory in a step, and no step begins before all roles are up.
    """
    plan = layout(args, memory.size)
    if not args.share_gpu or plan is None or plan.unknown or not step_tokens(args):
        return False
    if any(cache.limit is None or min(cache.tokens, cache.again) < cache.limit for cache in plan.caches):
        return False
    share = (args.sglang_mem_fraction_static or FRACTION) * (memory.size - memory.held)
    return all(row.total + row.doubt <= share for row in plan.rows)


def budget_of(
    args: Arguments, memory: GpuMemory | None, *, names: Sequence[int] | None = None, spell: Spell = as_flags
) -> Budget:
    """Return the budget of derived arguments; empty if there is nothing to count.

    Args:
        args: derived arguments without problems.
        memory: memory of one GPU; None if unknown.
        names: GPU numbers to print, by position; default: the position.
        spell: how to spell a change for the user.
    """
    if args.device != "cuda":
        return Budget(())
    if memory is None:
        return Budget(("memory per GPU: not computed, because this machine has no GPU; --gpu-memory-gb N computes it",))
    shape = policy_shape(args)
    layers = {} if shape is None else planned_layers(args, shape, memory)
    plan = layout(args.changed(**layers), memory.size)
    if plan is None or shape is None:
        return Budget(("memory per GPU: not computed, because neither config.json nor flags give the model's shape",))
    disk, warnings = checkpoint_lines(args, shape)
    lines = [
        f"memory per GPU in GiB, of {memory.size / GIB:.1f} ({memory.source}); estimates may be off by 20 %, "
        "parts in brackets do not count, because they are freed before the peak:",
        *(line for row in plan.rows for line in _row_lines(row, memory, names)),
        *(
            [_layers_line(layers, shape.layers, reason_to_plan_nothing(args, shape, memory), memory.held)]
            if layers
            else []
        ),
        *(_cache_line(cache) for cache in plan.caches),
        *(f"  {role}: its model is not on this machine, so it is not counted" for role in plan.unknown),
        *(
            []
            if step_tokens(args)
            else ["  activations: no flag bounds a sample, so they are not counted (--rollout-max-context-len)"]
        ),
        host_line(args, shape),
        *disk,
    ]
    problems, doubts = _verdict(plan, memory, names)
    if problems:
        problems = [f"{problem}; {_advice(args, memory, spell)}" for problem in problems]
    together = may_start_together(args, memory)
    return Budget(tuple(lines), plan.rows, tuple(problems), (*doubts, *warnings), layers, together)


def memory_problems(args: Arguments) -> tuple[list[str], Budget]:
    """Return the memory problems on this machine's GPUs, and the budget; pass ``args`` without other problems."""
    try:
        budget = budget_of(args, gpu_memory(args))
    except ConfigError as error:
        return [str(error)], Budget(())
    return list(budget.problems), budget


def _verdict(plan: Layout, memory: GpuMemory, names: Sequence[int] | None) -> tuple[list[str], list[str]]:
    """Return what cannot fit, and what may not."""
    problems, warnings = [], []
    for row in plan.rows:
        if row.total + row.doubt <= memory.size:
            continue
        sentence = (
            f"{_gpus(row, names)} needs {row.total / GIB:.1f} GiB (give or take {row.doubt / GIB:.1f}) and has "
            f"{memory.size / GIB:.1f} ({memory.source}): {_largest(row)}"
        )
        (problems if row.total - row.doubt > memory.size else warnings).append(sentence)
    for cache in plan.caches:
        if plan.context is None or min(cache.tokens, cache.again) >= plan.context:
            continue
        room = min(cache.tokens, cache.again)
        limited = cache.limit is not None and cache.limit < plan.context
        when = "" if cache.tokens < plan.context else " when it restarts while the others run"
        sentence = f"the {cache.role} engine's cache holds {room} tokens{when}, but a context has {plan.context}"
        certain = limited or cache.most < plan.context
        (problems if certain else warnings).append(sentence)
    return problems, warnings


def _fits(args: Arguments, memory: GpuMemory) -> bool:
    try:
        plan = layout(args, memory.size)
    except ConfigError:
        return False
    if plan is None:
        return False
    caches = all(min(cache.tokens, cache.again) >= (plan.context or 0) for cache in plan.caches)
    return caches and all(row.total <= memory.size for row in plan.rows)


def _advice(args: Arguments, memory: GpuMemory, spell: Spell) -> str:
    changes = [spell(change) for change in fitting(args, lambda changed: _fits(changed, memory))]
    if not changes:
        return "no single change makes it fit; use a smaller model, or more or larger GPUs"
    return f"each of these alone fits: {', or '.join(changes)}"


def _largest(row: GpuRow) -> str:
    """Return the largest parts, with their roles."""
    parts = sorted(((part.size, need.role, part.name) for need in row.needs for part in need.parts), reverse=True)
    return ", ".join(f"{role} {name} {size / GIB:.1f}" for size, role, name in parts[:3])


def _gpus(row: GpuRow, names: Sequence[int] | None) -> str:
    numbers = [names[gpu] if names else gpu for gpu in row.gpus]
    together = numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    return "GPU " + (f"{numbers[0]}-{numbers[-1]}" if together and len(numbers) > 1 else ",".join(map(str, numbers)))


def _row_lines(row: GpuRow, memory: GpuMemory, names: Sequence[int] | None) -> list[str]:
    where = _gpus(row, names)
    lines = [f"  {where:<8} {need.role:<8} {need.total / GIB:5.1f}  {need.line()}" for need in row.needs]
    verdict = (
        "fits"
        if row.total + row.doubt <= memory.size
        else "may not fit"
        if row.total - row.doubt <= memory.size
        else "does not fit"
    )
    total = f"{row.total / GIB:5.1f}  give or take {row.doubt / GIB:.1f}, driver included: {verdict}"
    return [*lines, f"  {where:<8} sum      {total}"]


def _cache_line(cache: Cache) -> str:
    again = f", {cache.again} after a restart" if cache.again != cache.tokens else ""
    return f"  cache of the {cache.role} engine: {cache.tokens} tokens{again}"
