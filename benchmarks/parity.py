"""Which kernels of the trainer differ from the engine by rounding alone, decided by a float32 reference on the same tokens.

`python -m benchmarks.parity --device cuda --json FILE [--model FOLDER]`. An SGLang engine samples in bfloat16; the tokens are scored by
transformers in float32 (the same bfloat16 weights), by the trainer as written and with every choice of its kernels, and by the
engine's order of roundings in plain torch. Each side is held to the float32 reference, and its difference from the engine is shown.
A choice is accepted if mean and 99th percentile of its errors are at most 1.5 times those of the trainer as written; so is the
engine. Then |trainer - engine| is bounded by the sum of both errors.

Without --model the weights are random, of --shape and spread 0.05. Run it with the model that you train: rounding depends on
the weights. Without SGLang transformers samples, and the engine's row is missing. The exit status is 1 if the engine or a choice is not accepted.
The last lines are the flags of the accepted choices. Nothing reads the file: set the flags in the run's own configuration.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.figures import record_figure
from benchmarks.machine import describe_machine
from benchmarks.parity_parts.errors import FACTOR, Errors
from benchmarks.parity_parts.sides import (
    BESIDE,
    CHOICES,
    REFERENCE,
    Answer,
    arguments,
    by_engine,
    by_trainer,
    engine_order_log_probs,
    exact_log_probs,
    prompts,
    without_engine,
)
from benchmarks.trainer_parts.shapes import SHAPES, build
from groundwork.command_line import output_file
from lab.testkit.fork_server import in_own_process

SPREAD = 0.05
"""Standard deviation of random weights: logits are then some nats apart."""
PROMPT, ENGINE, ENGINES_ORDER = 24, "engine", "engine's roundings in torch"


def sides(model: str, device: str, answers: list[Answer]) -> tuple[dict[str, tuple[Tensor, Tensor]], dict[str, str]]:
    """Return log probabilities and their float32 reference by side, and why others cannot run here.

    Raises:
        SystemExit: the trainer as written cannot run here.
    """
    exact = in_own_process(exact_log_probs, model, device, answers)
    found = {ENGINES_ORDER: (in_own_process(engine_order_log_probs, model, device, answers), exact)}
    refused: dict[str, str] = {}
    for name, words in CHOICES.items():
        args, problems = arguments(words, model, device)
        if "LoRA" in name and importlib.util.find_spec("peft") is None:
            problems = [*problems, "peft is not installed on this machine"]
        if name in BESIDE and BESIDE[name] in refused:
            problems = [*problems, f"{BESIDE[name]}, which it is compared with, does not run"]
        if problems and name == REFERENCE:
            sys.exit(f"the trainer {REFERENCE}, which every side is compared with, does not run: {problems[0]}")
        if problems:
            refused[name] = problems[0]
            continue
        scored, own_exact = in_own_process(by_trainer, args, answers)
        found[name] = scored, exact if own_exact is None else own_exact
    if all(answer.log_probs is not None for answer in answers):
        found[ENGINE] = Tensor([value for answer in answers for value in answer.log_probs or ()]), exact
    return found, refused


def compared(found: dict[str, tuple[Tensor, Tensor]]) -> list[dict[str, Any]]:
    """Return a row per side: its errors, whether they are rounding, and its difference from the engine; print and record each."""
    own = {name: Errors.of(scored - exact) for name, (scored, exact) in found.items()}
    rows = []
    for name, (scored, exact) in found.items():
        beside = own[BESIDE.get(name, name if name in BESIDE.values() else REFERENCE)]
        row: dict[str, Any] = {"side": name, "tokens": len(scored), "error": asdict(own[name])}
        row["accepted"] = own[name].within(beside)
        print(f"{name:26s} {own[name]}: {'accepted' if row['accepted'] else 'NOT accepted'}", flush=True)
        for what in ("mean", "high"):
            record_figure(f"parity/{name}/error, {what}", getattr(own[name], what), "nats",
                          limit=FACTOR * getattr(beside, what))  # fmt: skip
        if ENGINE in found and name != ENGINE and exact is found[ENGINE][1]:
            apart = Errors.of(scored - found[ENGINE][0])
            row["from_engine"] = asdict(apart)
            record_figure(f"parity/{name}/from the engine, mean", apart.mean, "nats",
                          limit=own[name].mean + own[ENGINE].mean)  # fmt: skip
        rows.append(row)
    return rows


def status(rows: list[dict[str, Any]]) -> int:
    """Return the exit status; the engine's roundings in torch are for information."""
    return int(not all(row["accepted"] for row in rows if row["side"] != ENGINES_ORDER))


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parity", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda", help="default: %(default)s")
    parser.add_argument("--model", help="folder of a Qwen3 checkpoint (default: random weights of --shape)")
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-0.6b", help="default: %(default)s")
    parser.add_argument("--answers", type=int, default=8, help="sampled at the same time (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=128, help="of each answer (default: %(default)s)")
    parser.add_argument("--without-engine", action="store_true", help="let transformers sample, also where SGLang is")
    parser.add_argument("--quick", action="store_true", help="a tiny model: checks that it runs")
    parser.add_argument("--json", required=True, type=output_file, help="file for the figures")
    options = parser.parse_args()
    if options.quick:
        options.shape, options.answers, options.tokens = "tiny", 4, 64
    with tempfile.TemporaryDirectory(prefix="parity-") as name:
        model = options.model or str(
            in_own_process(
                partial(build, dtype="bfloat16", device=options.device, initializer_range=SPREAD),
                SHAPES[options.shape],
                Path(name) / "model",
            )
        )
        vocabulary = json.loads((Path(model) / "config.json").read_text())["vocab_size"]
        asked = prompts(options.answers, PROMPT, vocabulary)
        if options.without_engine or importlib.util.find_spec("sglang") is None:
            answers = in_own_process(without_engine, model, options.device, asked, options.tokens)
        else:
            answers = by_engine(model, options.device, Path(name) / "run", asked, options.tokens)
        found, refused = sides(model, options.device, answers)
    rows = compared(found)
    for side, reason in refused.items():
        print(f"{side:26s} not run: {reason}")
    card = in_own_process(torch.cuda.get_device_name) if options.device == "cuda" else "this CPU"
    accepted = [row["side"] for row in rows if row["accepted"] and row["side"] in CHOICES and row["side"] != REFERENCE]
    print(f"accepted on {card}:", *(f"\n  {CHOICES[side]}" for side in accepted))
    document = {"machine": describe_machine(), "card": card, "model": options.model or options.shape, "sides": rows,
                "not_run": refused}  # fmt: skip
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(document, indent=1) + "\n")
    return status(rows)


if __name__ == "__main__":
    sys.exit(main())
