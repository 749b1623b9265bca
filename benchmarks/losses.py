"""Time and memory of every loss per token, beside plain torch on whole logits, forward and backward.

`python -m benchmarks.losses [--quick] [--json FILE] [--device cuda]`. A case starts from final hidden states and an LM head and
ends with their gradients. Ours is what the trainer runs: log probabilities in blocks of the vocabulary, and the loss. Plain is
the same formula on `log_softmax` of all logits; for top-K it is one log-probability call per k on all logits, as plugins do it. Both give the same loss (checked). Memory is the peak above the inputs.

The verdict, in the file and as the last line: gathered top-K is at least `TIMES_FASTER` times as fast as the loop over k, in less memory.
The exit status is 1 where it is not; `--quick`, whose tensors are too small for the factor, asks for `TIMES_FASTER_QUICK`.

The default chunk on a CPU is a 32nd of the rows, as --log-probs-chunk-size 1024 is of a micro-batch of 32768 tokens. On CUDA it is an
eighth, as it is of 8192 response tokens: with fewer, launches of small kernels are most of the time. There one process measures all cases
one after the other: the allocator tells the peak of each. The loop over k keeps a table of all logits for each k, 31 GB for 1024 rows,
so top-K cases have at most that many (`TOP_ROWS`), and the same share of them per chunk. Hidden states and head are float32 on a CPU and bfloat16
on CUDA, as in the trainer (--dtype); either side casts the logits to float32.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import statistics
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.figures import record_figure
from benchmarks.machine import describe_machine
from benchmarks.memory import give_back_freed_blocks, peak, reset_peak
from groundwork.command_line import output_file
from lab.testkit.fork_server import in_own_process
from slime.algorithms.losses import LOSSES
from slime.algorithms.losses.reduce import make_reducer
from slime.algorithms.losses.topk_distillation import forward_kl, reverse_kl
from slime.args import Arguments
from slime.logprobs.response_rows import log_probs_of_head
from slime.utils.ppo_utils import compute_log_probs

Case = Callable[[], Tensor]

POLICY_CASES: dict[str, dict[str, Any]] = {
    "sft_loss": {"loss_type": "sft_loss"},
    "policy_loss (PPO clip)": {},
    "gspo": {"advantage_estimator": "gspo"},
    "cispo": {"advantage_estimator": "cispo"},
    "policy_loss, opsm, tis": {"use_opsm": True, "use_tis": True},
    "policy_loss, kl, entropy": {"use_kl_loss": True, "kl_loss_coef": 0.1, "kl_loss_type": "k3", "entropy_coef": 0.01},
}
DISTILLATION_CASES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "top-K reverse KL": reverse_kl,
    "top-K forward KL": forward_kl,
}
SIZE_OPTIONS = {
    "rows": "response tokens",
    "vocabulary": "vocabulary",
    "width": "hidden size",
    "chunk": "rows per chunk of ours",
    "repeats": "measured runs per case",
}
SIZES = {
    "cpu": {"rows": 256, "vocabulary": 32_768, "width": 64, "chunk": 8, "repeats": 2},
    "cuda": {"rows": 8192, "vocabulary": 151_936, "width": 1024, "chunk": 1024, "repeats": 5},
}
"""On CUDA the vocabulary of Qwen3."""
TOP_ROWS = 1024
DTYPES = {"cpu": "float32", "cuda": "bfloat16"}
TEMPERATURE = 0.7
TIMES_FASTER, TIMES_FASTER_QUICK = 20.0, 5.0


def sizes_of(name: str, options: Namespace) -> Namespace:
    """Return ``options`` with the rows and the chunk of the case ``name``."""
    if name in POLICY_CASES or options.rows <= TOP_ROWS:
        return options
    return Namespace(**vars(options) | {"rows": TOP_ROWS, "chunk": max(1, options.chunk * TOP_ROWS // options.rows)})


class Inputs:
    """Hidden states, an LM head, targets and the streams of a batch of equal samples, the same for every case of a kind."""

    def __init__(self, options: Namespace, *, top: bool, samples: int = 8) -> None:
        """``top``: with the teacher's tokens, whose table of all logits the policy's losses do without."""
        rows, vocabulary, width = options.rows, options.vocabulary, options.width
        device, dtype = torch.device(options.device), getattr(torch, options.dtype)
        generator = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator).to(device)

        self.hidden = normal(rows, width).to(dtype).requires_grad_()
        self.weight = (normal(vocabulary, width) * 0.05).to(dtype).requires_grad_()
        self.targets = torch.randint(0, vocabulary, (rows,), generator=generator).to(device)
        lengths = [rows // samples] * (samples - 1) + [rows - rows // samples * (samples - 1)]
        with torch.no_grad():
            logits = self.logits()
            old = compute_log_probs(logits, self.targets).squeeze(-1)
            if top:
                found = torch.log_softmax(logits + 0.5 * normal(rows, vocabulary), -1).topk(options.top)
                self.top_log_probs, self.top_ids = found.values, found.indices
        self.batch: dict[str, Any] = {
            name: list((old + 0.1 * normal(rows)).split(lengths))
            for name in ("log_probs", "rollout_log_probs", "ref_log_probs")
        }
        self.batch["advantages"] = list(normal(rows).split(lengths))
        self.batch["loss_masks"] = [torch.ones(length, device=device) for length in lengths]
        self.batch |= {"response_lengths": lengths, "total_lengths": lengths}

    def logits(self) -> Tensor:
        """All logits in float32, divided by the temperature: the head in its own dtype, as models compute it."""
        return (self.hidden @ self.weight.T).float() / TEMPERATURE


def settings(changes: dict[str, Any]) -> Arguments:
    """The trainer's arguments at their defaults, with ``changes``."""
    return Arguments(**{"eps_clip_high": 0.28} | changes)


