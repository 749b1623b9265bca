"""What an SGLang engine needs on each of its GPUs, and how many tokens its cache holds.

The cache takes ``free now - free before x (1 - fraction)``, where "before" means before the weights are loaded
(`_profile_available_bytes` and `measure_pre_model_load_memory` in SGLang 0.5.23). If nothing else uses the GPU
meanwhile, that is ``fraction x free before - weights``. ``--sglang-max-total-tokens`` is an upper bound. Graphs and the
working memory of a forward pass come out of what the fraction leaves.
"""

from __future__ import annotations

from dataclasses import dataclass

from slime.args import Arguments
from slime.arguments.memory_budget.parts import CONTEXT, GIB, NCCL, Need, Part
from slime.arguments.memory_budget.shape import Shape

# SGLang 0.5.23: `reserve_for_graph_mb`, `generate_prefill_cuda_graph_batch_sizes`, `max_loras_per_batch`,
# `mamba_full_memory_ratio`, `SGLANG_LOGPROB_CHUNK_SIZE`.
MIB_PER_DECODE_SIZE, MIB_PER_PREFILL_SIZE = 2, 8
ADAPTERS_PER_BATCH, STATE_RATIO, SCORED_ROWS = 8, 0.9, 2048
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
    adapters = 0.0
    if role == "rollout" and args.update_weight_mode == "adapter":
        adapters = 2 * ADAPTERS_PER_BATCH * shape.adapters(args.lora_rank) / ranks
    chunk, batch = _sizes(args, capacity, tensor)
    graphs = _graph_bytes(args, chunk, batch)
    work = ATTENTION_WORKSPACE + 2 * chunk * (4 * shape.hidden + 2 * (shape.query + shape.key) + 6 * shape.ffn) / tensor
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
