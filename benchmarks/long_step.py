"""Peak memory of optimizer steps on one very long sample with a large vocabulary.

`python -m benchmarks.long_step [--quick] [--json FILE] [--device cuda] [--tokens 32768 --vocabulary 151936 --top 50]`. The body of
the model is tiny, so what is left above the model is the loss. Batches: `mixed` has a response of a quarter of the tokens, `all`
has one prompt token and the rest is the response. A step is the training actor's, on one rank, with --gradient-checkpointing
as the launch scripts have it: forward, backward, clipping and AdamW. Every layer is recomputed, because a plan of layers would fill the
GPU with activations of the body, and the figure is the loss; `benchmarks.trainer` has a side with planned layers.

Every case has a process of its own and takes a short step, which creates gradients and moments, and the long one, whose figures are
in bytes, by resident memory on a CPU and by the allocator on CUDA:

* `weights`, `gradients`, `moments`: what the model needs.
* `above_weights`: peak above the memory before the first step, moments and gradients included.
* `step`: peak above the memory before the long step. The moments exist by then; the gradients of a step end with it, so they count.
* `above_model`: `step` without the gradients. Weights, gradients and moments are the model; this is the rest.
* `head_budget`: what `slime.utils.head_memory.head_bytes` says of the loss.

Verdict: `step`, gradients included, is at most GOAL_BYTES in every case. `--quick` asks for nothing: its peaks are small change.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import describe_machine
from benchmarks.memory import give_back_freed_blocks, peak, reset_peak
from benchmarks.trainer_parts.our_step import arguments
from benchmarks.trainer_parts.shapes import SHAPES, build
from groundwork.command_line import output_file
from groundwork.network import find_available_port
from lab.testkit.fork_server import in_own_process
from slime.backends.fsdp_utils.backend import FSDPTrainActor
from slime.rollout.train_data import split_by_dp
from slime.utils.head_memory import head_bytes

GOAL_BYTES = 1_500_000_000
LOSSES: dict[str, dict[str, Any]] = {
    "policy": {"advantage_estimator": "grpo", "disable_rewards_normalization": True},
    "top-K": {
        "loss_type": "custom_loss",
        "custom_loss_function_path": "slime.algorithms.losses.topk_distillation.topk_distillation_loss",
        "compute_advantages_and_returns": False,
    },
    "hybrid": {
        "loss_type": "custom_loss",
        "custom_loss_function_path": "slime.algorithms.losses.hybrid_distillation.hybrid_loss",
    },
}


def responses(tokens: int) -> dict[str, int]:
    """Return the response tokens of each batch."""
    return {"mixed": tokens // 4, "all": tokens - 1}


def one_sample(tokens: int, response: int, vocabulary: int, top: int) -> dict[str, Any]:
    """Return training data of one sample with every stream that a loss reads; the teacher's are tensors."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, vocabulary - top, (response, 1), generator=generator) + torch.arange(top)
    scores = torch.rand(response, top, generator=generator)
    teacher = torch.log_softmax(scores, -1) - 0.1
    sampled = [-9.0] * response
    return {
        "tokens": [torch.randint(0, vocabulary, (tokens,), generator=generator).tolist()],
        "total_lengths": [tokens],
        "response_lengths": [response],
        "loss_masks": [[1] * response],
        "rewards": [1.0],
        "rollout_log_probs": [sampled],
        "teacher_topk_log_probs": [teacher],
        "teacher_topk_indices": [ids],
        "rollout_topk_log_probs": [teacher - 0.1 * scores],
    }