def ours(inputs: Inputs, changes: dict[str, Any], chunk: int) -> Case:
    """What the trainer runs for a built-in loss."""
    args = settings(changes)
    reduce = make_reducer(False, inputs.batch["response_lengths"], inputs.batch["loss_masks"])

    def run() -> Tensor:
        log_probs, entropy = log_probs_of_head(
            [(inputs.hidden, inputs.weight)], inputs.targets, temperature=TEMPERATURE, chunk=chunk
        )
        return _reduced(args, inputs, log_probs, entropy, reduce)

    return run


def plain(inputs: Inputs, changes: dict[str, Any]) -> Case:
    """The same loss on the log-softmax of all logits."""
    args = settings(changes)
    reduce = make_reducer(False, inputs.batch["response_lengths"], inputs.batch["loss_masks"])

    def run() -> Tensor:
        table = torch.log_softmax(inputs.logits(), dim=-1)
        entropy = -(table.exp() * table).sum(-1)
        log_probs = table.gather(-1, inputs.targets[:, None])[:, 0]
        return _reduced(args, inputs, log_probs, entropy if args.entropy_coef else entropy.detach(), reduce)

    return run


def _reduced(args: Arguments, inputs: Inputs, log_probs: Tensor, entropy: Tensor, reduce: Any) -> Tensor:
    lengths = inputs.batch["response_lengths"]
    split = (list(log_probs.split(lengths)), list(entropy.split(lengths)))
    return LOSSES[args.loss_type](args, inputs.batch, *split, reduce)[0]


def gathered(inputs: Inputs, divergence: Callable[[Tensor, Tensor], Tensor], chunk: int) -> Case:
    """Top-K distillation as one gather."""

    def run() -> Tensor:
        pairs = [(inputs.hidden, inputs.weight)]
        found, _ = log_probs_of_head(pairs, inputs.top_ids, temperature=TEMPERATURE, chunk=chunk, with_entropy=False)
        return divergence(found, inputs.top_log_probs).sum()

    return run


