"""What a rank measures and reports of a rollout: means of steps and of per-token streams, seconds, speed, traces, and memory.

FLOPs of a forward pass and of a training step, for the ``*_tflops`` metrics, are those of matrices and causal attention.
A token through a matrix of n weights takes 2n FLOPs. Backward takes 2n for the gradient of its input and, unless the
weights are frozen, 2n for their own. Causal attention of a sample of n tokens takes ``2 n^2`` times query heads times
head size per layer and pass, without the masked half. The LM head counts for response tokens only (Chowdhery et al.,
"PaLM", 2022, appendix B). Not counted: recomputation, norms, rotary embeddings and the embedding. Only experts that a
token is sent to count. Linear attention counts as full attention.

A trace (``--use-pytorch-profiler``) is a file that ``chrome://tracing`` and Perfetto read; a memory snapshot
(``--record-memory-history``) one that https://pytorch.org/memory_viz reads. Without the flags neither is taken.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from slime.args import Arguments
from slime.backends.trainer.micro_batch import Metrics, RolloutShard
from slime.utils import streams
from slime.utils.hf_checkpoint import read_config
from slime.utils.metric_names import is_largest

logger = logging.getLogger(__name__)
TEACHERS = ("teacher_log_probs", "teacher_topk_indices")


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
    """Return token-weighted means of the per-token streams and what the batch teaches, over the ranks of ``group``.

    The latter are its tokens, those with loss, and the share of samples with a signal.
    """
    sums: dict[str, list[float]] = {"tokens": [float(sum(data.fields["total_lengths"])), 1.0]}
    sums["loss_tokens"] = [float(sum(int(mask.sum()) for mask in data.fields["loss_masks"])), 1.0]
    if "advantages" in data.fields:
        signals = [has_signal(args, data, number) for number in range(data.num_samples)]
        sums["signal_share"] = [float(sum(signals)), float(len(signals))]
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
        if name in ("tokens", "loss_tokens"):
            result[f"rollout/{name}"] = total
        elif count:
            result[f"rollout/{name}"] = total / count
    return result


def has_signal(args: Arguments, data: RolloutShard, number: int) -> bool:
    """Return whether a sample has a token with loss whose advantage is not zero, or a teacher that a custom loss reads."""
    mask = data.fields["loss_masks"][number]
    if bool(((data.fields["advantages"][number] * mask) != 0).any()):
        return True
    teachers = [data.fields.get(name) for name in TEACHERS] if args.loss_type == "custom_loss" else []
    return bool(mask.any()) and any(values is not None and values[number] is not None for values in teachers)


def speeds_of(
    args: Arguments, data: RolloutShard, seconds: Mapping[str, float], group: dist.ProcessGroup | None, passes: float
) -> Metrics:
    """Return this rank's TFLOP/s in each phase that took ``seconds``, and the tokens per second of its model copy.

    ``passes``: how often the steps on ``data`` were taken.
    """
    lengths, responses = data.fields["total_lengths"], data.fields["response_lengths"]
    copy = dist.get_world_size() / dist.get_world_size(group)
    config = read_config(Path(args.hf_checkpoint))
    step = step_flops(config, lengths, responses, lora_rank=args.lora_rank if args.use_lora else 0)
    forward = forward_flops(config, lengths, responses) / copy
    return speeds(seconds, forward, step * passes / copy, sum(lengths) * passes)


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


def speeds(seconds: Mapping[str, float], forward: float, step: float, tokens: float) -> dict[str, float]:
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


# Phase of the trainer, and its value of --profile-target.
TARGETS = {"train": "train_overall", "actor_train": "train_actor", "log_probs": "train_log_probs"}


@contextlib.contextmanager
def profiled(args: Arguments, phase: str, rollout_id: int, rank: int) -> Iterator[None]:
    """Write ``<run-dir>/profile/<target>_rollout<r>_rank<k>.json`` if flags request this phase and rollout."""
    target = TARGETS[phase]
    if args.profile_target != target or not args.profile_step_start <= rollout_id < args.profile_step_end:
        yield
        return
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
    with profile(activities=activities, record_shapes=True, profile_memory=True) as trace:
        yield
    file = Path(args.run_dir) / "profile" / f"{target}_rollout{rollout_id}_rank{rank}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    trace.export_chrome_trace(str(file))


class Clock:
    """Seconds of a rank's phases since they were last taken; the phases of `TARGETS` may be traced."""

    def __init__(self, args: Arguments, rank: int) -> None:
        self._args, self._rank = args, rank
        self._rollout_id = 0
        self.seconds: dict[str, float] = {}

    def begin(self, rollout_id: int) -> None:
        """Name traces after this rollout from now on."""
        self._rollout_id = rollout_id

    @contextlib.contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the block's seconds to ``phase``."""
        start = time.perf_counter()
        traced = self._args.use_pytorch_profiler and phase in TARGETS
        with profiled(self._args, phase, self._rollout_id, self._rank) if traced else contextlib.nullcontext():
            yield
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start

    def take(self) -> dict[str, float]:
        """Return the seconds as metrics and begin anew."""
        seconds, self.seconds = self.seconds, {}
        return {f"perf/{phase}_time": value for phase, value in seconds.items()}


MAX_ENTRIES = 1_000_000
"""Number of newest events to keep."""


class MemoryHistory:
    """Record who allocated what on a rank's GPU: ``--record-memory-history``. Owned by one rank.

    Guarantees: recording begins before the model is built and ends with the snapshot, which is written once: after
    the rollouts of ``--memory-snapshot-num-steps``, or when the rank runs out of memory.
    """

    def __init__(self, args: Arguments, rank: int) -> None:
        """Start recording."""
        self._file = Path(args.memory_snapshot_dir).resolve() / f"rank{rank}_{args.memory_snapshot_path}"
        self._left = args.memory_snapshot_num_steps or 1
        self._records = True
        torch.cuda.memory._record_memory_history(max_entries=MAX_ENTRIES)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Write the snapshot if the block runs out of memory."""
        try:
            yield
        except torch.OutOfMemoryError:
            self._write()
            raise

    def trained(self) -> None:
        """Count a trained rollout, and write the snapshot when it is due."""
        self._left -= 1
        if self._left <= 0:
            self._write()

    def _write(self) -> None:
        if not self._records:
            return
        self._records = False
        self._file.parent.mkdir(parents=True, exist_ok=True)
        torch.cuda.memory._dump_snapshot(str(self._file))
        torch.cuda.memory._record_memory_history(enabled=None)
        logger.info("memory snapshot: %s", self._file)
