"""What a training rank needs on its GPU at the peak of a step.

- FSDP2 (`slime.backends.fsdp_utils`) shards float32 weights, their gradients and Adam's two moments: 16 bytes per
  parameter over all ranks (Rajbhandari et al., "ZeRO", 2020, stage 3). It holds whole, in bfloat16, the root group
  (embedding, LM head) and the current layer. A single rank has no FSDP2; its bfloat16 copies are those of the root, of the
  current layer, and of each unchecked layer until the backward pass is through it. Of a base in NF4 it holds the values of one
  linear layer at a time. When the layer's
  activations are gone, its gradient becomes float32, which adds to that of earlier micro-batches.
- Megatron holds whole bfloat16 weights and float32 gradients of its part, and a slice of the float32 weights and
  moments per data-parallel copy (stage 1).

The peak is the largest of three moments: the backward pass of one recomputed layer, that of the logits, or the
reduction of the embedding's gradient.

Activations: :func:`saved_bytes` is what autograd saves for a layer of transformers' Qwen2 and Qwen3 in bfloat16 with
packed attention. It is counted from the operations and equals what ``saved_tensors_hooks`` report (a test compares).
With gradient checkpointing a layer saves only its input, ``2 H``, and :func:`attention_bytes` more if it keeps attention's
output; an unchecked layer saves everything. Layers are recomputed one at a time, after the unchecked ones are done, and the
backward pass of a layer holds another ``5 F`` bytes of gradients (measured with torch's ``FSDPMemTracker``, see
log/training.md#memory-budget; a test repeats it).
"""

from __future__ import annotations

from dataclasses import dataclass

from slime.args import Arguments
from slime.arguments.memory_budget.gpu import CONTEXT, NCCL, Need, Part
from slime.arguments.memory_budget.shape import Shape
from slime.arguments.plugins import asked_values, is_decorated
from slime.arguments.trainer import PACK_BYTES, sends_gpu_handles, shares_gpus, slot_bytes
from slime.utils.head_memory import chunk_rows, head_bytes


def saved_bytes(
    shape: Shape,
    *,
    lora_rank: int = 0,
    tensor: int = 1,
    sequence_parallel: bool = False,
    fused: bool = False,
    liger: bool = False,
) -> float:
    """Return the bytes per token that autograd saves for one layer on a rank.

    - Two norms save ``x`` in float32, the scaled ``x`` if their weight is trained, and their output: ``16 H``, or ``12
      H`` with a frozen weight. Norms on heads save 6 bytes per element of query and key (4 if frozen).
    - Attention saves query, key, value, its output twice and a float32 sum per head.
    - The MLP saves gate, up, the activation and the product: ``8 F``. An expert's inner width counts once per expert of
      a token, as do the token's copies sent to the experts.

    Args:
        shape: the decoder.
        lora_rank: rank of adapters over frozen weights; 0 when all weights are trained.
        tensor: ranks that split heads and inner widths.
        sequence_parallel: whether these ranks also split the activations between layers.
        fused: Transformer Engine's kernels, counted from their inputs, not measured. A norm saves its input and output,
            the MLP saves gate, up and the product, attention saves its inputs and output once.
        liger: Liger's kernels, or a compiled layer. A norm saves its input, output and one sum, the MLP saves gate, up and the product.
    """
    if fused:
        inner = shape.ffn * (shape.active_experts or 1)
        norm = 2 if shape.qk_norm else 0
        split = (4 + norm) * shape.query + (4 + norm) * shape.key + 6 * inner
        whole = 8 * shape.hidden + 4 * shape.hidden * shape.active_experts
        return split / tensor + whole / (tensor if sequence_parallel else 1)
    frozen = lora_rank > 0
    norm = (2 if liger else 4 if frozen else 6) if shape.qk_norm else 0
    inner = shape.ffn * (shape.active_experts or 1)
    split = (6 + norm) * shape.query + (4 + norm) * shape.key + (6 if liger else 8) * inner
    split += (8 if shape.qk_norm else 4) * shape.heads + (4 * shape.kv_heads if shape.qk_norm else 0)
    whole = (8 if liger else 12 if frozen else 16) * shape.hidden + 8 + 4 * shape.hidden * shape.active_experts
    return split / tensor + whole / (tensor if sequence_parallel else 1) + 14 * lora_rank


