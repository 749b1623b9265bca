"""Speed and memory of a training step: packed, padded, LoRA, whole logits, top-K, and beside TRL's GRPO trainer.

`python -m benchmarks.trainer [--quick] [--trl-python PATH] --json FILE [--device cuda --shape qwen3-0.6b]`. It needs torch and
transformers, PEFT for LoRA, and bitsandbytes for a base in NF4; no engine, no Ray. On a CPU the sides of
a comparison take their steps in turn, so that all see the same machine; on CUDA one after the other, because the memory is
for one. Tokens count without padding. The share of the hardware's peak is against the largest matrix product measured in the
same run and precision. Batches: `mixed` has lengths like those of conversations, a number is the length of equal samples, `long` is one micro-batch of
--long tokens in four samples, for the sides with checkpointing. On CUDA there are sides with fused kernels, and sides `planned`, which have the layers
that the start of a run plans for the GPU, as users get them; the others recompute every layer, and a row says how many do not.
There the memory plan's estimate for the largest micro-batch stands beside what was allocated.
`--sides`, `--batches` and `--parts` choose; a verdict that lacks a side is left out.

Ours and TRL's trainer do the same work in a step: a forward and a backward pass over the same samples with the same weights and
precision, entropies without gradient, the norm clipped to 1, fused AdamW; no reference, and no pass for old log probabilities
(ours take the engine's, TRL's are the new ones, as one step per generation allows). A CPU side has one thread. Batches of equal samples are
cut into our micro-batches on both sides, and into those of --trl-micro-batches. What TRL does otherwise is its own: it pads every micro-batch to the longest prompt
and the longest completion of the batch, and without Triton, as on a CPU, its LM head scores the prompts too.
On CUDA ours are bfloat16 weights cast by FSDP2 from float32, TRL's autocast of float32 weights, and its LM head is a Triton kernel.

A ratio is the median over the rounds of two steps of the same round, and has its middle half beside it: a reader sees whether it is
noise. On CUDA the steps of a round are minutes apart, so it shows scatter but does not take the machine's moods out.
CPU time does not see other processes take turns on the cores.

Verdicts: packed is at least 1.5 times as fast as padded, eight samples (--padded) at a time as they come (mixed; beside it the ratio to
padding the micro-batches that packing made, which puts samples of like lengths together); the peak of a logprob pass does not
grow with vocabulary times length; the memory plan's estimates are within 10 % of what was allocated; our step is at least as fast as TRL's at its
fastest micro-batch size, on mixed lengths and on equal ones, where nothing is padded.
TRL lives in an environment of its own: `python -m venv DIR && DIR/bin/python -m pip install --no-deps --require-hashes -r
requirements/peer-trl.txt`, on CUDA after `DIR/bin/python -m pip install torch==2.13.0`, which brings torch's CUDA libraries;
then `--trl-python DIR/bin/python`.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import sys
import tempfile
from argparse import Namespace
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import losses
from benchmarks.figures import record_figure
from benchmarks.machine import describe_machine
from benchmarks.trainer_parts import logprob_pass
from benchmarks.trainer_parts.ratio import against_goal, how_many_times_faster
from benchmarks.trainer_parts.samples import mixed_lengths, samples
from benchmarks.trainer_parts.shapes import SHAPES, build, matmul_peak
from benchmarks.trainer_parts.sides import TRL, Plan, run_in_turn
from groundwork.command_line import output_file
from lab.testkit.fork_server import in_own_process
from slime.backends.trainer.metrics import step_flops

PACKED_GOAL, TRL_GOAL = 1.5, 1.0
LORA_RANK = 16
# Samples of a padded micro-batch, as they come: the default of transformers' trainer, and of TRL's.
PADDED = 8
# The sides that the verdicts read, and one of each other kind: what --quick runs. The others are for information.
NEEDED = ("packed", "LoRA, packed", "padded", "padded, by length", "whole logits")
CHECKPOINTING, PLANNED, TOP_K = "checkpointing", "checkpointing, planned", "top-K 50, checkpointing"
NF4 = "LoRA, packed, NF4"
COMPILED, LIGER, LORA_COMPILED = "packed, compiled", "packed, liger", "LoRA, packed, compiled"
PLANNED_COMPILED, LORA_PLANNED = "checkpointing, planned, compiled", "LoRA, checkpointing, planned, compiled"
ON_CUDA = (COMPILED, LIGER, LORA_COMPILED, PLANNED, PLANNED_COMPILED, LORA_PLANNED)
"""Sides with kernels, or a plan of layers, that a CPU has not."""
MEMORY_ERROR = 0.1
"""How far the plan's estimate may be from the allocated peak, as a share of that."""
LONG, TOP = "long", 50
QUICK_LONG = 128
LONG_SAMPLES = 4
PARTS = ("steps", "pass", "top-k")
"""Optimizer steps, memory of the log probability pass, gathered top-K beside a loop over k."""
SIDES = (
    "packed",
    "LoRA, packed",
    "padded",
    "padded, by length",
    "one sample at a time",
    "whole logits",
    CHECKPOINTING,
    TOP_K,
    *ON_CUDA,
    NF4,
)


