"""Builds the tiny model if it is missing: `python -m lab.tiny_models.build [--seed S] [--output DIR] [--force] [--ship]`.

Guarantees: the folder appears under its final name only when the model is complete and has passed the gate (judge on
held-out phrases, base policy on held-out problems); two builders at once build once. One folder serves as policy and as
judge: Qwen3, float32, loadable by transformers and SGLang, with `metrics.json` beside the weights.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from lab.tiny_models.cache import SHIPPED, Settings, cache_key, is_built, model_path
from lab.tiny_models.tastes import TASTES


class BuildError(RuntimeError):
    """The model did not pass its gate."""


def ensure_built(
    seed: int = 0, output: Path | None = None, force: bool = False, console: Console | None = None
) -> Path:
    """Return the folder of the tiny model, building it when it is missing or ``force`` is set.

    Raises:
        BuildError: when it did not pass the gate after all rounds of training.
    """
    path = output or model_path(seed)
    if is_built(path) and not force:
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path.parent / ".lock"):
        if is_built(path) and not force:
            return path
        with tempfile.TemporaryDirectory(prefix=".build-", dir=path.parent) as folder:
            draft = Path(folder) / "model"
            _build(draft, seed, console or Console(stderr=True))
            if path.exists():
                shutil.rmtree(path)
            draft.rename(path)
    return path


def _build(path: Path, seed: int, console: Console) -> None:
    import torch

    from lab.tiny_models.batches import batches
    from lab.tiny_models.gate import failures, measure_judge, measure_policy, measure_tastes
    from lab.tiny_models.sampling import Sampler
    from lab.tiny_models.tokenizer import build_tokenizer
    from lab.tiny_models.train import new_model, train

    settings, started = Settings(), time.monotonic()
    threads = torch.get_num_threads()
    torch.set_num_threads(min(2, len(os.sched_getaffinity(0))))
    try:
        tokenizer = build_tokenizer(settings.vocabulary, settings.tokenizer_conversations, seed)
        model = new_model(tokenizer, settings, seed)
        stream = batches(tokenizer, seed, settings.batch_tokens)
        steps, rate, total = settings.steps, settings.learning_rate, 0
        problems: list[str] = []
        for attempt in range(settings.extra_rounds + 1):
            title = "tiny model: training" if not attempt else "tiny model: training on"
            with training_progress(console, steps, title) as advance:
                loss = train(model, stream, steps=steps, learning_rate=rate, on_step=advance)
            total += steps
            sampler = Sampler(model, tokenizer, seed)
            with console.status("measuring on held-out phrases and problems"):
                metrics = {
                    **measure_judge(sampler, 400),
                    **measure_policy(sampler, 256),
                    **measure_tastes(sampler, 250),
                }
            problems = failures(metrics)
            console.print(_summary(metrics))
            if not problems:
                break
            console.print(f"[yellow]not good enough: {'; '.join(problems)}[/]")
            steps, rate = settings.extra_steps, settings.extra_learning_rate
        else:
            raise BuildError(
                f"the tiny model of seed {seed} did not pass after {total} steps: {'; '.join(problems)}; try another --seed"
            )
    finally:
        torch.set_num_threads(threads)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    metrics |= {
        "key": cache_key(seed),
        "seed": seed,
        "steps": total,
        "loss": round(loss, 4),
        "parameters": model.num_parameters(),
    }
    metrics |= {"seconds": round(time.monotonic() - started, 1), "settings": asdict(settings)}
    (path / "metrics.json").write_text(json.dumps(metrics, indent=1) + "\n")


def _summary(metrics: dict) -> str:
    return (
        f"judge {metrics['judge_accuracy_heldout']:.3f} on held-out phrases, hints {metrics['hint_recall']:.2f} / "
        f"{metrics['hint_false']:.2f}; base rule {metrics['base_rule']:.3f}, right number "
        f"{metrics['base_right_number']:.3f} (everyday {metrics['everyday_right_number']:.3f}); with a hint {metrics['hinted_rule']:.2f}, rewrites "
        f"{metrics['rewrite_rule']:.2f}; thinking {metrics['thinking_rate']:.2f}, tools {metrics['tool_call_rate']:.2f}; tastes: judge "
        f"{metrics['judge_accuracy_tastes']:.2f}, hints copied {metrics['hint_copied_tastes']:.2f}, base "
        + ", ".join(f"{taste.name} {metrics[f'base_{taste.name}']:.2f}" for taste in TASTES)
    )


@contextmanager
def training_progress(console: Console, steps: int, title: str) -> Iterator[Callable[[int, float], None]]:
    """Show a bar of ``steps``, or a line for every hundredth outside a terminal; yield what to call with step and loss."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("loss {task.fields[loss]:.3f}"),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(title, total=steps, loss=float("nan"))

        def advance(step: int, loss: float) -> None:
            progress.update(task, completed=step, loss=loss)
            if not console.is_terminal and step % 100 == 0:
                console.print(f"{title}: step {step}/{steps}, loss {loss:.3f}")

        yield advance


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the file lock at ``path``; a second builder waits."""
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def main(argv: list[str] | None = None) -> int:
    """Command line; prints the folder."""
    parser = argparse.ArgumentParser(prog="python -m lab.tiny_models.build", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seed", type=int, default=0, help="seed of corpus and weights (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=None, help="folder (default: .cache/tiny/KEY)")
    parser.add_argument(
        "--ship", action="store_true", help="replace the repository's model, whose sources changed; with seed 0"
    )
    parser.add_argument("--force", action="store_true", help="build again even if it exists")
    parser.add_argument("--print-path", action="store_true", help="print the folder and build nothing")
    arguments = parser.parse_args(argv)
    if arguments.print_path:
        print(arguments.output or model_path(arguments.seed))
        return 0
    if arguments.ship and (arguments.seed or arguments.output):
        parser.error("--ship is for seed 0 and the repository's folder; leave out --seed and --output")
    try:
        if arguments.ship:
            fresh = model_path() != SHIPPED
            print(ensure_built(output=SHIPPED, force=fresh or arguments.force))
        else:
            print(ensure_built(arguments.seed, arguments.output, arguments.force))
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