def measure(flags: dict[str, Any], batches: list[dict[str, Any]], threads: int) -> dict[str, Any]:
    """Take a step on each of ``batches`` and return the figures of the last; for a process of its own."""
    torch.set_num_threads(threads)
    args = arguments(flags)
    device = torch.device(args.device)
    actor = FSDPTrainActor(1, 0, "127.0.0.1", find_available_port())
    actor.init(args)
    shards = [split_by_dp(data, 1, args)[0] for data in batches]
    give_back_freed_blocks()
    starts, seconds, top = [], 0.0, 0
    for number, shard in enumerate(shards):
        actor.prepare(number, shard)
        starts.append(reset_peak(device))
        start = time.perf_counter()
        metrics = actor.step(number)
        assert metrics is not None
        assert not metrics["train/skipped_steps"], metrics
        seconds, top = time.perf_counter() - start, peak(device)
    weights = sum(p.numel() * p.element_size() for p in actor.backend.model.parameters())
    trained = sum(p.numel() * p.element_size() for p in actor.backend.model.parameters() if p.requires_grad)
    actor.shutdown()
    return {
        **{"weights": weights, "gradients": trained, "moments": 2 * trained},
        **{"above_weights": top - starts[0], "step": top - starts[-1], "above_model": top - starts[-1] - trained},
        "seconds": round(seconds, 1),
    }


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.long_step", description=__doc__)
    parser.add_argument("--tokens", type=int, default=32_768, help="of the sample (default: %(default)s)")
    parser.add_argument("--vocabulary", type=int, default=151_936, help="default: %(default)s")
    parser.add_argument("--top", type=int, default=50, help="the teacher's tokens per position (default: %(default)s)")
    parser.add_argument("--chunk", type=int, default=1024, help="--log-probs-chunk-size (default: %(default)s)")
    parser.add_argument("--losses", nargs="+", choices=LOSSES, default=["top-K"], help="default: top-K")
    parser.add_argument("--batches", nargs="+", choices=responses(0), default=list(responses(0)), help="default: both")
    parser.add_argument("--shape", choices=SHAPES, default="tiny", help="body of the model (default: %(default)s)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default: %(default)s")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch on a CPU (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="a small vocabulary and 512 tokens: checks that it runs")
    parser.add_argument("--json", type=output_file, metavar="FILE", help="also write the figures to this file")
    options = parser.parse_args()
    if options.quick:
        options.tokens, options.vocabulary, options.chunk, options.losses = 512, 4096, 32, list(LOSSES)
    document = {"machine": describe_machine(), "options": {k: v for k, v in vars(options).items() if k != "json"}}
    document["cases"] = cases = run(options)
    largest = max(case["step"] for case in cases)
    verdict = {"goal_bytes": GOAL_BYTES, "largest_step": largest, "met": largest <= GOAL_BYTES}
    document["verdict"] = verdict
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps({"verdict": verdict}))
    return 0 if verdict["met"] or options.quick else 1


def run(options: Namespace) -> list[dict[str, Any]]:
    """Measure every case, print a line for each, and return them."""
    shape = replace(SHAPES[options.shape], vocab_size=options.vocabulary)
    found = []
    with tempfile.TemporaryDirectory(prefix="long-step-") as name:
        on_gpu = options.device == "cuda"
        dtype = "bfloat16" if on_gpu else "float32"
        model = build(shape, Path(name) / "model", dtype=dtype)
        for loss in options.losses:
            for batch in options.batches:
                flags = {
                    **{"hf_checkpoint": str(model), "device": options.device, "train_dtype": dtype},
                    **{"use_dynamic_batch_size": True, "max_tokens_per_gpu": options.tokens},
                    **{"gradient_checkpointing": True, "log_probs_chunk_size": options.chunk, "global_batch_size": 1},
                    **LOSSES[loss],
                }
                response = responses(options.tokens)[batch]
                sizes = ((64, 32), (options.tokens, response))
                data = [one_sample(*size, options.vocabulary, options.top) for size in sizes]
                case = {"loss": loss, "batch": batch, "tokens": options.tokens, "response": response}
                case |= in_own_process(measure, flags, data, options.threads)
                ids = {"policy": 1, "top-K": options.top, "hybrid": options.top + 1}[loss]
                case["head_budget"] = head_bytes(
                    response,
                    shape.hidden_size,
                    options.vocabulary,
                    chunk=options.chunk,
                    ids=ids,
                    dtype_bytes=2 if on_gpu else 4,
                    on_gpu=on_gpu,
                )
                found.append(case)
                print(json.dumps(case), flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
