"""Peak memory of a forward pass that gives log probabilities, over token counts and vocabularies.

Whole logits cost ``length x vocabulary`` numbers; ours keep ``chunk x vocabulary``. What is left of the product is read from
four corners: ``(p(T, V) - p(t, V) - p(T, v) + p(t, v)) / ((T - t) (V - v))`` bytes, 4 or more for whole float32 logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.memory import give_back_freed_blocks, peak, reset_peak
from benchmarks.trainer_parts.our_step import arguments
from benchmarks.trainer_parts.samples import samples
from benchmarks.trainer_parts.shapes import Shape, build
from groundwork.network import find_available_port
from lab.testkit.fork_server import in_own_process
from slime.args import Arguments
from slime.backends.fsdp_utils.backend import log_prob_pass
from slime.backends.fsdp_utils.model import build_policy
from slime.backends.trainer.micro_batch import RolloutShard
from slime.rollout.train_data import split_by_dp

# Bytes per token and entry of the vocabulary under which nothing grows with the product.
NO_GROWTH = 0.1
WHOLE = 1 << 30


def pass_peaks(passes: Sequence[tuple[Arguments, dict[str, Any]]]) -> list[int]:
    """Bytes of each pass above what its model needs; for a process of its own."""
    return [_pass_peak(*one) for one in passes]


def _pass_peak(args: Arguments, data: dict[str, Any]) -> int:
    torch.set_num_threads(1)
    device = torch.device(args.device)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
        init_method=f"tcp://127.0.0.1:{find_available_port()}",
        rank=0,
        world_size=1,
    )
    model = build_policy(args, args.hf_checkpoint, device=device, trainable=False)
    shard = RolloutShard(split_by_dp(data, 1, args)[0])
    give_back_freed_blocks(device)
    before = reset_peak(device)
    log_prob_pass(args, model, shard, device)
    used = peak(device) - before
    dist.destroy_process_group()
    return used


def measure(
    shape: Shape, tokens: Sequence[int], vocabularies: Sequence[int], *, device: str, chunk: int, folder: Path
) -> dict[str, Any]:
    """Return the peaks of a single sample of each length at each vocabulary, ours and with whole logits.

    On a CPU each has a process of its own, whose resident memory nothing before it has touched; on CUDA one has them all, because
    starting CUDA takes seconds and its allocator knows what is in use.
    """
    rows: list[dict[str, Any]] = []
    passes: list[tuple[Arguments, dict[str, Any]]] = []
    places: list[tuple[dict[str, Any], str]] = []
    for vocabulary in vocabularies:
        model = build(replace(shape, vocab_size=vocabulary), folder / f"vocabulary-{vocabulary}")
        for length in tokens:
            data = samples([length], 512)
            found: dict[str, Any] = {"tokens": length, "vocabulary": vocabulary}
            for name, rows_at_once in (("chunked", chunk), ("whole", WHOLE)):
                if name == "whole" and length > min(tokens):
                    continue  # would need length x vocabulary numbers
                flags = {
                    "hf_checkpoint": str(model),
                    "device": device,
                    "train_dtype": "bfloat16" if device == "cuda" else "float32",
                    "log_probs_chunk_size": rows_at_once,
                }
                passes.append((arguments(flags), data))
                places.append((found, f"{name}_peak_bytes"))
            rows.append(found)
    at_once = len(passes) if device == "cuda" else 1
    peaks: list[int] = []
    for start in range(0, len(passes), at_once):
        peaks += in_own_process(pass_peaks, passes[start : start + at_once])
    for (found, name), used in zip(places, peaks, strict=True):
        found[name] = used
    product = growth(rows, "chunked_peak_bytes")
    return {"rows": rows, "bytes_per_token_and_entry": round(product, 4), "no_growth": product < NO_GROWTH}


def growth(rows: Sequence[dict[str, int]], name: str) -> float:
    """Bytes that ``name`` of the ``rows`` grows per token and entry of the vocabulary, beyond what each adds alone."""
    at = {(row["tokens"], row["vocabulary"]): row[name] for row in rows}
    tokens, vocabularies = ({key[part] for key in at} for part in (0, 1))
    t, T, v, V = min(tokens), max(tokens), min(vocabularies), max(vocabularies)
    return (at[T, V] - at[t, V] - at[T, v] + at[t, v]) / ((T - t) * (V - v))
