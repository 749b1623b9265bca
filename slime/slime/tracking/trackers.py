"""The trackers. Each takes a flat dict of numbers and the name of its step axis.

Guarantees: a metric that is logged is on disk in ``metrics.jsonl`` when `log` returns; secrets never reach a tracker.
"""

from __future__ import annotations

import json
import os
import time
from argparse import Namespace
from pathlib import Path
from typing import Any, Protocol

from slime.tracking.redact import redacted


class Tracker(Protocol):
    """One destination of metrics."""

    def log(self, metrics: dict[str, Any], step_key: str) -> None:
        """Take metrics; ``metrics[step_key]`` is the position on the axis."""
        ...

    def finish(self) -> None:
        """Write what is left."""
        ...


def _number(value: Any) -> Any:
    """Return a plain Python number, or the value's text."""
    if hasattr(value, "item"):
        value = value.item()
    return value if isinstance(value, int | float | bool | str) or value is None else str(value)


class JsonLines:
    """``<run-dir>/metrics.jsonl``, one object per call, and ``<run-dir>/arguments.json``."""

    def __init__(self, args: Namespace) -> None:
        folder = Path(args.run_dir)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "arguments.json").write_text(json.dumps(redacted(args), indent=1, default=str) + "\n")
        self._file = (folder / "metrics.jsonl").open("a", buffering=1)

    def log(self, metrics: dict[str, Any], step_key: str) -> None:
        """Append one line with the time and the step axis."""
        row = {"time": time.time(), "step_key": step_key} | {name: _number(value) for name, value in metrics.items()}
        self._file.write(json.dumps(row) + "\n")

    def finish(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoard:
    """Event files in ``<run-dir>/tensorboard``."""

    def __init__(self, args: Namespace) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(Path(args.run_dir) / "tensorboard"))

    def log(self, metrics: dict[str, Any], step_key: str) -> None:
        """Write every number as a scalar."""
        step = int(metrics[step_key])
        for name, value in metrics.items():
            value = _number(value)
            if isinstance(value, int | float) and name != step_key:
                self._writer.add_scalar(name, value, step)

    def finish(self) -> None:
        """Flush and close."""
        self._writer.close()


class WeightsAndBiases:
    """A W&B run; the key is read from the environment by its library, ``WANDB_KEY`` counts too."""

    def __init__(self, args: Namespace) -> None:
        import wandb

        if "WANDB_API_KEY" not in os.environ and os.environ.get("WANDB_KEY"):
            os.environ["WANDB_API_KEY"] = os.environ["WANDB_KEY"]
        folder = Path(args.wandb_dir or args.run_dir)
        folder.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=args.wandb_project,
            group=args.wandb_group,
            entity=args.wandb_team,
            mode=args.wandb_mode,
            dir=str(folder),
            config=redacted(args),
            settings=wandb.Settings(console="off"),
        )
        for axis in ("train", "rollout", "eval"):
            self._run.define_metric(f"{axis}/step")
            self._run.define_metric(f"{axis}/*", step_metric=f"{axis}/step")
        self._run.define_metric("perf/*", step_metric="rollout/step")

    def log(self, metrics: dict[str, Any], step_key: str) -> None:
        """Log; the axis is a metric of its own."""
        self._run.log({name: _number(value) for name, value in metrics.items()})

    def finish(self) -> None:
        """End the run."""
        self._run.finish()


def make_trackers(args: Namespace) -> list[Tracker]:
    """Return the trackers that the arguments ask for; JSON lines first."""
    trackers: list[Tracker] = [JsonLines(args)]
    if args.use_tensorboard:
        trackers.append(TensorBoard(args))
    if args.use_wandb:
        trackers.append(WeightsAndBiases(args))
    return trackers
