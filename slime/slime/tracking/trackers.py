"""Log metrics to JSON lines, TensorBoard, Weights & Biases, and Trackio.

A tracker takes a flat dict of numbers and the name of its step axis. Guarantees: ``metrics.jsonl`` holds a metric once `log`
has returned. Secrets never reach a tracker.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from pathlib import Path
from typing import Any, Protocol

from slime.args import Arguments
from slime.tracking.redact import redacted

PROJECT = "openclaw_rl"
"""Of Trackio, named like that of W&B in launch scripts."""


class Tracker(Protocol):
    """One destination of metrics."""

    def log(self, metrics: dict[str, Any], step_key: str) -> None:
        """Log ``metrics``; ``metrics[step_key]`` is the position on the step axis."""
        ...

    def finish(self) -> None:
        """Flush and close."""
        ...


def _number(value: Any) -> Any:
    """Return ``value`` as a plain Python number, else as text."""
    if hasattr(value, "item"):
        value = value.item()
    return value if isinstance(value, int | float | bool | str) or value is None else str(value)


class JsonLines:
    """Writes ``<run-dir>/metrics.jsonl``, one object per call, and ``<run-dir>/arguments.json``."""

    def __init__(self, args: Arguments) -> None:
        folder = Path(args.run_dir)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "arguments.json").write_text(json.dumps(redacted(args), indent=1, default=str) + "\n")
        self._file = (folder / "metrics.jsonl").open("a", buffering=1)

    def log(self, metrics: dict[str, Any], step_key: str) -> None:
        """Append one line with the time and the name of the step axis."""
        row = {"time": time.time(), "step_key": step_key} | {name: _number(value) for name, value in metrics.items()}
        self._file.write(json.dumps(row) + "\n")

    def finish(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoard:
    """Writes event files to ``--tensorboard-dir`` or ``<run-dir>/tensorboard``, by project and experiment if set."""

    def __init__(self, args: Arguments) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = Path(args.tensorboard_dir or Path(args.run_dir) / "tensorboard")
        self._writer = SummaryWriter(str(folder.joinpath(args.tb_project_name or "", args.tb_experiment_name or "")))

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


def run_name(args: Arguments) -> str | None:
    """Return ``<group>_<random>``, or the group alone with ``--disable-wandb-random-suffix``; None without a group."""
    if args.wandb_group is None or not args.wandb_random_suffix:
        return args.wandb_group
    return f"{args.wandb_group}_{secrets.token_hex(3)}"


class WeightsAndBiases:
    """Logs to a W&B run; the key comes from ``--wandb-key``, ``WANDB_API_KEY`` or ``WANDB_KEY``, in that order."""

    def __init__(self, args: Arguments) -> None:
        import wandb

        key = args.wandb_key or os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_KEY")
        if key:
            os.environ["WANDB_API_KEY"] = key
        folder = Path(args.wandb_dir or args.run_dir)
        folder.mkdir(parents=True, exist_ok=True)
        settings = wandb.Settings(console="off")
        if args.wandb_host:
            settings.base_url = args.wandb_host
        self._run = wandb.init(
            project=args.wandb_project,
            group=args.wandb_group,
            name=run_name(args),
            id=args.wandb_run_id,
            resume="allow" if args.wandb_run_id else None,
            entity=args.wandb_team,
            mode=args.wandb_mode,
            dir=str(folder),
            config=redacted(args),
            settings=settings,
        )
        for axis in ("train", "rollout", "eval"):
            self._run.define_metric(f"{axis}/step")
            self._run.define_metric(f"{axis}/*", step_metric=f"{axis}/step")
        self._run.define_metric("perf/*", step_metric="rollout/step")

    def log(self, metrics: dict[str, Any], step_key: str) -> None:
        """Log all metrics; ``define_metric`` has already declared the step axes."""
        self._run.log({name: _number(value) for name, value in metrics.items()})

    def finish(self) -> None:
        """End the run."""
        self._run.finish()


class Trackio:
    """Logs to a Trackio run named like the run's folder, which a resumed run continues.

    Its files are where the library keeps them, so that ``trackio show`` finds all runs of a project.
    """

    def __init__(self, args: Arguments) -> None:
        import trackio  # pyright: ignore[reportMissingImports]  # of the extra trackio

        self._run = trackio.init(
            project=args.trackio_project or PROJECT,
            name=Path(args.run_dir).absolute().name,
            config=redacted(args),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def log(self, metrics: dict[str, Any], step_key: str) -> None:
        """Queue all metrics; a thread of the library writes them."""
        self._run.log({name: _number(value) for name, value in metrics.items()}, step=int(metrics[step_key]))

    def finish(self) -> None:
        """Write what is queued and end the run."""
        self._run.finish()


def make_trackers(args: Arguments) -> list[Tracker]:
    """Return the trackers that the arguments enable, JSON lines first."""
    trackers: list[Tracker] = [JsonLines(args)]
    if args.use_tensorboard:
        trackers.append(TensorBoard(args))
    if args.use_wandb:
        trackers.append(WeightsAndBiases(args))
    if args.use_trackio:
        trackers.append(Trackio(args))
    return trackers