def attention_bytes(shape: Shape) -> float:
    """Return the bytes per token of a layer's attention output and of its float32 sum per head."""
    return 2 * shape.query + 4 * shape.heads


def gradient_bytes(shape: Shape, *, tensor: int = 1) -> float:
    """Return the gradient bytes per token that a layer's backward pass adds to the saved activations."""
    return 5 * shape.ffn * (shape.active_experts or 1) / tensor


def whole_logits_bytes(vocab: int, tokens: int) -> float:
    """Return the bytes of full logits, if a loss needs them: bfloat16 and float32, each with its gradient."""
    return 12 * vocab * tokens


@dataclass(frozen=True)
class _Sizes:
    """A rank's bytes before they are combined: ``kept`` always, the others at their moment."""

    kept: tuple[Part, ...]
    gathered: float
    head_gradient: float
    reduced: float
    checkpoints: float
    ends: float
    layer: float
    logits: float


def needs_reference(args: Arguments) -> bool:
    """Whether a rank holds a separate reference model; with LoRA the frozen base serves as the reference."""
    return args.loss_type != "sft_loss" and (args.use_kl_loss or args.kl_coef != 0) and not args.use_lora


def reads_whole_logits(args: Arguments) -> bool:
    """Return whether the loss is a plugin that needs the logits of all tokens; a plugin not found here does not."""
    path = args.custom_loss_function_path
    if args.loss_type != "custom_loss" or not path:
        return False
    return is_decorated(path, "from_response_rows") is False and not asked_values(args)


def longest_sample(args: Arguments) -> int | None:
    """Return the tokens of the longest trainable sample; None if nothing bounds it."""
    bounds = [bound for bound in (args.rollout_max_context_len, args.sglang_context_length) if bound]
    if bounds:
        return min(bounds)
    prompt, response = args.rollout_max_prompt_len, args.rollout_max_response_len
    return prompt + response if prompt and response else None


def samples_are_bounded(args: Arguments) -> bool:
    """Whether this run keeps its samples to :func:`longest_sample`.

    Samples of a file, or of conversations, have whatever length they have. A prompt's maximum holds for prompts of
    ``--prompt-data`` that the core's own function answers.
    """
    if args.debug_train_only or longest_sample(args) is None:
        return False
    by_context = args.rollout_max_context_len or args.sglang_context_length
    return bool(by_context or (args.rollout_global_dataset and not args.custom_generate_function_path))


