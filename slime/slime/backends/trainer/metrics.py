"""What a rank reports of a rollout: means of its steps and of the per-token streams, and the trainer's speed.

FLOPs of a forward pass and of a training step, for the ``*_tflops`` metrics, are those of matrices and causal attention.
A token through a matrix of n weights takes 2n FLOPs. Backward takes 2n for the gradient of its input and, unless the
weights are frozen, 2n for their own. Causal attention of a sample of n tokens takes ``2 n^2`` times query heads times
head size per layer and pass, without the masked half. The LM head counts for response tokens only (Chowdhery et al.,
"PaLM", 2022, appendix B). Not counted: recomputation, norms, rotary embeddings and the embedding. Only experts that a
token is sent to count. Linear attention counts as full attention.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist

from slime.args import Arguments
from slime.backends.trainer.micro_batch import Metrics, RolloutShard
from slime.utils import streams
from slime.utils.hf_checkpoint import read_config
from slime.utils.metric_names import is_largest


def mean_of_steps(steps: list[Metrics]) -> Metrics:
    """Return means over a rollout's optimizer steps, the last learning rate, and the sum of skipped steps."""
    names = sorted({name for step in steps for name in step})
    result = {}
    for name in names:
        values = [step[name] for step in steps if name in step]
        result[name] = max(values) if is_largest(name) else sum(values) / len(values)
    if steps:
        result["lr-pg_0"] = steps[-1]["lr-pg_0"]
        result["skipped_steps"] = sum(step["skipped_steps"] for step in steps)
    return result


def means_of_streams(args: Arguments, data: RolloutShard, group: dist.ProcessGroup | None) -> Metrics:
    """Return token-weighted means of the per-token streams and the token count, over the ranks of ``group``."""
    sums: dict[str, list[float]] = {"tokens": [float(sum(data.fields["total_lengths"])), 1.0]}
    for name in [stream.name for stream in streams.STREAMS if stream.logged]:
        if name == "kl" and not args.kl_coef:  # all zero
            continue
        total, count = 0.0, 0.0
        for values, mask in zip(data.fields.get(name, []), data.fields["loss_masks"], strict=False):
            if values is not None:
                total += float((values * mask).sum())
                count += float(mask.sum())
        sums[name] = [total, count]
    gathered: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, sums, group=group)
    result = {}
    for name in sums:
        total, count = (sum(rank[name][part] for rank in gathered) for part in (0, 1))
        if name == "tokens":
            result["rollout/tokens"] = total
        elif count:
            result[f"rollout/{name}"] = total / count
    return result


def speeds_of(
    args: Arguments, data: RolloutShard, seconds: Mapping[str, float], group: dist.ProcessGroup | None
) -> Metrics:
    """Return this rank's TFLOP/s in each phase that took ``seconds``, and the tokens per second of its model copy."""
    lengths, responses = data.fields["total_lengths"], data.fields["response_lengths"]
    copy = dist.get_world_size() / dist.get_world_size(group)
    config = read_config(Path(args.hf_checkpoint))
    step = step_flops(config, lengths, responses, lora_rank=args.lora_rank if args.use_lora else 0)
    return speeds(seconds, forward_flops(config, lengths, responses) / copy, step / copy, sum(lengths))


def forward_flops(config: Mapping[str, Any], lengths: Sequence[int], responses: Sequence[int]) -> float:
    """Return the FLOPs of a forward pass over samples of ``lengths`` tokens, ``responses`` of them scored.

    ``config`` is a Hugging Face ``config.json``; of a vision model its ``text_config`` counts.
    """
    return _products(config, lengths, responses) + _attention(config, lengths)


def step_flops(
    config: Mapping[str, Any], lengths: Sequence[int], responses: Sequence[int], *, lora_rank: int = 0
) -> float:
    """Return the FLOPs of forward and backward; with ``lora_rank`` the base is frozen and all matrices have adapters."""
    products = _products(config, lengths, responses)
    if not lora_rank:
        return 3.0 * (products + _attention(config, lengths))
    sides = sum(count * (rows + columns) for count, rows, columns in _matrices(config))
    return 2.0 * products + 3.0 * (2.0 * lora_rank * sides * sum(lengths) + _attention(config, lengths))


def _products(config: Mapping[str, Any], lengths: Sequence[int], responses: Sequence[int]) -> float:
    weights = sum(count * rows * columns for count, rows, columns in _matrices(config))
    config = _text(config)
    return 2.0 * weights * sum(lengths) + 2.0 * config["hidden_size"] * config["vocab_size"] * sum(responses)


def _attention(config: Mapping[str, Any], lengths: Sequence[int]) -> float:
    queries, _ = _widths(config)
    return 2.0 * queries * _text(config)["num_hidden_layers"] * sum(length**2 for length in lengths)


def _matrices(config: Mapping[str, Any]) -> list[tuple[int, int, int]]:
    """Return (count, rows, columns) of the matrices a token passes in all layers, without the LM head."""
    queries, keys = _widths(config)
    config = _text(config)
    hidden, layers, experts = config["hidden_size"], config["num_hidden_layers"], config.get("num_experts_per_tok")
    inner = config["moe_intermediate_size"] if experts else config["intermediate_size"]
    return [
        (2 * layers, hidden, queries),
        (2 * layers, hidden, keys),
        (3 * layers * (experts or 1), hidden, inner),
    ]


def _widths(config: Mapping[str, Any]) -> tuple[int, int]:
    """Return the width of all query heads, and of all key heads."""
    config = _text(config)
    heads = config["num_attention_heads"]
    head_size = config.get("head_dim") or config["hidden_size"] // heads
    return heads * head_size, (config.get("num_key_value_heads") or heads) * head_size


def _text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return config.get("text_config") or config


def speeds(seconds: Mapping[str, float], forward: float, step: float, tokens: int) -> dict[str, float]:
    """Return TFLOP/s of the phases that took ``seconds``, and tokens trained per second.

    ``forward`` are the FLOPs of a forward pass, ``step`` those of forward and backward.
    """
    work = {"log_probs": forward, "ref_log_probs": forward, "actor_train": step}
    results = {
        f"perf/{phase}_tflops": flops / seconds[phase] / 1e12 for phase, flops in work.items() if seconds.get(phase)
    }
    if seconds.get("actor_train"):
        results["perf/actor_train_tok_per_s"] = tokens / seconds["actor_train"]
    return results