def per_k_loop(inputs: Inputs, divergence: Callable[[Tensor, Tensor], Tensor]) -> Case:
    """Top-K distillation as one log-probability call per k, over the same logits."""

    def run() -> Tensor:
        logits = inputs.logits()
        columns = [compute_log_probs(logits, inputs.top_ids[:, k]) for k in range(inputs.top_ids.size(1))]
        return divergence(torch.cat(columns, dim=-1), inputs.top_log_probs).sum()

    return run


def measure(case: Case, inputs: Inputs, repeats: int) -> dict[str, float]:
    """Return seconds (the fastest run), the peak of extra memory in bytes, and the loss of a case, forward and backward."""
    device = inputs.hidden.device
    seconds, peaks, loss = [], [], 0.0
    for number in range(repeats + 1):
        for leaf in (inputs.hidden, inputs.weight):
            leaf.grad = None
        gc.collect()
        before = reset_peak(device)
        start = time.perf_counter()
        value = case()
        value.backward()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        elapsed = time.perf_counter() - start
        used = peak(device) - before
        loss = float(value.detach())
        del value
        if number:  # the first one warms up
            seconds.append(elapsed)
            peaks.append(used)
    return {"seconds": min(seconds), "peak_bytes": statistics.median(peaks), "loss": loss}


def build(inputs: Inputs, name: str, chunk: int) -> dict[str, Case]:
    """Return ``ours`` and ``plain`` of the case ``name``."""
    if name in POLICY_CASES:
        return {"ours": ours(inputs, POLICY_CASES[name], chunk), "plain": plain(inputs, POLICY_CASES[name])}
    divergence = DISTILLATION_CASES[name]
    return {"ours": gathered(inputs, divergence, chunk), "plain": per_k_loop(inputs, divergence)}


def run_side(name: str, side: str, options: Namespace, for_memory: bool) -> dict[str, float]:
    """Measure one side of a case; for a process of its own, whose memory no other case has touched.

    On a CPU, time and memory need a process each: an allocator that keeps freed blocks is faster and hides the peak.
    """
    torch.set_num_threads(options.threads)
    if for_memory:
        give_back_freed_blocks()
    options = sizes_of(name, options)
    inputs = Inputs(options, top=name in DISTILLATION_CASES)
    return measure(build(inputs, name, options.chunk)[side], inputs, 1 if for_memory else options.repeats)


def run_cases(names: Sequence[str], options: Namespace) -> dict[str, dict[str, dict[str, float]]]:
    """Measure both sides of every case on CUDA, whose allocator knows the peak of each; for a process of its own."""
    results = {}
    for kind in (POLICY_CASES, DISTILLATION_CASES):
        chosen = [name for name in names if name in kind]
        if chosen:
            sizes = sizes_of(chosen[0], options)
            inputs = Inputs(sizes, top=kind is DISTILLATION_CASES)
            for name in chosen:
                cases = build(inputs, name, sizes.chunk)
                results[name] = {side: measure(case, inputs, options.repeats) for side, case in cases.items()}
            del inputs, cases
    return results


def measure_cases(names: Sequence[str], options: Namespace) -> Iterator[dict[str, Any]]:
    """Yield the comparison of each case with its plain version."""
    if torch.device(options.device).type == "cuda":
        for name, sides in in_own_process(run_cases, list(names), options).items():
            yield compare(name, options, sides)
        return
    for name in names:
        sides = {}
        for side in ("ours", "plain"):
            timed, weighed = (in_own_process(run_side, name, side, options, for_memory) for for_memory in (False, True))
            sides[side] = timed | {"peak_bytes": weighed["peak_bytes"]}
        yield compare(name, options, sides)