def lengths_of(batch: str, options: Namespace) -> list[int]:
    """Lengths of the samples of a batch; equal ones have as many tokens together as --longest times 4."""
    if batch == "mixed":
        return mixed_lengths(options.samples, options.longest)
    if batch == LONG:
        return [options.long // LONG_SAMPLES] * LONG_SAMPLES
    return [int(batch)] * max(2, options.longest * 4 // int(batch))


def equal_at_a_time(length: int, options: Namespace) -> int:
    """Samples of ``length`` tokens that fit --cap, as in our micro-batches; fewer where they do not divide the batch."""
    count = len(lengths_of(str(length), options))
    return max(
        size for size in range(1, count + 1) if count % size == 0 and (size == 1 or size * length <= options.cap)
    )


def trl_sizes(length: int, options: Namespace) -> list[int]:
    """TRL's micro-batch sizes on samples of ``length`` tokens: ours, and those of --trl-micro-batches that divide the batch."""
    count = len(lengths_of(str(length), options))
    return sorted({equal_at_a_time(length, options), *(n for n in options.trl_micro_batches if count % n == 0)})


def plans(options: Namespace, model: Path, files: dict[str, str], folder: Path) -> list[Plan]:
    """The sides: ours in its variants, and TRL with several micro-batch sizes where it is installed."""
    flags = {
        "hf_checkpoint": str(model),
        "device": options.device,
        "train_dtype": "bfloat16" if options.device == "cuda" else "float32",
        "use_dynamic_batch_size": True,
        "max_tokens_per_gpu": options.cap,
    }
    lora = {"use_lora": True, "lora_rank": LORA_RANK}
    compiled = {"fused_kernels": "compile", "attn_implementation": "varlen"}
    recomputed = {"gradient_checkpointing": True, "max_tokens_per_gpu": max(options.cap, options.long)}
    distilled = recomputed | {
        "loss_type": "custom_loss",
        "custom_loss_function_path": "slime.algorithms.losses.topk_distillation.topk_distillation_loss",
        "compute_advantages_and_returns": False,
    }
    every = [batch for batch in files if batch != LONG]
    variants: dict[str, tuple[list[str], dict[str, Any]]] = {
        "packed": (every, {}),
        "LoRA, packed": (every, lora),
        NF4: (every, lora | {"base_quantization": "nf4"}),
        "padded": (
            ["mixed"],
            {"pack_sequences": False, "use_dynamic_batch_size": False, "micro_batch_size": options.padded},
        ),
        "padded, by length": (["mixed"], {"pack_sequences": False}),
        "one sample at a time": (["mixed"], {"use_dynamic_batch_size": False, "micro_batch_size": 1}),
        "whole logits": (["mixed"], {"log_probs_chunk_size": logprob_pass.WHOLE}),
        CHECKPOINTING: (["mixed", LONG], recomputed),
        TOP_K: ([LONG], distilled),
        COMPILED: (every, compiled),
        LIGER: (every, {"fused_kernels": "liger"}),
        LORA_COMPILED: (every, lora | compiled),
        PLANNED: (["mixed", LONG], recomputed),
        PLANNED_COMPILED: ([LONG], recomputed | compiled),
        LORA_PLANNED: ([LONG], recomputed | compiled | lora),
    }
    found = []
    for name in SIDES:
        batches, changes = variants[name]
        given = {batch: files[batch] for batch in batches if batch in files}
        if given and name in options.sides:
            settings = {"flags": flags | changes, "batches": given, "planned": "planned" in name}
            found.append(Plan(name, list(given), settings))
    theirs = []
    if options.trl_python:
        turns = [("mixed", size) for size in options.trl_micro_batches]
        turns += [(str(length), size) for length in options.lengths for size in trl_sizes(length, options)]
        for batch, size in turns:
            given = {"model": str(model), "device": options.device, "micro_batch": size, "folder": str(folder / "trl")}
            side = f"TRL, {size} at a time" + ("" if batch == "mixed" else f", {batch}")
            theirs.append(Plan(side, [batch], {**given, "batch": files[batch]}, TRL, options.trl_python))
    return [*found[:1], *theirs, *found[1:]]  # steps that are compared are taken one right after the other


def steps(options: Namespace, folder: Path) -> list[dict[str, Any]]:
    """Measure every side on its batches; return a row for each."""
    shape, dtype = SHAPES[options.shape], "bfloat16" if options.device == "cuda" else "float32"
    model = in_own_process(partial(build, dtype=dtype, device=options.device), shape, folder / "model")
    files, data = {}, {}
    for batch in options.batches:
        top = TOP if batch == LONG else 0
        data[batch] = samples(lengths_of(batch, options), min(shape.vocab_size, 2**15), top=top)
        files[batch] = str(folder / f"{batch}.json")
        Path(files[batch]).write_text(json.dumps(data[batch]))
    chosen = plans(options, model, files, folder)
    groups = [chosen] if options.device == "cpu" else [[plan] for plan in chosen]
    fastest = in_own_process(matmul_peak, options.device)
    rows = []
    for group in groups:
        for side, batches in run_in_turn(group, folder, options.rounds).items():
            for batch, figures in batches.items():
                tokens, responses = data[batch]["total_lengths"], data[batch]["response_lengths"]
                rank = LORA_RANK if side.startswith("LoRA") else 0
                rate = step_flops(asdict(shape), tokens, responses, lora_rank=rank) / figures["seconds"]
                row = {"side": side, "batch": batch, "tokens": sum(tokens), **figures}
                row["tokens_per_second"] = round(sum(tokens) / figures["seconds"], 1)
                row["share_of_matmul_peak"] = round(rate / fastest, 3)
                rows.append(row)
                slow, fast = (sum(tokens) / limit(figures["all_seconds"]) for limit in (max, min))
                print(f"{side:22s} {batch:6s} {row['tokens_per_second']:10.1f} tokens/s ({slow:.0f} to {fast:.0f})"
                      f" {row['peak_bytes'] / 2**20:9.1f} MiB {row['share_of_matmul_peak']:6.1%}", flush=True)  # fmt: skip
                record(f"trainer/{options.shape}/{side}/{batch}", row, rate, fastest)
    return [{"matmul_peak_gflops": round(fastest / 1e9, 1)}, *rows]


def record(name: str, row: dict[str, Any], rate: float, fastest: float) -> None:
    """Record the figures of a side on a batch; ``rate`` and ``fastest`` in FLOP/s."""
    record_figure(f"{name}/step", row["seconds"], "s")
    record_figure(f"{name}/speed", row["tokens_per_second"], "tokens/s")
    record_figure(f"{name}/arithmetic", rate / 1e12, "TFLOP/s", peer=fastest / 1e12)
    record_figure(f"{name}/peak above the model", row["peak_bytes"] / 2**30, "GiB")
    for total in ("allocated", "reserved", "estimated"):
        if f"{total}_bytes" in row:
            record_figure(f"{name}/{total}", row[f"{total}_bytes"] / 2**30, "GiB")
    if (error := memory_error(row)) is not None:
        record_figure(f"{name}/estimate off by", 100 * error, "%", limit=100 * MEMORY_ERROR)


def memory_error(row: dict[str, Any]) -> float | None:
    """Return how far the memory plan's estimate is from what was allocated, as a share of it; None if one of them is not known."""
    if not {"allocated_bytes", "estimated_bytes"} <= row.keys():
        return None
    return abs(row["estimated_bytes"] / row["allocated_bytes"] - 1)


def verdicts(rows: list[dict[str, Any]], memory: dict[str, Any] | None) -> dict[str, Any]:
    """Return what the figures must be and whether they are, as far as they were measured."""
    mixed = {row["side"]: row for row in rows if row["batch"] == "mixed"}
    packed = mixed.get("packed")
    found: dict[str, Any] = {}
    if memory is not None:
        found["logprob_pass_memory"] = {
            "bytes_per_token_and_entry": memory["bytes_per_token_and_entry"],
            "goal": logprob_pass.NO_GROWTH,
            "met": memory["no_growth"],
        }
    errors = [error for row in rows if (error := memory_error(row)) is not None]
    if errors:
        met = max(errors) <= MEMORY_ERROR
        found["memory_estimate"] = {"largest_error": round(max(errors), 3), "goal": MEMORY_ERROR, "met": met}
    if packed is None:
        return found
    times = {name: how_many_times_faster(packed["all_seconds"], row["all_seconds"]) for name, row in mixed.items()}
    if "padded" in mixed:
        found["packed_over_padded"] = against_goal(packed, mixed["padded"], PACKED_GOAL)
        if "padded, by length" in mixed:
            found["packed_over_padded"]["over_padded_by_length"] = times["padded, by length"]
    if "LoRA, packed" in mixed:
        found["full_over_lora"] = times["LoRA, packed"]
    if "whole logits" in mixed:
        share = packed["peak_bytes"] / max(1, mixed["whole logits"]["peak_bytes"])
        found["chunked_over_whole_logits"] = {**times["whole logits"], "memory": round(share, 2)}
    theirs = [row for row in rows if row["side"].startswith("TRL")]
    ours = {row["batch"]: row for row in rows if row["side"] == "packed"}
    for batch in dict.fromkeys(row["batch"] for row in theirs):
        fastest = max((row for row in theirs if row["batch"] == batch), key=lambda row: row["tokens_per_second"])
        found[f"ours_over_trl_{batch}"] = against_goal(ours[batch], fastest, TRL_GOAL)
    return found


def settle(parser: argparse.ArgumentParser, options: Namespace) -> None:
    """Fill in the sides and batches that were not chosen, and refuse those that do not exist."""
    batches = ["mixed", *map(str, options.lengths), *([LONG] if options.long else [])]
    options.batches = options.batches or batches
    unknown = [batch for batch in options.batches if batch not in batches]
    if unknown:
        parser.error(f"--batches {' '.join(unknown)}: there are {', '.join(batches)}; --long N makes {LONG}")
    if options.sides is None:
        options.sides = [name for name in SIDES if not options.quick or name in (*NEEDED, CHECKPOINTING, TOP_K)]
    for word, package in (("LoRA", "peft"), ("NF4", "bitsandbytes"), ("liger", "liger_kernel")):
        absent = [name for name in options.sides if word in name and importlib.util.find_spec(package) is None]
        if absent:
            print(f"{package} is not installed, so these are left out: {'; '.join(absent)}", flush=True)
            options.sides = [name for name in options.sides if name not in absent]
    if options.device == "cpu":
        options.sides = [name for name in options.sides if name not in ON_CUDA]


def place_for(shape: str) -> str | None:
    """Return the folder for a checkpoint of ``shape``: memory where it has room for it twice, else None, the default."""
    memory = Path("/dev/shm")
    size = 4 * step_flops(asdict(SHAPES[shape]), [1], [1]) / 6
    if os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 2 * size:
        return str(memory)
    return None


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trainer", description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="small", help="model, random weights (default: %(default)s)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default: %(default)s")
    parser.add_argument("--samples", type=int, default=24, help="samples of the mixed batch (default: %(default)s)")
    parser.add_argument("--longest", type=int, default=512, help="tokens of its longest (default: %(default)s)")
    parser.add_argument("--lengths", type=int, nargs="*", default=[128, 512, 1024], help="of batches of equal samples")
    parser.add_argument("--cap", type=int, default=1024, help="tokens per micro-batch (default: %(default)s)")
    parser.add_argument("--padded", type=int, default=PADDED, help="samples of a padded one (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="measured steps per side (default: %(default)s)")
    parser.add_argument(
        "--pass-tokens", type=int, nargs="+", default=[2048, 32_768], help="lengths of the logprob pass"
    )
    parser.add_argument("--vocabularies", type=int, nargs="+", default=[8192, 151_936], help="its vocabularies")
    parser.add_argument("--chunk", type=int, default=1024, help="its --log-probs-chunk-size (default: %(default)s)")
    parser.add_argument("--long", type=int, default=0, help="tokens of the long batch, 0: no such batch (default)")
    parser.add_argument("--sides", nargs="+", choices=SIDES, metavar="SIDE", help=f"these only, of {SIDES}")
    parser.add_argument("--batches", nargs="+", help="these only, by name (default: all)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="these only (default: all)")
    parser.add_argument("--trl-python", help="interpreter of an environment with TRL; without it TRL is left out")
    parser.add_argument("--trl-micro-batches", type=int, nargs="+", default=[1, 4, 8], help="its micro-batch sizes")
    parser.add_argument(
        "--quick", action="store_true", help="tiny model, few sides, one step, no goals: checks that it runs"
    )
    parser.add_argument("--json", required=True, type=output_file, help="file for the figures")
    options = parser.parse_args()
    if options.quick:
        options.shape, options.samples, options.longest, options.lengths, options.rounds = "tiny", 8, 64, [32], 1
        options.cap, options.pass_tokens, options.vocabularies, options.chunk = 128, [64, 256], [1024, 4096], 16
        options.long = QUICK_LONG
        if options.batches:  # a length that was chosen is no length of this run
            options.batches = [str(options.lengths[0]) if name.isdigit() else name for name in options.batches]
    settle(parser, options)
    memory, distillation = None, []
    machine: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="trainer-", dir=place_for(options.shape)) as name:
        if "steps" in options.parts:
            machine, *rows = steps(options, Path(name))
        if "pass" in options.parts:
            memory = logprob_pass.measure(
                SHAPES["tiny"], options.pass_tokens, options.vocabularies,
                device=options.device, chunk=options.chunk, folder=Path(name),
            )  # fmt: skip
    found = verdicts(rows, memory)
    if "top-k" in options.parts:
        top = Namespace(rows=64 if options.quick else 256, vocabulary=8192 if options.quick else 32_768, width=64,
                        chunk=8, top=TOP, repeats=3, threads=1, device=options.device,
                        dtype=losses.DTYPES[options.device])  # fmt: skip
        distillation = list(losses.measure_cases(tuple(losses.DISTILLATION_CASES), top))
        faster = losses.TIMES_FASTER_QUICK if options.quick else losses.TIMES_FASTER
        of_top_k = losses.verdict(distillation, faster)
        found["gathered_top_k"] = {**of_top_k, "met": of_top_k["holds"]}
    document = {
        "machine": describe_machine() | machine,
        "options": {key: value for key, value in vars(options).items() if key not in ("json", "trl_python")},
        "steps": rows, "logprob_pass": memory, "top_k": distillation, "verdicts": found,
    }  # fmt: skip
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(found, indent=1))
    return int(not options.quick and any(not verdict.get("met", True) for verdict in found.values()))


if __name__ == "__main__":
    sys.exit(main())