def step_tokens(args: Arguments) -> int:
    """Return the tokens of a rank's largest micro-batch; a sample over --max-tokens-per-gpu has one to itself.

    If nothing bounds a sample, its maximum response length counts; without that, 0.
    """
    longest = longest_sample(args) or args.rollout_max_response_len or 0
    ranks = args.context_parallel_size if args.train_backend == "megatron" else 1
    if args.use_dynamic_batch_size:
        return max(args.max_tokens_per_gpu or 0, -(-longest // ranks))
    return -(-args.micro_batch_size * longest // ranks)


def largest_bytes(args: Arguments, shape: Shape) -> int:
    """Return the bytes of the largest tensor that a push sends: the embedding, or an LM head of its own."""
    return (4 if args.train_dtype == "float32" else 2) * shape.embedding


def push_bytes(args: Arguments, shape: Shape, role: str) -> float:
    """Return the bytes that rank 0 keeps between pushes: two buffers to pack weights into, or what stages for pinned memory.

    A tensor larger than a buffer enlarges it, so the embedding and an LM head of its own count. With ``--canary-engine`` the
    last engine's transport has as much. What a push holds besides (``PACK_BYTES`` and the tensor that is gathered) is less
    than a step's activations, which are gone by then.
    """
    if role != "actor" or args.update_weight_mode != "full" or args.debug_train_only or args.debug_rollout_only:
        return 0.0
    transports = 2 if args.canary_engine else 1
    if args.update_weight_transport == "shared" and not sends_gpu_handles(args):
        return float(transports * PACK_BYTES)
    if args.update_weight_transport == "nccl" and not shares_gpus(args):
        size = args.update_weight_buffer_size
    elif sends_gpu_handles(args):
        size = slot_bytes(args)
    else:
        return 0.0
    large = max(size, largest_bytes(args, shape))
    return float(transports * (large + (size if shape.tied else large)))


def trainer_need(args: Arguments, shape: Shape, ranks: int, role: str = "actor") -> Need:
    """Return the need of one of ``ranks`` ranks of ``role`` (actor or critic)."""
    build = _megatron if args.train_backend == "megatron" else _fsdp
    sizes = build(args, shape, ranks, role)
    phases = {
        "activations": sizes.checkpoints + sizes.layer + sizes.head_gradient,
        "logits": sizes.checkpoints + sizes.ends + sizes.logits + sizes.head_gradient,
        "reduction": sizes.reduced,
    }
    peak = max(phases, key=lambda name: phases[name])
    moments = {
        "activations": [Part("activations", sizes.checkpoints + sizes.layer), Part("head grads", sizes.head_gradient)],
        "logits": [
            Part("activations", sizes.checkpoints + sizes.ends),
            Part("logits", sizes.logits),
            Part("head grads", sizes.head_gradient),
        ],
        "reduction": [Part("embedding's gradient", sizes.reduced)],
    }
    apart = [] if peak == "logits" or role == "critic" else [Part("logits", sizes.logits)]
    apart += [Part("activations", sizes.checkpoints + sizes.layer)] if peak != "activations" else []
    runtime = CONTEXT + (NCCL if ranks > 1 else 0)
    push = Part("push buffers", push_bytes(args, shape, role), exact=True)
    parts = (*sizes.kept, Part("gathered", sizes.gathered), *moments[peak], push, Part("runtime", runtime))
    return Need(role, parts, tuple(apart), away=runtime + push.size)


def _step(args: Arguments, shape: Shape, layers: float, vocab: float, role: str, split: int) -> tuple[float, ...]:
    """Return bytes of checkpoints, final norm, current layer and logits; ``layers`` and ``vocab`` are this rank's."""
    tokens, wide = step_tokens(args), 2 if args.train_dtype == "float32" else 1
    parallel = bool(args.sequence_parallel)
    rank = args.lora_rank if args.use_lora else 0
    fused = args.train_backend == "megatron" and args.transformer_impl == "transformer_engine"
    # A compiled layer saves what Liger's does (a test counts it). With adapters it was not counted, so eager's bytes stand.
    joined = args.fused_kernels == "liger" or (args.fused_kernels == "compile" and not args.use_lora)
    kernels = {"fused": fused, "liger": joined}
    layer = saved_bytes(shape, lora_rank=rank, tensor=split, sequence_parallel=parallel, **kernels)
    recompute = args.gradient_checkpointing or args.recompute_granularity == "full"
    stream = 2 * shape.hidden / (split if parallel else 1)
    ends = (8 + 6) * shape.hidden  # final norm, the response rows, and gradients of both
    unchecked = layers if not recompute else float(args.unchecked_layers or 0)
    kept = (
        layer * unchecked + stream * (layers - unchecked) + attention_bytes(shape) * (args.kept_attention_layers or 0)
    )
    work = gradient_bytes(shape, tensor=split) + (0.0 if unchecked else layer)
    if role == "critic":
        logits = 0.0
    elif reads_whole_logits(args):
        logits = whole_logits_bytes(int(vocab), tokens)
    else:
        chunk, columns = chunk_rows(args.log_probs_chunk_size, int(vocab)), int(vocab)
        ids = args.distill_topk or 1
        kind = {"ids": ids, "dtype_bytes": 2 * wide, "triton": args.logprob_kernel != "torch"}
        logits = head_bytes(tokens, shape.hidden, columns, chunk=chunk, **kind)
    return wide * tokens * kept, wide * tokens * ends, wide * tokens * work, logits


def _copies_of_one_rank(args: Arguments, shape: Shape, root: int) -> float:
    """Return the bytes of bfloat16 copies without FSDP2: of the root, of the current layer with its gradient, of unchecked layers."""
    unchecked = (args.unchecked_layers or 0) if args.gradient_checkpointing else shape.layers
    return 2.0 * (root + shape.layer * (2 + unchecked))


def _fsdp(args: Arguments, shape: Shape, ranks: int, role: str) -> _Sizes:
    trained = not args.use_lora
    element = 4 if args.train_dtype == "float32" else 2
    root = shape.root if role == "actor" else shape.embedding + shape.hidden
    parameters = root + shape.layers * shape.layer + shape.tower
    share = 0 if args.fsdp_cpu_offload else 1 / ranks
    adapters = 0 if trained else shape.adapters(args.lora_rank)
    nf4 = args.base_quantization == "nf4"
    base = shape.bytes_in_nf4(element) if nf4 else element * parameters
    kept = [
        Part("weights", share * (4 * parameters if trained else base + 4 * adapters), exact=True),
        Part("gradients and moments", share * 12 * (parameters if trained else adapters), exact=True),
    ]
    alone = ranks == 1 and not args.fsdp_cpu_offload
    if alone:
        gathered = _copies_of_one_rank(args, shape, root) if trained and element == 2 else 0.0
        gathered += element * shape.largest_linear if nf4 else 0.0
    else:
        gathered = element * root + shape.layer * (3 * element + (4 if ranks > 1 else 0) if trained else 2 * element)
    if role == "actor" and needs_reference(args):
        kept.append(Part("reference", share * element * parameters, exact=True))
        gathered += 0.0 if alone else element * root
    checkpoints, last, layer, logits = _step(args, shape, shape.layers, shape.vocab, role, 1)
    if alone and trained and element == 2:
        layer = max(layer, 4.0 * shape.layer)
    head = element * shape.embedding if trained and role == "actor" else 0
    reduced = root * (element + 4) if trained else 0
    return _Sizes(tuple(kept), gathered, head, reduced, checkpoints, last, layer, logits)


def _megatron(args: Arguments, shape: Shape, ranks: int, role: str) -> _Sizes:
    tensor, stages, experts = (
        args.tensor_model_parallel_size,
        args.pipeline_model_parallel_size,
        args.expert_model_parallel_size,
    )
    copies = max(1, ranks // (tensor * stages))  # context-parallel ranks share the optimizer too
    layers = -(-shape.layers // stages)
    ends = shape.embedding if stages > 1 or shape.tied or role == "critic" else 2 * shape.embedding
    dense = (layers * shape.dense_layer + ends) / tensor
    of_experts = layers * shape.experts_of_layer / (experts * (args.expert_tensor_parallel_size or tensor))
    expert_copies = max(1, ranks // (stages * experts * (args.expert_tensor_parallel_size or tensor)))
    trained = not args.use_lora
    element = 4 if args.train_dtype == "float32" else 2
    learning = (dense, of_experts) if trained else (shape.adapters(args.lora_rank) / tensor / stages, 0.0)
    on_gpu = 0 if args.optimizer_cpu_offload else 12
    kept = (
        Part("weights", element * (dense + of_experts) + (0 if trained else element * learning[0]), exact=True),
        Part("gradients", 4 * sum(learning), exact=True),
        Part("optimizer", on_gpu * (learning[0] / copies + learning[1] / expert_copies), exact=True),
    )
    checkpoints, last, layer, logits = _step(args, shape, layers * stages, shape.vocab / tensor, role, tensor)
    head = element * shape.embedding / tensor if trained and role == "actor" else 0.0
    return _Sizes(kept, 0.0, head, 0.0, checkpoints, last, layer, logits)