def compare(name: str, options: Namespace, sides: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Return the figures of a case beside those of its plain version; both must have the same loss."""
    found, base = sides["ours"], sides["plain"]
    difference = abs(found["loss"] - base["loss"])
    if difference > 1e-3 * max(1.0, abs(base["loss"])):
        raise RuntimeError(f"{name}: our loss is {found['loss']}, the plain one {base['loss']}")
    rows = sizes_of(name, options).rows
    result: dict[str, Any] = {"case": name, "rows": rows, "loss_difference": difference}
    for side, values in sides.items():
        result[side] = {
            "microseconds_per_token": round(values["seconds"] / rows * 1e6, 2),
            "peak_bytes_per_token": round(values["peak_bytes"] / rows),
        }
    result["times_faster"] = round(base["seconds"] / found["seconds"], 2)
    if found["peak_bytes"] > 0:
        result["times_less_memory"] = round(base["peak_bytes"] / found["peak_bytes"], 2)
    for unit, key in (("us/token", "microseconds_per_token"), ("B/token", "peak_bytes_per_token")):
        record_figure(f"losses/{name}/{key}", result["ours"][key], unit, peer=result["plain"][key])
    return result


def verdict(cases: list[dict[str, Any]], times_faster: float) -> dict[str, Any]:
    """Return whether every top-K case is ``times_faster`` times as fast as its loop, at a lower peak of memory."""
    found = [case for case in cases if case["case"] in DISTILLATION_CASES]
    slowest = min(case["times_faster"] for case in found)
    largest = max(
        case["ours"]["peak_bytes_per_token"] / max(1, case["plain"]["peak_bytes_per_token"]) for case in found
    )
    return {
        "claim": f"gathered top-K at least {times_faster:g} times as fast as a loop over k, at a lower peak of memory",
        "times_faster": slowest,
        "share_of_memory": round(largest, 3),
        "fast_enough": slowest >= times_faster,
        "less_memory": largest < 1.0,
        "holds": slowest >= times_faster and largest < 1.0,
    }


def parsed(words: Sequence[str] | None = None) -> Namespace:
    """Return the options of the command line, with the sizes of its device."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.losses", description=__doc__)
    cpu, cuda = SIZES["cpu"], SIZES["cuda"]
    for name, what in SIZE_OPTIONS.items():
        text = f"{what} (default: {cpu[name]}, on CUDA {cuda[name]})"
        parser.add_argument(f"--{name}", type=int, help=text)
    parser.add_argument("--top", type=int, default=50, help="K of the top-K cases (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch on a CPU (default: %(default)s)")
    parser.add_argument("--dtype", choices=sorted(set(DTYPES.values())), help="default: float32, on CUDA bfloat16")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="64 rows, a vocabulary of 8192: checks that it runs")
    parser.add_argument("--json", type=output_file, metavar="FILE", help="also write the figures to this file")
    arguments = parser.parse_args(words)
    kind = torch.device(arguments.device).type
    for name, value in (SIZES[kind] | {"dtype": DTYPES[kind]}).items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)
    if arguments.quick:
        arguments.rows, arguments.vocabulary, arguments.chunk, arguments.repeats = 64, 8192, 16, 3
    return arguments


def main() -> int:
    """Command line."""
    arguments = parsed()
    # Torch imports its compiler at the first call of a checkpointed function; once here, not once in each of the forks.
    importlib.import_module("torch._dynamo")
    results = []
    for result in measure_cases((*POLICY_CASES, *DISTILLATION_CASES), arguments):
        results.append(result)
        print(json.dumps(result), flush=True)
    shape = {
        name: getattr(arguments, name) for name in ("rows", "vocabulary", "width", "dtype", "chunk", "top", "threads")
    }
    judged = verdict(results, TIMES_FASTER_QUICK if arguments.quick else TIMES_FASTER)
    document = {"machine": describe_machine(), "device": arguments.device, "shape": shape, "cases": results}
    document["verdict"] = judged
    if arguments.json is not None:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")
        print(arguments.json)
    print(json.dumps({"verdict": judged}))
    return 0 if judged["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
