"""Time of one layer's attention over a pack, forward and backward, by each kernel of ``--attn-implementation``.

`python -m benchmarks.attention [--device cuda] [--quick] [--json FILE]`. The shapes are those of Qwen3-0.6B and Qwen3-4B, with few
long samples, some, and many of different lengths. On CUDA all kernels of a pack run, in bfloat16, and the file has rows for
`slime.backends.fsdp_utils.attention.MEASURED`, which ``auto`` chooses by. A CPU has one of them, in float32, so the run only
checks that the benchmark works.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.figures import record_figure
from benchmarks.machine import describe_machine
from benchmarks.trainer_parts.samples import mixed_lengths
from groundwork.command_line import output_file
from slime.backends.fsdp_utils.attention import KERNELS, PACKED, attention_arguments, work_of

KEY_HEADS, SIZE = 8, 128
HEADS = (16, 32)
PACKS = {"20 mixed": mixed_lengths(20, 4096), "8 x 2048": [2048] * 8, "2 x 8192": [8192] * 2}
QUICK = {"3 mixed": [48, 7, 20]}


def milliseconds(run: Callable[[], Any], device: torch.device, repeats: int) -> float:
    """Return the median time of ``run`` after one run that does not count."""
    times = []
    for _ in range(repeats + 1):
        _wait(device)
        start = time.perf_counter()
        run()
        _wait(device)
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times[1:])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measured(name: str, heads: int, lengths: list[int], device: torch.device, repeats: int) -> float:
    """Return the milliseconds of kernel ``name``, forward and backward, for ``heads`` query heads."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    generator = torch.Generator(device).manual_seed(0)

    def tensor(count: int) -> torch.Tensor:
        made = torch.randn(1, sum(lengths), count, SIZE, device=device, dtype=dtype, generator=generator)
        return made.transpose(1, 2).detach().requires_grad_()

    inputs = [tensor(heads), tensor(KEY_HEADS), tensor(KEY_HEADS)]
    upstream = torch.randn(1, sum(lengths), heads, SIZE, device=device, dtype=dtype, generator=generator)
    module = SimpleNamespace(num_key_value_groups=heads // KEY_HEADS, is_causal=True, training=True)
    ends = attention_arguments(PACKED[name], lengths, device)

    def once() -> None:
        out, _ = KERNELS[name](module, *inputs, None, scaling=SIZE**-0.5, dropout=0.0, **ends)
        torch.autograd.grad(out, inputs, upstream)

    return milliseconds(once, device, repeats)


def rows(device: torch.device, *, quick: bool) -> list[dict[str, Any]]:
    """Return one row per number of heads and pack: its work and the milliseconds of each kernel; and print the figures."""
    names = ("sdpa", "cudnn", "varlen") if device.type == "cuda" else ("sdpa",)
    results = []
    for heads in HEADS:
        for pack, lengths in (QUICK if quick else PACKS).items():
            found = {name: measured(name, heads, lengths, device, 1 if quick else 10) for name in names}
            for name, value in found.items():
                record_figure(f"attention/{heads} heads, {pack}/{name}", value, "ms")
            results.append({"batch": f"{heads} heads, {pack}", "work": work_of(heads, lengths), **found})
    return sorted(results, key=lambda row: row["work"])


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attention", description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="one small pack: checks that it runs")
    parser.add_argument("--json", type=output_file, metavar="FILE", help="also write the rows to this file")
    arguments = parser.parse_args()
    document = {"machine": describe_machine(), "device": arguments.device}
    document["rows"] = rows(torch.device(arguments.device), quick=arguments.quick)
    if arguments.json is not None:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")
        print(arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
